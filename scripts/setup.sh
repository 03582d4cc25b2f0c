# Sourced by the scripts that build: checks that the machine has everything a build needs.
#
# If packages are missing, prints the command that installs them and exits. With UNSEEN_INSTALL=1, which the option --install of a script
# sets, installs the packages instead: on Debian and Ubuntu, as root or with sudo without a password. Sets CARGO_TARGET_DIR to a directory
# outside the clone, to build RocksDB and librdkafka once per machine, not once per clone.
#
# An argument adds requirements. `fast`: ShellCheck and Python. `tests`: also what tests need, including Java and Maven, because some
# tests start their own broker even if another one is available. `all`: also what scripts/chart needs. `bench`: a JDK and Maven.
# shellcheck shell=bash
set -euo pipefail

readonly RUST_MIN=88 # the minor version of `rust-version` in Cargo.toml
readonly JAVA_MIN=17

missing=()  # descriptions
packages=() # Debian packages

# Runs a command that checks for $1. If the command fails, records that $1 is missing and that the Debian package $2 provides it.
need() {
    local what=$1 package=$2
    shift 2
    "$@" >/dev/null 2>&1 || { missing+=("$what") && packages+=("$package"); }
}

has() {
    command -v "$1"
}

compiles() {
    echo '#include <cstdlib>' | c++ -x c++ -fsyntax-only -
}

# Looks for the library itself, because an LLVM without Clang has llvm-config and libclang-cpp, but not libclang.
has_libclang() {
    local directory
    [[ -n ${LIBCLANG_PATH:-} ]] || xcrun --find clang && return
    for directory in "$(llvm-config --libdir)" /usr/lib/llvm-*/lib /usr/lib* /usr/lib/*-linux-gnu /usr/local/lib; do
        compgen -G "$directory/libclang[.-][s0-9]*" && return
    done
    return 1
}

has_java() {
    local major
    major=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    ((${major:-0} >= JAVA_MIN))
}

has_jdk() {
    has javac && has_java
}

has_chromium() {
    has "${CHROMIUM:-chromium}"
}

has_helm() {
    has helm || has go || [[ -x /usr/local/go/bin/go ]] || compgen -G "${XDG_CACHE_HOME:-$HOME/.cache}/unseen/helm-*/helm"
}

# Prints the package of a Java that is not older than JAVA_MIN. Every Debian release has a different one.
java_package() {
    local version
    for version in 17 21 25; do
        if [[ -n $(apt-cache madison "openjdk-$version-jre-headless" 2>/dev/null) ]]; then
            echo "openjdk-$version-jre-headless"
            return
        fi
    done
    echo default-jre-headless
}

install_packages() {
    local as_root=()
    [[ -n ${UNSEEN_INSTALL:-} ]] && has apt-get >/dev/null || return 1
    if ((EUID != 0)); then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    echo "Installing ${packages[*]}"
    "${as_root[@]}" apt-get update -q
    # Only the updated package lists show which Java versions are available.
    packages=("${packages[@]/%java/$(java_package)}")
    packages=("${packages[@]/%jdk/$(java_package | sed s/jre/jdk/)}")
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}"
}

rust_version() {
    rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\).*/\1/p'
}

check_needs() {
    missing=() packages=()
    need 'a C compiler' gcc has cc
    need 'a C++ compiler' g++ compiles
    need 'make' make has make
    need 'pkg-config' pkg-config has pkg-config
    need 'libclang (development files)' libclang-dev has_libclang
    need 'OpenSSL (development files)' libssl-dev pkg-config --exists openssl
    need 'zlib (development files)' zlib1g-dev pkg-config --exists zlib
    if [[ ${1:-} == fast || ${1:-} == tests || ${1:-} == all ]]; then
        need 'ShellCheck' shellcheck has shellcheck
        need 'Python 3' python3 has python3
    fi
    if [[ ${1:-} == bench ]]; then
        need "a JDK, $JAVA_MIN or newer" jdk has_jdk
        need 'Maven' maven has mvn
    fi
    if [[ ${1:-} == tests || ${1:-} == all ]]; then
        need 'OpenSSL 3 (the command)' openssl has openssl
        need 'Node.js 18 or newer' nodejs has node
        need 'Chromium' chromium has_chromium
        need "Java $JAVA_MIN or newer" java has_java
        need 'Maven' maven has mvn
    fi
    if [[ ${1:-} == all ]]; then
        need 'Python 3 with venv' python3-venv python3 -c 'import ensurepip, venv'
        need 'Helm 3, or Go to build it' golang-go has_helm
    fi
}

[[ -d ${CARGO_HOME:-$HOME/.cargo}/bin ]] && PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH

check_needs "$@"
if ((${#missing[@]})) && install_packages; then
    check_needs "$@"
fi
version=$(rust_version || true)
if ! has cargo >/dev/null || ((${version:-0} < RUST_MIN)); then
    missing+=("Rust 1.$RUST_MIN or newer (https://rustup.rs)")
fi
if ((${#missing[@]})); then
    echo 'To build unseen, please install:' >&2
    printf '  - %s\n' "${missing[@]}" >&2
    if ((${#packages[@]})); then
        echo "On Debian and Ubuntu: apt-get install $(sed 's/\<java\>/default-jre-headless/; s/\<jdk\>/default-jdk-headless/' <<<"${packages[*]}")" >&2
        [[ -n ${UNSEEN_INSTALL:-} ]] || echo "To let the script install them: $0 --install" >&2
    fi
    exit 1
fi

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/unseen/target}

# A disk that fills up would make tests fail for no apparent reason.
readonly FREE_MIN=8 # GiB
if [[ ${1:-} == tests || ${1:-} == all ]]; then
    mkdir -p "$CARGO_TARGET_DIR"
    free=$(df -Pk "$CARGO_TARGET_DIR" | awk 'NR == 2 { print int($4 / 1024 / 1024) }')
    if ((free < FREE_MIN)); then
        echo "error: $CARGO_TARGET_DIR has $free GiB free, and the tests need $FREE_MIN GiB; free some space, or set CARGO_TARGET_DIR" >&2
        exit 1
    fi
fi

announce_long_build() {
    if ! compgen -G "$CARGO_TARGET_DIR/release/deps/librocksdb-*.rlib" >/dev/null; then
        echo 'Building RocksDB and librdkafka, which takes 28 minutes of CPU time. This happens only once.'
    fi
}
