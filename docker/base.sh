#!/bin/bash
# Make a Debian 12 as a base image where no registry of images is to be had: debootstrap, from a mirror of packages.
#   docker/base.sh NAME [MIRROR]
#   CA=proxy.crt docker/base.sh NAME     and it trusts a proxy that has a certificate of its own
set -euo pipefail
name=$1 mirror=${2:-http://deb.debian.org/debian}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

debootstrap --variant=minbase bookworm "$work/root" "$mirror" >"$work/log" || { tail -3 "$work/log" >&2; exit 2; }
rm -rf "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/*
[ -z "${CA:-}" ] || { mkdir -p "$work/root/usr/local/share/ca-certificates" && cp "$CA" "$work/root/usr/local/share/ca-certificates/"; }
tar -C "$work/root" -cf "$work/root.tar" .
printf 'FROM scratch\nADD root.tar /\n' >"$work/Dockerfile"
buildah bud --quiet --isolation chroot -t "$name" "$work" >/dev/null
