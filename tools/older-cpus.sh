#!/usr/bin/env bash
# Runs the tests of the CPU kernels, as they are shipped, on this CPU and on older ones, emulated by QEMU.
# tests/cpp/older_cpus.cmake names CPUs and tests.
# Uses QEMU in PATH, or unpacks Debian's package below ~/.cache/ballast, which needs no root.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() { echo "older-cpus: $*" >&2; exit 1; }

if [ "$(uname -m)" != x86_64 ]; then
  echo "older-cpus: not run, as $(uname -m) has no kernels for instruction sets; they are x86-64's"
  exit
fi
advice="put qemu-x86_64 of QEMU 7.2 or newer into PATH; on Debian and Ubuntu: apt install --no-install-recommends qemu-user"

# 7.2 is the first release that emulates AVX2.
emulates_avx2() { "$1" --version 2>/dev/null | awk 'NR == 1 { split($3, v, "."); exit !(v[1] > 7 || (v[1] == 7 && v[2] >= 2)) }'; }

find_qemu() {
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/ballast/qemu-user qemu making package
  for qemu in "$(command -v qemu-x86_64)" "$(command -v qemu-x86_64-static)" "$cache/qemu-x86_64"; do
    if [ -n "$qemu" ] && emulates_avx2 "$qemu"; then
      echo "$qemu"
      return
    fi
  done
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || stop "the tests on older CPUs need QEMU; $advice"
  echo "older-cpus: fetching Debian's package of QEMU for the tests on older CPUs" >&2
  making=$(mktemp -d)
  trap 'rm -rf "$making"' EXIT
  fetch() { (cd "$making" && timeout --foreground 300 apt-get -qq download "$1" >>"$making/log" 2>&1); }
  # The name of the package with the static program depends on the release of Debian or Ubuntu.
  for package in qemu-user-static qemu-user; do
    fetch $package || { [ "$(id -u)" = 0 ] && timeout --foreground 300 apt-get -qq update >/dev/null 2>&1 && fetch $package; } || continue
    dpkg-deb --fsys-tarfile "$making/$package"_*.deb |
      tar -x -C "$making" --wildcards './usr/bin/qemu-x86_64*' 2>>"$making/log" || continue
    for qemu in "$making"/usr/bin/qemu-x86_64*; do
      if emulates_avx2 "$qemu"; then
        mkdir -p "$cache"
        mv "$qemu" "$cache/qemu-x86_64"
        echo "$cache/qemu-x86_64"
        return
      fi
    done
  done
  cat "$making/log" >&2
  stop "QEMU could not be fetched, or does not emulate AVX2; $advice"
}

qemu=$(find_qemu)
# The extension's own build folder, so that its objects are linked and none is compiled again.
build=$(echo build/cp"$(.venv/bin/python -c 'import sys; print(*sys.version_info[:2], sep="")')"-*)
[ -f "$build/CMakeCache.txt" ] || stop "$build has no build of the extension; run: make setup"
export PATH="$PWD/.venv/bin:$PATH"
cmake -S csrc -B "$build" -DBALLAST_TESTS=ON -DBALLAST_QEMU="$qemu" --log-level=WARNING >build/older-cpus.log ||
  { cat build/older-cpus.log; exit 1; }
ninja -C "$build" --quiet kernel_tests
ctest --test-dir "$build" --label-regex "older_cpus|kernels" --parallel "$(nproc)" --output-on-failure --no-tests=error
