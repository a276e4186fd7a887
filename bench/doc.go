// Package bench measures what no single package's benchmarks show; see README.md
// for the method, workload for what is measured with, and results for records.
package bench
