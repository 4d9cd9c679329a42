#!/usr/bin/env bash
# Prints the folder of prometheus and promtool for the tests of dashboards and alerts: those in PATH, or Debian's
# package unpacked below ~/.cache/ballast, which needs no root. On other systems it prints instructions.
# With --cached nothing is fetched: missing programs are an error.
set -euo pipefail

stop() { echo "prometheus: $*" >&2; exit 1; }

if found=$(command -v prometheus) && command -v promtool >/dev/null; then
  echo "${found%/*}"
  exit
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ballast/prometheus
if [ ! -x "$cache/usr/bin/promtool" ]; then
  [ "${1:-}" != --cached ] || stop "the tests of dashboards and alerts need Prometheus; run: make prometheus"
  advice="put prometheus and promtool into PATH; on Debian and Ubuntu: apt install --no-install-recommends prometheus"
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || stop "$advice"
  making=$(mktemp -d)
  trap 'rm -rf "$making"' EXIT
  fetch() { (cd "$making" && timeout --foreground 300 apt-get -qq download prometheus >"$making/log" 2>&1); }
  echo "prometheus: fetching Debian's package for the tests of dashboards and alerts" >&2
  fetch || { [ "$(id -u)" = 0 ] && timeout --foreground 300 apt-get -qq update >/dev/null 2>&1 && fetch; } ||
    { cat "$making/log" >&2; stop "Debian's package could not be fetched; $advice"; }
  dpkg-deb --extract "$making"/prometheus_*.deb "$making/tree"
  mkdir -p "${cache%/*}"
  rm -rf "$cache"
  mv "$making/tree" "$cache"
fi
echo "$cache/usr/bin"
