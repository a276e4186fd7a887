// Package changes shows what a change of policies changes: as text and as a comment
// for a pull request, grouped so that a person can read it, and row by row as JSON,
// CSV and a graph.
//
//	assure.Diff ─► Group ─► WriteText, WriteMarkdown
//	           └──────────► WriteJSON, WriteCSV, WriteDOT
//
// Grouping loses nothing but repetition: ports of the same two ends, families,
// ends with the same partners, and all workloads of a namespace become one line.
package changes
