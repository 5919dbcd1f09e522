#!/bin/sh
# Installs Debian's Chromium, unless a browser that the tests know is here already; says elsewhere what to install.
# Usage: tests/install_browser.sh PYTHON
set -eu
cd "$(dirname "$0")"
names=$("$1" -c 'import programs; print(*map(repr, programs.BROWSERS), sep=", ")')
"$1" -c 'import programs; programs.find_browser()' 2> /dev/null && exit

if ! grep -qx ID=debian /etc/os-release 2> /dev/null; then
    echo "make browser: install Chromium or Google Chrome by hand, so that one of these is a program: $names" >&2
    exit 2
fi
[ "$(id -u)" = 0 ] || as_root=sudo
${as_root:-} apt-get update -qq
${as_root:-} env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium
