#!/usr/bin/env bash
# Makes sure that the tests of the chat page have Chromium: installs Debian's package if possible, or prints instructions.
set -euo pipefail
shell=chromium-headless-shell # Chromium without windows, in less than half of its CPU time; Ubuntu has none
! command -v "$shell" >/dev/null || exit 0
has_other=""
for name in chromium chromium-browser google-chrome; do
  ! command -v "$name" >/dev/null || has_other=yes
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  install() { DEBIAN_FRONTEND=noninteractive timeout --foreground 600 apt-get -qq install --no-install-recommends --yes "$1"; }
  if [ -z "$has_other" ] || apt-cache show "$shell" >/dev/null 2>&1; then
    echo "browser: installing Debian's $shell for the tests of the chat page"
    { timeout --foreground 300 apt-get -qq update && { install "$shell" || [ -n "$has_other" ] || install chromium; }; } >/dev/null && exit 0
  fi
fi
[ -z "$has_other" ] || exit 0
echo "browser: the tests of the chat page need Chromium; on Debian: apt install $shell; on Ubuntu: apt install chromium" >&2
exit 1
