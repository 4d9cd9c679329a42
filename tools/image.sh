#!/usr/bin/env bash
# Builds the images ballast-runtime and ballast-operator, or what they hold (sbom, into build/sbom), with the first of docker,
# podman and buildah that works here.
#   image.sh images | sbom
# From the environment: TAG (default: the project's version), BASE_IMAGE and REQUIREMENTS as the Dockerfile explains them,
# PIP_CERT and PIP_INDEX_URL for builds behind a proxy, BUILD_FLAGS for more of the builder's own flags.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() { echo "image: $*" >&2; exit 1; }

case ${1:-} in
  images | sbom) what=$1 ;;
  *) stop "say which: images or sbom" ;;
esac
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
revision=$(git describe --always --dirty=+ --exclude='*' --abbrev=12 2>/dev/null || echo unknown)
arguments=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision")
for name in BASE_IMAGE REQUIREMENTS PIP_CERT PIP_INDEX_URL; do
  [ -z "${!name:-}" ] || arguments+=(--build-arg "$name=${!name}")
done
read -ra more <<< "${BUILD_FLAGS:-}"

if docker info > /dev/null 2>&1; then
  build=(docker build)
elif podman info > /dev/null 2>&1; then
  build=(podman build --layers)
elif command -v buildah > /dev/null; then
  build=(buildah bud --layers)
else
  stop "neither docker nor podman nor buildah works here; on Debian and Ubuntu: apt install buildah"
fi
echo "image: building with ${build[0]}" >&2
if [ "$what" = sbom ]; then
  rm -rf build/sbom
  mkdir -p build/sbom
  "${build[@]}" "${arguments[@]}" ${more[@]+"${more[@]}"} --target sbom --output type=local,dest=build/sbom .
  ls build/sbom
else
  for target in runtime operator; do
    "${build[@]}" "${arguments[@]}" ${more[@]+"${more[@]}"} --target "$target" --tag "ballast-$target:${TAG:-$version}" .
  done
fi
