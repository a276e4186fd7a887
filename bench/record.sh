#!/bin/sh
# Usage: bench/record.sh FILE [COUNT]. Runs the benchmarks and writes a record.
# The header says on what; load average above 1 means: not alone on the machine.
set -eu
out=$1 count=${2:-5}
cd "$(dirname "$0")/.."
{
	echo "# commit   $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- || echo ' (changed)')"
	echo "# date     $(date -u +%FT%TZ)"
	echo "# kernel   $(uname -sr)"
	echo "# cpu      $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) of them"
	echo "# memory   $(sed -n 's/^MemTotal: *//p' /proc/meminfo)"
	echo "# go       $(go version | cut -d' ' -f3-)"
	echo "# load     $(cut -d' ' -f1-3 /proc/loadavg) at the start"
	go test ./classifier -run xxx -bench 'Lookup$|LookupDependent|Linear' -benchtime 100ms -count "$count"
	go test ./classifier -run xxx -bench FirstTouch -benchtime 20000x -count "$count"
	go test ./classifier -run xxx -bench Update -benchtime 2000x -count "$count"
	go test ./classifier -run xxx -bench 'Compile/|Compiler' -benchtime 3x -count "$count"
	go test ./bench -run xxx -bench . -benchtime 100ms -count "$count"
	echo "# load     $(cut -d' ' -f1-3 /proc/loadavg) at the end"
} >"$out"
