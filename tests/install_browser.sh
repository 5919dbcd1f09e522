#!/bin/sh
# Installs Debian's Chromium, unless the tests find one here already; says elsewhere what to install.
# Usage: tests/install_browser.sh PYTHON
set -eu
cd "$(dirname "$0")"
"$1" -c 'import programs; programs.find_browser()' 2> /dev/null && exit 0

if ! grep -qx ID=debian /etc/os-release 2> /dev/null; then
    names=$("$1" -c 'import programs; print(*map(repr, programs.BROWSERS), sep=", ")')
    echo "make browser: install Chromium or Google Chrome by hand, so that one of these is a program: $names" >&2
    exit 2
fi
[ "$(id -u)" = 0 ] || as_root=sudo
${as_root:-} apt-get update -qq
${as_root:-} env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium
