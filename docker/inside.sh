#!/bin/bash
# Run a command in an image as its user, on a root that cannot be written, without a network.
#   docker/inside.sh IMAGE:TAG COMMAND...
set -euo pipefail
image=$1; shift

if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
  exec docker run --rm --read-only --network none --tmpfs /tmp --tmpfs /scratch --entrypoint "" "$image" "$@"
fi

# buildah has no `run --read-only`: mount the image, and enter it as a kubelet's container would be entered.
container=$(buildah from "localhost/$image")
trap 'buildah rm "$container" >/dev/null' EXIT
root=$(buildah mount "$container")
user=$(buildah inspect --format '{{.OCIv1.Config.User}}' "$container")
mapfile -t variables < <(buildah inspect --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' "$container" | sed '/^$/d')
# shellcheck disable=SC2016
env -i "${variables[@]}" unshare --mount --pid --fork --net --uts --kill-child bash -c '
  set -e; root=$1 user=$2; shift 2; ip link set lo up; hostname image
  mkdir -p "$root/scratch"; mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/tmp"; chmod 1777 "$root/tmp"; mount -t tmpfs tmpfs "$root/scratch"; chmod 1777 "$root/scratch"
  touch "$root/etc/hosts"; printf "127.0.0.1 localhost image\n" >/run/image-hosts-$$; mount --bind /run/image-hosts-$$ "$root/etc/hosts"; rm /run/image-hosts-$$
  mount -o remount,bind,ro "$root"
  exec chroot --userspec="$user" "$root" "$@"' inside "$root" "$user" "$@"
