#!/bin/bash
# Make a Debian 12 as a base image where no registry of images is to be had: debootstrap, from a mirror of packages.
#   docker/base.sh NAME [MIRROR]
#   CA="proxy.crt mirror.crt" docker/base.sh NAME     and it trusts proxies and mirrors with certificates of their own
#
# CA: files, folders, or both, separated by spaces. A file may hold several certificates.
set -euo pipefail
name=$1 mirror=${2:-http://deb.debian.org/debian}

for program in debootstrap buildah openssl; do
  command -v "$program" >/dev/null || { echo "base: $program is not installed (Debian: apt-get install $program)." >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "base: debootstrap must be root. Run it with sudo." >&2; exit 2; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

# files FILE_OR_FOLDER...: the file, or the certificates of the folder.
files() {
  for path in "$@"; do
    if [ -d "$path" ]; then find "$path" -type f \( -name '*.crt' -o -name '*.pem' \) | sort; else echo "$path"; fi
  done
}

# split FILE...: each certificate into a file of its own, as update-ca-certificates wants them.
split() {
  local number=0 file line text
  for file in "$@"; do
    [ -r "$file" ] || { echo "base: CA names $file, which cannot be read." >&2; exit 2; }
    text=""
    while IFS= read -r line || [ -n "$line" ]; do
      case $line in "-----BEGIN "*) text="" ;; esac
      text+=$line$'\n'
      case $line in "-----END "*) ;; *) continue ;; esac
      number=$((number + 1))
      printf '%s' "$text" | openssl x509 -out "$work/ca/own-$number.crt" 2>/dev/null ||
        { echo "base: certificate $number, in $file, cannot be read. CA takes certificates in PEM form." >&2; exit 2; }
    done <"$file"
  done
  [ "$number" -gt 0 ] || { echo "base: CA is $CA, where no certificate lies. It takes certificates in PEM form." >&2; exit 2; }
  echo "base: certificates of its own that $name trusts: $number"
}

mkdir "$work/ca"
if [ -n "${CA:-}" ]; then
  # shellcheck disable=SC2086 # CA is a list
  mapfile -t certificates < <(files $CA)
  split "${certificates[@]}"
fi

debootstrap --variant=minbase bookworm "$work/root" "$mirror" >"$work/log" || { tail -3 "$work/log" >&2; exit 2; }
# As Debian's own slim images: no manuals, translations and documents; licences stay. Packages that come later follow.
cat >"$work/root/etc/dpkg/dpkg.cfg.d/slim" <<'SLIM'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
SLIM
find "$work/root/usr/share/doc" -mindepth 2 -not -name copyright -not -type d -delete
find "$work/root/usr/share/doc" -mindepth 1 -type d -empty -delete
rm -rf "$work"/root/usr/share/{info,locale,man}/* "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/*
if [ -n "${CA:-}" ]; then
  mkdir -p "$work/root/usr/local/share/ca-certificates"
  cp "$work"/ca/*.crt "$work/root/usr/local/share/ca-certificates/"
fi
tar -C "$work/root" -cf "$work/root.tar" .
printf 'FROM scratch\nADD root.tar /\n' >"$work/Dockerfile"
buildah bud --quiet --isolation chroot -t "$name" "$work" >/dev/null
