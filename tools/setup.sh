#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing on this machine, and nothing else: Debian or Ubuntu packages with apt
# (as root, or with sudo), and a Python environment at $VENV (build/venv) with pip.
#
#   tools/setup.sh build    what building and `make demo` need
#   tools/setup.sh all      also what lint, tests and fuzzing need
#
# Each thing is looked for first, so a second run installs nothing and takes a moment.
set -euo pipefail
cd "$(dirname "$0")/.."

stage=${1:-all}
venv=${VENV:-build/venv}
requirements=tools/requirements.txt
peers=tools/peers.txt
missing=()
apt_updated=

say() {
    echo "setup: $*"
}

die() {
    echo "setup: $*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "'$*' needs root: run it as root, or install sudo"
    fi
}

# need PACKAGE TEST...: notes the package as missing unless the test succeeds.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

has() {
    command -v "$1"
}

has_header() {
    echo "#include <$1>" | "${CC:-gcc}" -E -o /dev/null -
}

# again WORDS...: the command, a few times: networks and mirrors fail for moments, and so does a
# package manager that somebody else is using just now.
again() {
    local attempt
    for attempt in 1 2 3 4; do
        if "$@"; then
            return 0
        fi
        [ "$attempt" -lt 4 ] || break
        say "that failed; trying again in $((attempt * 5)) s: $*"
        sleep $((attempt * 5))
    done
    return 1
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=5 \
        -o DPkg::Lock::Timeout=300 "$@"
}

apt_packages() {
    apt_get -y --no-install-recommends install "$@" >/dev/null && return
    # The lists may name what mirrors do not have any more.
    apt_get update || true
    return 1
}

apt_install() {
    [ $# -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        die "this machine has no apt-get; install by hand what corresponds to: $*"
    if [ -z "$apt_updated" ]; then
        say "apt-get update"
        again apt_get update ||
            say "apt-get update had errors; trying with the lists there are"
        apt_updated=yes
    fi
    say "apt-get install $*"
    again apt_packages "$@"
}

install_missing() {
    apt_install "${missing[@]}"
    missing=()
}

setup_build() {
    need gcc has "${CC:-gcc}"
    need libc6-dev test -e /usr/include/stdio.h
    need make has make
    need binutils has ar
    need pkg-config has pkg-config
    need python3 has python3
    need procps has ps
    need util-linux has setpriv
    need attr has getfattr
    need fuse3 has fusermount3
    install_missing # the tests below use these
    need libfuse3-dev pkg-config --exists fuse3
    need libjansson-dev pkg-config --exists jansson
    need libxxhash-dev pkg-config --exists libxxhash
    need libzstd-dev pkg-config --exists libzstd
    need libcurl4-openssl-dev pkg-config --exists libcurl
    need libssl-dev pkg-config --exists libcrypto
    need libexpat1-dev pkg-config --exists expat
    need uthash-dev has_header uthash.h
    need libcurl4-openssl-dev has_header curl/curl.h
    need libssl-dev has_header openssl/hmac.h
    need libexpat1-dev has_header expat.h
    install_missing
    if [ ! -e /dev/fuse ]; then
        as_root modprobe fuse 2>/dev/null || true
        if [ ! -e /dev/fuse ]; then
            say "making /dev/fuse"
            { as_root mknod /dev/fuse c 10 229 && as_root chmod 666 /dev/fuse; } ||
                say "there is no /dev/fuse here: building works, mounting will not"
        fi
    fi
}

# The compiler's runtime with libFuzzer comes in a package that is named after clang's version.
has_libfuzzer() {
    [ -e "$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a")" ] ||
        [ -e "$(clang -print-file-name=libclang_rt.fuzzer.a)" ]
}

libfuzzer_package() {
    local major
    major=$(clang -dumpversion | cut -d. -f1)
    if [ "$major" -ge 14 ]; then
        echo "libclang-rt-$major-dev"
    else
        echo "libclang-common-$major-dev"
    fi
}

setup_tools() {
    need libcmocka-dev pkg-config --exists cmocka
    need clang has clang
    need universal-ctags sh -c 'ctags --version | grep -q Universal'
    need shellcheck has shellcheck
    need openssl has openssl
    install_missing
    # The tests run a server of their own; the one that the package starts is not wanted.
    if ! has nginx >/dev/null && ! [ -x /usr/sbin/nginx ]; then
        apt_install nginx-light
        as_root service nginx stop >/dev/null 2>&1 || true
    fi
    has_libfuzzer || apt_install "$(libfuzzer_package)"
}

# A Python that can make an environment: the one in PATH, or the distribution's.
find_python() {
    local python
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    apt_install python3-venv >&2
    echo /usr/bin/python3
}

pip_install() {
    again "$venv/bin/python" -m pip install -qq --disable-pip-version-check --retries 10 \
        --timeout 60 "$@"
}

setup_python() {
    local stamp="$venv/.requirements" want
    want=$(sha256sum <"$requirements")
    if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && "$venv/bin/python" -c '' 2>/dev/null; then
        return
    fi
    say "Python environment at $venv: $(sed '/^#/d' "$requirements" | tr '\n' ' ')"
    mkdir -p "$(dirname "$venv")"
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$(find_python)" -m venv --clear "$venv"
    if ! pip_install -r "$requirements"; then
        say "not everything could be had in that version; trying with any torch from 2.5 on"
        sed 's/^torch==.*/torch>=2.5/' "$requirements" >"$venv/requirements.txt"
        pip_install -r "$venv/requirements.txt"
    fi
    echo "$want" >"$stamp"
}

# Tests of these are skipped where they cannot be had: not every Python has wheels of them.
setup_peers() {
    local stamp="$venv/.peers" want
    want=$(sha256sum <"$peers")
    [ "$(cat "$stamp" 2>/dev/null)" != "$want" ] || return 0
    rm -rf "$venv/peers"
    pip_install --no-deps --ignore-requires-python --target "$venv/peers" -r "$peers" ||
        say "not all of $peers can be had: tests of those formats are skipped"
    echo "$want" >"$stamp"
}

case $stage in
build)
    setup_build
    ;;
all)
    setup_build
    setup_tools
    setup_python
    setup_peers
    ;;
*)
    die "usage: tools/setup.sh build|all"
    ;;
esac
