#!/bin/sh
# Runs the kernels' tests on an emulated aarch64: Debian's Python and torch for it, QEMU's user mode emulation, and a
# cross-compiler that runs natively. Needs Debian or Ubuntu on another processor; everything lies in build/arm.
# Usage: tests/arm/run.sh PYTHON [arguments of pytest]
set -eu
cd "$(dirname "$0")/../.."
python=$1
shift

missing=
command -v apt-get > /dev/null || { echo "make test-arm: it needs Debian's packages for arm64, and there is no apt-get" >&2; exit 2; }
command -v qemu-aarch64-static > /dev/null || missing="$missing qemu-user-static"
command -v aarch64-linux-gnu-g++ > /dev/null || missing="$missing g++-aarch64-linux-gnu"
[ -z "$missing" ] || { echo "make test-arm: packages are missing: apt-get install$missing" >&2; exit 2; }

here=$PWD/build/arm
qemu=$(command -v qemu-aarch64-static)

if [ ! -e "$here/complete" ]; then
    echo "make test-arm: downloading Python and torch for aarch64 into build/arm, about 250 MB, once"
    rm -rf "$here"
    mkdir -p "$here/root" "$here/bin" "$here/apt/lists/partial" "$here/apt/cache/archives/partial"
    apt() {
        apt-get -qq -oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oAPT::Sandbox::User= -oDebug::NoLocking=1 \
            -oDir::State::Lists="$here/apt/lists" -oDir::Cache="$here/apt/cache" -oDir::State::status=/dev/null "$@"
    }
    apt update
    apt -y --no-install-recommends --download-only install python3 libstdc++6
    for package in "$here"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$here/root"; done
    # Under this name, so that a test that starts sys.executable starts the emulator too.
    printf '#!/bin/sh\nexec %s -L %s -0 %s %s "$@"\n' "$qemu" "$here/root" "$here/bin/python3" \
        "$here/root/usr/bin/python3" > "$here/bin/python3"
    printf '#!/bin/sh\nPATH=%s exec aarch64-linux-gnu-g++ "$@"\n' "$PATH" > "$here/bin/c++"
    chmod +x "$here/bin/python3" "$here/bin/c++"
    version=$("$here/bin/python3" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    grep -v '^torch==' constraints.txt > "$here/constraints.txt"
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$here/site" --only-binary :all: \
        --python-version "$version" --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
        --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
        -c "$here/constraints.txt" -r tests/arm/requirements.txt
    touch "$here/complete"
fi

# What other processors have at their own width is tested there; here it is what NEON does.
exec env PATH="$here/bin" PYTHONPATH="$PWD:$here/site" XDG_CACHE_HOME="$here/cache" PYTHONDONTWRITEBYTECODE=1 \
    "$here/bin/python3" -m pytest -p no:cacheprovider --timeout 900 \
    -k "not lanes" "${@:-tests/kernels}"
