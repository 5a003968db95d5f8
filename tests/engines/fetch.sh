#!/usr/bin/env bash
# What `make test-stores` runs and PyPI does not carry, built or fetched once into the cache: MinIO and fake-gcs-server by
# Go, s3rver and Azurite by npm. Arguments: those that are wanted (minio fake-gcs-server s3rver azurite); none: all.
set -euo pipefail

cache=${HEADRACE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace}
minio=v0.0.0-20260212201848-7aac2a2c5b7c
fake_gcs=v1.56.1
s3rver=3.7.1
# Before 3.37 a list that begins with a name has all names.
azurite=3.37.0
wanted=" ${*:-minio fake-gcs-server s3rver azurite} "

fail() { printf 'engines: %s\n' "$1" >&2; exit 2; }

mkdir -p "$cache"
work=$(mktemp -d "$cache/.engines-XXXXXX")
trap 'rm -rf "$work"' EXIT

# build NAME PACKAGE VERSION DURATION: a program of a Go module.
build() {
  [[ $wanted == *" $1 "* ]] && [ ! -x "$cache/$1-$3/$1" ] || return 0
  command -v go >/dev/null || fail "no Go is installed, which builds $1. Install Go 1.26 or newer, or leave test-stores to a machine that has it."
  echo "engines: building $1 ($4, once) into $cache/$1-$3"
  # One package at a time needs 1.5 GB of memory, two need the double.
  packages=$(awk '/^MemAvailable/ { print ($2 > 8000000 ? 2 : 1) }' /proc/meminfo)
  GOFLAGS="-p=$packages" GOBIN="$work/$1" nice go install "$2@$3" >"$work/log" 2>&1 ||
    { tail -3 "$work/log" >&2; fail "$1 could not be built: is the Go module proxy reachable?"; }
  mv -T "$work/$1" "$cache/$1-$3"
}

# fetch NAME VERSION: a package of npm, and what it needs.
fetch() {
  [[ $wanted == *" $1 "* ]] && [ ! -d "$cache/$1-$2" ] || return 0
  command -v npm >/dev/null || fail "no npm is installed, which fetches $1. Install Node.js 20 or newer."
  echo "engines: fetching $1 into $cache/$1-$2"
  npm install --silent --no-audit --no-fund --prefix "$work/$1" "$1@$2" >"$work/log" 2>&1 ||
    { tail -3 "$work/log" >&2; fail "$1 could not be fetched: is the npm registry reachable?"; }
  mv -T "$work/$1" "$cache/$1-$2"
}

build minio github.com/minio/minio "$minio" "about six minutes"
build fake-gcs-server github.com/fsouza/fake-gcs-server "$fake_gcs" "about two minutes"
fetch s3rver "$s3rver"
fetch azurite "$azurite"
