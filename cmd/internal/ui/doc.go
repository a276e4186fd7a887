// Package ui serves the page of "tierwall ui" and the JSON behind it, to the browser
// of the user who started it.
//
//	browser ── cookie ─► guard ─► page (embedded files, one document for all views)
//	                          └─► /api/v1/… ─► state: the policies and pods read last
//	                                       ├─► Config.Status: what daemons say
//	                                       └─► Config.Records: the audit log
//
// # Who can reach it
//
// [Listen] opens a loopback address only. The URL it prints has a token that is worth
// one visit: the server exchanges it for a cookie (HttpOnly, SameSite=Strict) and never
// takes it again. Without the cookie there is no answer, not even the page's own files.
// A request that names another host (DNS rebinding) or comes from another origin is
// refused. The content policy allows the page its own files and nothing else, and
// Trusted Types keep names from the cluster text.
//
// Every request but two is a GET. The two POSTs (change, test) take YAML that is
// compiled in memory and written nowhere.
//
// # The interface
//
// Field names are a contract: those of the commands' -o json where a command answers
// the same question. Errors are {"error":"…"}; an unknown parameter is an error. What
// could not be read of a cluster is in "incomplete", as in the commands' answers.
//
//	GET  world [read=again]                          what was read, when, what is wrong with it, what else can be asked
//	GET  policies [pod]                   as "tierwall get policies"
//	GET  policy ref                       {"yaml"}: one policy, to edit
//	GET  check                            as "tierwall check", overridden and shadowed policies included
//	GET  hits                             {"policies":[{"policy","verdict","records","packets","last"}]}
//	GET  complete text [kind]             {"names":[…]}: the nearest names
//	GET  explain from to port [icmp family change]   as "tierwall explain"
//	GET  matrix [port…] [namespace]       as "tierwall matrix", of at most 1,000 pods
//	GET  groups [namespace…]              {"groups":[{"name","pods"}],"by"}: rows and columns of the heat map
//	GET  reach port row… col… [change]    {"rows":[[{"allowed","total","opened","closed"}]]}
//	GET  cell port row col [change]       {"decisions":[…]}: what decides one cell, with an example each
//	GET  status                           as "tierwall status"
//	GET  audit [lines] [filters]          {"records":[…]}: the last ones
//	GET  stream [filters]                 server-sent events, see Tick
//	POST change {"yaml","remove"}         {"change", …findings}: compiles a change; "change" names it in the others
//	GET  diff change                      as "tierwall diff", grouped, too
//	GET  replay change [since]            as "tierwall audit simulate"
//	POST test {"tests","change"}          as "tierwall test"
//
// Filters are those of "tierwall audit", under the names of its flags.
package ui
