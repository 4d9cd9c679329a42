#!/usr/bin/env bash
# Makes sure that the tests of the chat page have Chromium: installs Debian's package if possible, or says what to do.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  ! command -v "$name" >/dev/null || exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "browser: installing Debian's chromium for the tests of the chat page"
  { timeout --foreground 300 apt-get -qq update && DEBIAN_FRONTEND=noninteractive timeout --foreground 600 \
    apt-get -qq install --no-install-recommends --yes chromium; } >/dev/null && exit 0
fi
echo "browser: the tests of the chat page need Chromium; on Debian and Ubuntu: apt install chromium" >&2
exit 1
