#!/bin/sh
# A framework's environment: environment.sh NAME DIRECTORY, NAME a requirements/NAME.txt.
# PYTHON is the Python that it is made of (3.11 or newer), CONSTRAINTS the versions, REQUIREMENTS
# another file than NAME.txt: how a machine with GPUs asks for its own builds of the frameworks.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=$1 directory=$2
: "${PYTHON:=python3}" "${REQUIREMENTS:=$here/$name.txt}" "${CONSTRAINTS:=$here/constraints.txt}"

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "$PYTHON is older than 3.11: make PYTHON=/path/to/python3.11 env-$name" >&2; exit 2; }
"$PYTHON" -c 'import venv, ensurepip' ||
    { echo "$PYTHON has no venv module: apt-get install python3-venv" >&2; exit 2; }
test -x "$directory/bin/python" || "$PYTHON" -m venv "$directory"
python=$(cd "$directory/bin" && pwd)/python

"$python" -m pip install --quiet --constraint "$CONSTRAINTS" --requirement "$REQUIREMENTS"
# The wrapper needs none of what the login node does: not submitit, not pydantic.
"$python" -m pip install --quiet --no-deps --editable "$here/.."
case $name in
    horovod | frameworks) sh "$here/horovod.sh" "$python" ;;
esac
"$python" "$here/check.py" "$name"
