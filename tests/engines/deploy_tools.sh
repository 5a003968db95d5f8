#!/usr/bin/env bash
# What the examples of docs/examples are held against, made once in the cache: the definitions of Argo CD's and Flux's kinds,
# the schema of Terraform's provider for helm, Docker Compose's own loader, and the parser of Terraform's language.
#   PYTHON=.venv/bin/python tests/engines/deploy_tools.sh
set -euo pipefail

cache=${HEADRACE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace}
here=$(cd "$(dirname "$0")" && pwd) python=${PYTHON:-python3}
argocd=v3.5.7
flux_source=v1.9.6
flux_helm=v1.6.5
controller_tools=v0.19.0
compose=v2.16.2
hcl=v2.24.0

fail() { printf 'deploy tools: %s\n' "$1" >&2; exit 2; }

# Another version or program is another folder: tests/support/deploy_examples.py names it in the same way.
target=$cache/deploy-tools-$(cat "$here/deploy_tools.sh" "$here/terraform.lock" "$here"/programs/*.go | sha256sum | cut -c1-12)
[ ! -d "$target" ] || exit 0
command -v go >/dev/null || fail "no Go is installed. Install Go 1.26 or newer."
mkdir -p "$cache"
work=$(mktemp -d "$cache/.deploy-tools-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/out/crds" "$work/module"
cd "$work/module"
export GOFLAGS="-p=1 -mod=mod" CGO_ENABLED=0
echo "deploy tools: fetching and building (100 MB, minutes, once) into $target"

# module MODULE VERSION: where its files are.
module() { GOFLAGS= go mod download -json "$1@$2" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }
cat >go.mod <<MOD
module deploytools
go 1.26.0
require (
	github.com/compose-spec/compose-go/v2 $compose
	github.com/fluxcd/helm-controller/api $flux_helm
	github.com/hashicorp/hcl/v2 $hcl
	sigs.k8s.io/controller-tools $controller_tools
)
MOD
mkdir compose terraform types
cp "$here/programs/compose.go" compose/
cp "$here/programs/terraform.go" terraform/
printf 'package types\n\nimport _ "github.com/fluxcd/helm-controller/api/v2"\n' >types/types.go
go mod tidy -e >"$work/log" 2>&1 || true
for program in compose terraform; do
  nice go build -trimpath -o "$work/out/$program" "./$program" >"$work/log" 2>&1 ||
    { tail -3 "$work/log" >&2; fail "$program could not be built: is the Go module proxy reachable?"; }
done

# Flux's definitions are made of its types, as Flux makes them. The others are published with their modules.
nice go run sigs.k8s.io/controller-tools/cmd/controller-gen crd paths=github.com/fluxcd/helm-controller/api/v2 \
  output:crd:dir="$work/out/crds" >"$work/log" 2>&1 || { tail -3 "$work/log" >&2; fail "no definition of HelmRelease"; }
cp "$(module github.com/argoproj/argo-cd/v3 "$argocd")/manifests/crds/application-crd.yaml" "$work/out/crds/"
cp "$(module github.com/fluxcd/source-controller "$flux_source")"/config/crd/bases/*_{git,helm,oci}repositories.yaml \
  "$work/out/crds/"
chmod -R u+w "$work/out/crds"

"$python" -m pip install --disable-pip-version-check -q --require-hashes --no-deps --no-compile \
  -r "$here/terraform.lock" -t "$work/provider" >"$work/log" 2>&1 ||
  { tail -3 "$work/log" >&2; fail "the provider's schema could not be fetched: is the package index reachable?"; }
tar -xzf "$work"/provider/cdktf_cdktf_provider_helm/_jsii/*.tgz -C "$work/out" --strip-components 1 package/.jsii
mv "$work/out/.jsii" "$work/out/provider-helm.json"
mv -T "$work/out" "$target" 2>/dev/null || [ -d "$target" ]
