#!/bin/sh
# Horovod into the environment of this Python: horovod.sh PYTHON.
#
# 0.28.1, the last release, is older than the C++17 that torch and TensorFlow ask for today: it
# compiles through compiler.sh. The wheel is kept, since that takes minutes, below DLPERF_WHEELS,
# in a directory named after everything it was compiled against. HOROVOD_* variables reach the
# build: HOROVOD_GPU_OPERATIONS=NCCL makes one for GPUs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=$1
version=0.28.1
: "${DLPERF_WHEELS:=${XDG_CACHE_HOME:-$HOME/.cache}/dlperf_hpc/wheels}"

export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1
key=$("$python" "$here/horovod_key.py" "$version" "$here/compiler.sh")
kept=$DLPERF_WHEELS/$key
if [ ! -e "$kept/done" ]; then
    for tool in cmake make g++; do
        command -v "$tool" >/dev/null ||
            { echo "no $tool: Horovod is compiled here (apt-get install cmake make g++)" >&2; exit 2; }
    done
    echo "compiling Horovod $version once for $key (about 8 minutes of one core)"
    mkdir -p "$DLPERF_WHEELS"
    fresh=$(mktemp -d "$DLPERF_WHEELS/building.XXXXXX")
    scratch=$(mktemp -d)
    trap 'rm -rf "$fresh" "$scratch"' EXIT
    trap 'exit 143' HUP INT TERM
    # The environment's bin first: CMake finds its mpic++ there. Not pip's own cache of wheels: it
    # would hand out one that was built for another torch. Nor the MAKEFLAGS of a make that calls
    # this: whatever they say, it was not meant for Horovod's, which then lacks its -j.
    PATH=$(dirname "$python"):$PATH CXX="$here/compiler.sh" MAKEFLAGS="-j$(nproc)" TMPDIR=$scratch \
        "$python" -m pip wheel --quiet --no-cache-dir --no-deps --no-build-isolation \
        --wheel-dir "$fresh" "horovod==$version"
    touch "$fresh/done"
    # Somebody else may have been faster: then theirs is as good.
    mv -T "$fresh" "$kept" 2>/dev/null || test -e "$kept/done"
fi
"$python" -m pip install --quiet --no-deps --force-reinstall "$kept"/horovod-*.whl
