#!/usr/bin/env bash
# What `make test-stores` runs and PyPI does not carry, built or fetched once into the cache: MinIO by Go, s3rver by npm.
set -euo pipefail

cache=${HEADRACE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace}
minio=v0.0.0-20260212201848-7aac2a2c5b7c
s3rver=3.7.1

fail() { printf 'engines: %s\n' "$1" >&2; exit 2; }

mkdir -p "$cache"
work=$(mktemp -d "$cache/.engines-XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ ! -x "$cache/minio-$minio/minio" ]; then
  command -v go >/dev/null || fail "no Go is installed, which builds MinIO. Install Go 1.24 or newer, or leave test-stores to a machine that has it."
  echo "engines: building MinIO (about six minutes, once) into $cache/minio-$minio"
  # One package at a time needs 1.5 GB of memory, two need the double.
  packages=$(awk '/^MemAvailable/ { print ($2 > 8000000 ? 2 : 1) }' /proc/meminfo)
  GOFLAGS="-p=$packages" GOBIN="$work/minio" nice go install "github.com/minio/minio@$minio" >"$work/log" 2>&1 ||
    { tail -3 "$work/log" >&2; fail "MinIO could not be built: is the Go module proxy reachable?"; }
  mv -T "$work/minio" "$cache/minio-$minio"
fi

if [ ! -d "$cache/s3rver-$s3rver" ]; then
  command -v npm >/dev/null || fail "no npm is installed, which fetches s3rver. Install Node.js 20 or newer."
  echo "engines: fetching s3rver into $cache/s3rver-$s3rver"
  npm install --silent --no-audit --no-fund --prefix "$work/s3rver" "s3rver@$s3rver" >"$work/log" 2>&1 ||
    { tail -3 "$work/log" >&2; fail "s3rver could not be fetched: is the npm registry reachable?"; }
  mv -T "$work/s3rver" "$cache/s3rver-$s3rver"
fi
