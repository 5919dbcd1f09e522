#!/bin/sh
# Installs Debian's Chromium and Firefox, unless the tests find them here already; says elsewhere what to install.
# Usage: tests/install_browsers.sh PYTHON
set -eu
cd "$(dirname "$0")"
missing=
"$1" -c 'import programs; programs.find_browser()' 2> /dev/null || missing="chromium"
"$1" -c 'import programs; programs.find_firefox()' 2> /dev/null || missing="$missing firefox-esr"
[ "$missing" ] || exit 0

if ! grep -qx ID=debian /etc/os-release 2> /dev/null; then
    names=$("$1" -c 'import programs; print(*map(repr, (*programs.BROWSERS, "firefox")), sep=", ")')
    echo "make browser: install Chromium or Google Chrome, and Firefox by hand, so that these are programs: $names" >&2
    exit 2
fi
[ "$(id -u)" = 0 ] || as_root=sudo
${as_root:-} apt-get update -qq
${as_root:-} env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $missing
