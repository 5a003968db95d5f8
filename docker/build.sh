#!/bin/bash
# Build both images with what is here, docker or buildah, and prove them (docker/prove.sh).
#   docker/build.sh [TAG]
#   BASE=localhost/debian:bookworm docker/build.sh     where no registry is to be had: docker/base.sh makes it
set -euo pipefail
cd "$(dirname "$0")/.."
tag=${1:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
base=${BASE:-docker.io/library/debian:bookworm-slim}

if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
  build=(docker build)
elif command -v buildah >/dev/null; then
  # chroot: RUN works as root inside of another container too, where no namespaces are to be had.
  build=(buildah bud --isolation chroot --layers)
else
  echo "build: neither a docker daemon nor buildah is here. Install one (Debian: buildah)." >&2
  exit 2
fi

for target in writer autoscaler; do
  name=headrace; [ "$target" = writer ] || name=headrace-$target
  "${build[@]}" --build-arg BASE="$base" -f docker/Dockerfile --target "$target" -t "$name:$tag" .
done
bash docker/prove.sh "$tag"
