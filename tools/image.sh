#!/usr/bin/env bash
# Builds the images ballast-runtime and ballast-operator, or lists of their contents (sbom, into build/sbom), with the first of docker,
# podman and buildah that works here.
#   image.sh images | archives FOLDER | sbom
# archives builds the images too, and writes each as an OCI archive, NAME-TAG.oci.tar, into the folder.
# The runtime has a variant for each file of requirements, which its tag ends in: VERSION (requirements/runtime.txt), VERSION-cpu
# (requirements/cpu.txt), VERSION-cuda (requirements/cuda.txt).
# From the environment: TAG (default: the project's version); REQUIREMENTS, the files to build a runtime from (default: the two
# that the chart takes, runtime.txt and cpu.txt; for the sbom runtime.txt); BASE_IMAGE as the Dockerfile explains it; PIP_CERT
# and PIP_INDEX_URL for builds behind a proxy; SOURCE_DATE_EPOCH, the timestamp of all files in the images; BUILDER (docker, podman or buildah) and BUILD_FLAGS, more of its own flags.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() { echo "image: $*" >&2; exit 1; }

case ${1:-} in
  images) what=$1 files=${REQUIREMENTS:-requirements/runtime.txt requirements/cpu.txt} ;;
  archives)
    what=$1 folder=${2:-} files=${REQUIREMENTS:-requirements/runtime.txt requirements/cpu.txt}
    [ -d "$folder" ] || stop "archives: folder '$folder' does not exist"
    ;;
  sbom) what=$1 files=${REQUIREMENTS:-requirements/runtime.txt} ;;
  *) stop "say which: images, archives or sbom" ;;
esac
read -ra variants <<< "$files"
for file in "${variants[@]}"; do
  [ -f "$file" ] || stop "REQUIREMENTS names $file, which is not there; a runtime is built from one of" requirements/{runtime,cpu,cuda}.txt
done
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' runtime/ballast/version.py)
revision=$(git describe --always --dirty=+ --exclude='*' --abbrev=12 2>/dev/null || echo unknown)
# Buildah's cache compares a LABEL as it is written, so the labels have the values as text.
dockerfile=$(mktemp)
trap 'rm -f "$dockerfile"' EXIT
sed "s/\${VERSION}/$version/; s/\${REVISION}/$revision/" Dockerfile > "$dockerfile"
arguments=(--file "$dockerfile" --build-arg "VERSION=$version")
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

if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
  case $builder in
    docker) build+=(--build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH") ;;
    *) build+=(--timestamp "$SOURCE_DATE_EPOCH") ;;
  esac
fi

image() { # tag, further arguments of the builder
  local tag=$1
  shift
  built "$@" --tag "$tag"
  [ "$what" = images ] || archive "$tag" "$folder/${tag/:/-}.oci.tar"
}

archive() { # tag, file
  rm -f "$2"
  case $builder in
    docker) docker save --output "$2" "$1" ;;
    podman) podman save --quiet --format oci-archive --output "$2" "$1" ;;
    buildah) buildah push --quiet "$1" "oci-archive:$2:$1" ;;
  esac
  tar -tf "$2" oci-layout > /dev/null 2>&1 || stop "$2 is not an OCI archive; docker writes them from version 25 on"
}

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
    image "ballast-runtime:${TAG:-$version}${suffix/#-runtime/}" --build-arg "REQUIREMENTS=$file" --target runtime
  done
  image "ballast-operator:${TAG:-$version}" --target operator
fi
