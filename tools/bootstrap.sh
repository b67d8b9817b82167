#!/bin/sh
# Make a virtual environment from the lock files, or name what this machine lacks.
# Usage: tools/bootstrap.sh check-java | python-fault PYTHON | venv DIR [COMMAND ...]
# COMMAND needs the build tools alone: it runs while pip downloads and unpacks the other packages.
set -eu

fail() {
    printf '\nkafkabuf cannot be set up: %s\n\n' "$1" >&2
    exit 1
}

check_system() {
    case $(uname -s) in
    Linux | Darwin) ;;
    *) fail "it runs on Linux and macOS; this is $(uname -s)." ;;
    esac
}

check_java() {
    java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    command -v "$java" >/dev/null 2>&1 || fail "no Java found (looked for $java). Spark and Apache Kafka need a Java
runtime, version 17 or newer. Debian, Ubuntu: apt install openjdk-17-jre-headless. Fedora: dnf install
java-17-openjdk-headless. If it is installed elsewhere, point JAVA_HOME at it."
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ] || fail "$java is version ${version:-unknown}; version 17 or newer is needed. Install one,
or point JAVA_HOME at it."
}

# Prints why an interpreter cannot be used, and nothing for a usable interpreter.
python_fault() {
    "$1" - <<'PYTHON' 2>/dev/null || echo "does not run"
import os, sys, sysconfig
found = "%d.%d" % sys.version_info[:2]
if sys.version_info < (3, 11):
    print("is Python", found)
else:
    try:
        import ensurepip, venv
    except ImportError:
        print("cannot make virtual environments (Debian, Ubuntu: apt install python%s-venv)" % found)
    else:
        if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
            print("has no C headers (Debian, Ubuntu: apt install python%s-dev; Fedora: dnf install python3-devel)" % found)
PYTHON
}

find_python() {
    faults=
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        fault=$(python_fault "$candidate")
        if [ -z "$fault" ]; then
            echo "$candidate"
            return
        fi
        faults="$faults
  $(command -v "$candidate") $fault"
    done
    fail "Python 3.11 or newer is needed, with venv and C headers.${faults:-
  There is no ${PYTHON:-python3 on the PATH}.}
Install one, or say where it is: make PYTHON=/path/to/python3"
}

check_compiler() {
    cc=${CC:-$("$1" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')}
    cc=${cc%% *}
    command -v "$cc" >/dev/null 2>&1 || fail "no C compiler found (looked for $cc). Debian, Ubuntu: apt install
build-essential. Fedora: dnf install gcc. If it is installed under another name, set CC."
}

make_venv() {
    check_system
    python=$(find_python)
    check_compiler "$python"
    echo "kafkabuf: making $1 with $("$python" --version) and installing the lock file (the first time takes minutes) ..."
    "$python" -m venv --clear "$1"
    quiet=--quiet
    if [ -t 1 ]; then quiet=; fi # on a terminal pip shows its progress
    # The build tools come first: pip then builds source packages with these versions, and not with the newest ones.
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.lock
    beside=
    if [ $# -gt 1 ]; then
        (shift && exec "$@" >/dev/null 2>&1) & # `make build` runs it again, and shows what is wrong
        beside=$!
        trap 'kill "$beside" 2>/dev/null || true' EXIT
        trap 'exit 130' INT TERM
    fi
    # pip makes a wheel of PySpark's archive, 450 MB, only to unpack it: to compress it would take as long as the rest.
    stored=$(cd "$1" && pwd)/stored.cfg
    printf '[bdist_wheel]\ncompression = stored\n' >"$stored"
    DIST_EXTRA_CONFIG=$stored "$1/bin/python" -m pip install $quiet --require-hashes --no-build-isolation \
        -r requirements/test.lock
    if [ -n "$beside" ]; then wait "$beside" || true; fi
    trap - EXIT INT TERM
}

case ${1:-} in
check-java) check_java ;;
python-fault) python_fault "$2" ;;
venv) shift && make_venv "$@" ;;
*) fail "usage: tools/bootstrap.sh check-java | python-fault PYTHON | venv DIR [COMMAND ...]" ;;
esac
