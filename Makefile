# `make` alone prints the targets.
.PHONY: help build test race fuzz bench lint generate demo check ci

help:
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

build: ## build tierwalld and tierwall into bin/
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/tierwalld ./cmd/tierwall ./cmd/tierwall-cni

test: ## every test; privileged ones need root and say so when they skip
	go test ./...

race: ## the concurrent packages under the race detector
	go test -race -short ./classifier/ ./conntrack/ ./dataplane/ ./dataplane/audit/ ./policy/controller/

fuzz: ## every fuzz target, T=10s each
	.ci/fuzz $(or $(T),10s)

bench: ## every benchmark, ten runs, for benchstat
	go test -run '^$$' -bench . -count 10 ./...

lint: ## gofumpt, vet, staticcheck and friends
	go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run ./...

generate: ## rebuild the BPF objects (needs clang and llvm-strip)
	go generate ./...

demo: ## the whole thing in network namespaces (needs root)
	go run ./cmd/tierwall demo

check: ## what to run before you push
	@bad=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "not gofmt-formatted: $$bad"; exit 1; }
	go vet ./...
	$(MAKE) lint test

ci: ## exactly what CI runs
	.ci/run
