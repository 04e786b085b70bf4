#!/bin/sh
# A framework's environment: environment.sh NAME DIRECTORY, NAME a requirements/NAME.txt.
# PYTHON is the Python that it is made of (3.11 or newer), CONSTRAINTS the versions, REQUIREMENTS
# another file than NAME.txt: how a machine with GPUs asks for its own builds of the frameworks.
# WRAPPER is a wheel of dlperf_hpc; without it the environment uses the checkout that this is in.
# With DRY_RUN the commands are printed, and not run.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=$1 directory=$2
: "${PYTHON:=python3}" "${REQUIREMENTS:=$here/$name.txt}" "${CONSTRAINTS:=$here/constraints.txt}"
case $directory in /*) ;; *) directory=$PWD/$directory ;; esac
python=$directory/bin/python

run() {
    if [ -z "${DRY_RUN:-}" ]; then
        "$@"
        return
    fi
    line=
    for word; do
        case $word in *[!A-Za-z0-9_./:=@%+,-]*) word="'$word'" ;; esac
        line="$line${line:+ }$word"
    done
    echo "$line"
}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$PYTHON is not Python 3.11 or newer: name another one, by PYTHON=/path/to/python3.11 for" \
        "make, by --python for dlperf env" >&2
    exit 2
}
"$PYTHON" -c 'import venv, ensurepip' ||
    { echo "$PYTHON has no venv module: apt-get install python3-venv" >&2; exit 2; }
test -x "$python" || run "$PYTHON" -m venv "$directory"

run "$python" -m pip install --quiet --constraint "$CONSTRAINTS" --requirement "$REQUIREMENTS"
# The wrapper needs none of what the login node does: not submitit, not pydantic.
if [ -n "${WRAPPER:-}" ]; then
    run "$python" -m pip install --quiet --no-deps --force-reinstall "$WRAPPER"
else
    run "$python" -m pip install --quiet --no-deps --editable "$here/.."
fi
case $name in
    horovod | frameworks) run sh "$here/horovod.sh" "$python" ;;
esac
run "$python" "$here/check.py" "$name"
