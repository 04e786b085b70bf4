#!/bin/sh
# The acceptance pack on a machine with a GPU and no network (docs/gpu.md).
#   sh requirements/gpu.sh wheels DIR [PYTHON_VERSION]   where there is a network: what such a machine lacks, as wheels
#   sh requirements/gpu.sh run DIR ARGUMENT...           there: the pack, by $PYTHON, which has torch, into $GPU_OUT
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} action=$1 wheels=$2
shift 2

if [ "$action" = wheels ]; then
    needs=$("$python" - <<'EOF'
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
needs = [*project["dependencies"], *project["optional-dependencies"]["mpi"], "nvidia-ml-py"]
# Markers are read by the Python that downloads, not by the one that installs.
print("\n".join(need.partition(";")[0] for need in needs if "python_version <" not in need))
EOF
)
    rm -rf "$wheels"
    mkdir -p "$wheels"
    platforms=$(for name in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux_2_5 manylinux1; do
        printf -- '--platform %s_x86_64 ' $name; done)
    # shellcheck disable=SC2086
    printf '%s\n' "$needs" | "$python" -m pip download --quiet --only-binary=:all: --implementation cp $platforms \
        --python-version "${1:-3.12}" --constraint requirements/constraints.txt --dest "$wheels" --requirement /dev/stdin
    # An image with PyTorch has these, as transformers, pandas and matplotlib need them.
    for name in numpy pandas matplotlib pillow fonttools kiwisolver contourpy cycler pyparsing python_dateutil six \
        tzdata packaging rich pygments markdown_it_py mdurl jinja2 markupsafe; do
        rm -f "$wheels/$name"-*.whl
    done
    exec du -sm "$wheels"
fi

export PYTHONUNBUFFERED=1
set -- --out "${GPU_OUT:-gpu-$(date +%Y%m%d-%H%M%S)}" "$@"
if ! ls "$wheels"/*.whl > /dev/null 2>&1; then # this Python has all, MPI included
    exec "$python" -m dlperf_hpc.acceptance.pack "$@"
fi
# An environment beside that of torch, which stays as it is. (`pip install --target` would leave out MPICH's lib/.)
environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT
"$python" -m venv --without-pip "$environment"
site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib")); print(sysconfig.get_path("platlib"))' > "$site/torch.pth"
"$python" -m pip --python "$environment/bin/python" install --quiet --no-index --no-deps "$wheels"/*.whl ||
    echo "$wheels does not fit $("$python" -V): what needs these wheels will say so"
PATH="$environment/bin:$PATH" "$environment/bin/python" -m dlperf_hpc.acceptance.pack "$@"
