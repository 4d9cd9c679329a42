#!/usr/bin/env bash
# Builds the images ballast-runtime and ballast-operator, or what they hold (sbom, into build/sbom), with the first of docker,
# podman and buildah that works here.
#   image.sh images | sbom
# The runtime has a variant for each file of requirements, which its tag ends in: 0.1.0 (requirements/runtime.txt), 0.1.0-cpu
# (requirements/cpu.txt), 0.1.0-cuda (requirements/cuda.txt).
# From the environment: TAG (default: the project's version); REQUIREMENTS, the files to build a runtime from (default: the two
# that the chart takes, runtime.txt and cpu.txt; for the sbom runtime.txt); BASE_IMAGE as the Dockerfile explains it; PIP_CERT
# and PIP_INDEX_URL for builds behind a proxy; BUILDER (docker, podman or buildah) and BUILD_FLAGS, more of its own flags.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() { echo "image: $*" >&2; exit 1; }

case ${1:-} in
  images) what=$1 files=${REQUIREMENTS:-requirements/runtime.txt requirements/cpu.txt} ;;
  sbom) what=$1 files=${REQUIREMENTS:-requirements/runtime.txt} ;;
  *) stop "say which: images or sbom" ;;
esac
read -ra variants <<< "$files"
for file in "${variants[@]}"; do
  [ -f "$file" ] || stop "REQUIREMENTS names $file, which is not there; a runtime is built from one of" requirements/{runtime,cpu,cuda}.txt
done
version=$(sed -n 's|^__version__ = "\(.*\)"$|\1|p' runtime/ballast/version.py)
revision=$(git describe --always --dirty=+ --exclude='*' --abbrev=12 2>/dev/null || echo unknown)
arguments=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision")
for name in BASE_IMAGE PIP_CERT PIP_INDEX_URL; do
  [ -z "${!name:-}" ] || arguments+=(--build-arg "$name=${!name}")
done
read -ra more <<< "${BUILD_FLAGS:-}"

works() {
  case $1 in
    buildah) command -v buildah > /dev/null ;;
    *) "$1" info > /dev/null 2>&1 ;;
  esac
}
builder=
for each in ${BUILDER:-docker podman buildah}; do
  if works "$each"; then
    builder=$each
    break
  fi
done
case $builder in
  docker) build=(docker build) ;;
  podman) build=(podman build --layers) ;;
  buildah) build=(buildah bud --layers) ;;
  *) stop "none of ${BUILDER:-docker, podman and buildah} works here; on Debian and Ubuntu: apt install buildah" ;;
esac

built() { # the builder's further arguments
  "${build[@]}" "${arguments[@]}" ${more[@]+"${more[@]}"} "$@" .
}

echo "image: building with ${build[0]}" >&2
if [ "$what" = sbom ]; then
  [ ${#variants[@]} = 1 ] || stop "REQUIREMENTS=$files: an sbom is of one runtime"
  rm -rf build/sbom
  mkdir -p build/sbom
  built --build-arg "REQUIREMENTS=${variants[0]}" --target sbom --output type=local,dest=build/sbom
  ls build/sbom
else
  for file in "${variants[@]}"; do
    suffix=-$(basename "$file" .txt)
    built --build-arg "REQUIREMENTS=$file" --target runtime --tag "ballast-runtime:${TAG:-$version}${suffix/#-runtime/}"
  done
  built --target operator --tag "ballast-operator:${TAG:-$version}"
fi
