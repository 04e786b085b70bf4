#!/bin/sh
# tests/slurm on the Slurm and the Python of another Debian, which is unpacked into a directory.
#     sh slurm/newer.sh SUITE DIR [PYTEST'S ARGUMENTS]      as root; make slurm-newer SUITE=trixie
# SUITE is a release of Debian: trixie, forky, testing... It comes from the mirror that apt of this machine
# has, or from MIRROR=URL. pip in there has this machine's /etc/pip.conf, PIP_* and certificates.
# All mounts and processes are in namespaces of their own: they end with this script, killed or not. DIR stays
# for the next time; `rm -rf DIR` is safe whenever this script does not run.
set -eu
GB=5       # of disk; 3 are used in the end
PACKAGES="slurmctld slurmd slurm-client munge slurmdbd mariadb-server sackd python3-venv python3-torch gcc libc6-dev"
# Debian 12's client library of MariaDB: with that of 11.8, slurmdbd ends as it starts ("Number of columns in
# result (=1) set execeeds maxmimum allowed number of columns (=0)").
LIBRARY_SUITE=bookworm
CERTIFICATES=/etc/ssl/certs/ca-certificates.crt

stop() {
    echo "newer.sh: $1" >&2
    exit 2
}

# --- 1. on this machine: can it work? Then all else happens in namespaces ---------------------------------
outside() {
    suite=$1 root=$2
    shift 2
    [ "$(id -u)" = 0 ] || stop "must be root, to mount and to unpack a Debian: sudo make slurm-newer"
    for program in debootstrap unshare setpriv pivot_root git; do
        command -v "$program" >/dev/null || stop "$program is missing: apt-get install debootstrap util-linux git"
    done
    mkdir -p "$root"
    root=$(cd "$root" && pwd -P)
    [ -n "$(ls -A "$root")" ] || echo "$suite" >"$root/.suite"
    [ "$(cat "$root/.suite" 2>&1)" = "$suite" ] || stop "$root is not empty, and not a $suite of this script: name another"
    exec 9<"$root/.suite"
    flock -n 9 || stop "$root is in use by another newer.sh: wait for its end, or name another"
    free=$(($(df --output=avail -k "$root" | tail -1) / 1048576))
    [ -e "$root/.packages" ] || [ "$free" -ge $GB ] || stop "$root has $free GB free, $GB are needed: name another"
    echo "newer.sh: Debian $suite in $root: about 3 GB and 5 minutes the first time; then the tests, 17 minutes or more on 2 cores" >&2

    inner=""
    trap '[ -z "$inner" ] || kill -KILL "$inner" 2>/dev/null || true' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    # The kernel kills the second when the first has gone, and all processes in there with the second.
    setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child=KILL \
        sh "$0" --unpack "$suite" "$root" "$@" &
    inner=$!
    wait "$inner"
}

# Debian's own archive among the sources of apt, whatever its mirror is.
mirror() {
    [ -z "${MIRROR:-}" ] || { echo "$MIRROR" && return; }
    apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' | sed -n 's/ Debian Debian$//p' | head -n 1
}

# --- 2. in a mount namespace, as process 1: Debian, a copy of the checkout, and / is DIR --------------------
unpack() {
    suite=$1 root=$2
    shift 2
    if [ ! -e "$root/.unpacked" ]; then
        from=$(mirror)
        [ -n "$from" ] || stop "apt has no archive of Debian (or needs apt-get update): name one, MIRROR=URL"
        scripts=/usr/share/debootstrap/scripts script=""
        [ -e "$scripts/$suite" ] || script=$scripts/sid # a debootstrap that is older than the suite
        debootstrap --variant=minbase "$suite" "$root" "$from" $script >"$root.log" 2>&1 ||
            stop "debootstrap $suite failed: $(tail -n 3 "$root.log"); remove $root and try again"
        rm -f "$root.log"
        apt-config dump | grep -E '^Acquire::(https?|Check-|Retries)' >"$root/etc/apt/apt.conf.d/99here" || true
        touch "$root/.unpacked"
    fi
    rm -rf "$root/dlperf"
    mkdir -p "$root/dlperf/dlperf_hpc/bundled" "$root/.outside"
    (cd "$(dirname "$0")/.." && git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf -) |
        tar -xf - -C "$root/dlperf"
    git -C "$(dirname "$0")" describe --always --dirty=+changes --abbrev=12 >"$root/dlperf/dlperf_hpc/bundled/commit"
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
        [ ! -e $file ] || cp -L $file "$root$file"
    done
    cp -L $CERTIFICATES "$root/certificates" 2>/dev/null || true # an authority of this network may be in it

    mount --bind "$root" "$root" # onebox's nodes mount, which needs a / that is a mount
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys" # with cgroup
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/run"
    rm -rf "$root/tmp"
    mkdir -m 1777 "$root/tmp"
    cd "$root"
    pivot_root . .outside # not chroot, in which users may have no namespaces
    umount -l /.outside
    unset TMPDIR VIRTUAL_ENV PYTHONPATH
    export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 PIP_NO_CACHE_DIR=1
    cd /dlperf
    sh slurm/newer.sh --inside "$@" # no exec: process 1 collects orphans
}

# --- 3. in there: packages, Python, tests -----------------------------------------------------------------
get_packages() {
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # no daemon is started
    from=$(sed -n 's/^deb \(\[.*\] \)*\([^ ]*\) .*/\2/p' /etc/apt/sources.list | head -n 1)
    echo "deb $from $LIBRARY_SUITE main" >/etc/apt/sources.list.d/library.list
    apt-get update -q
    apt-get install -y -q --no-install-recommends $PACKAGES
    cd /tmp
    apt-get download -q "libmariadb3/$LIBRARY_SUITE"
    dpkg-deb -x libmariadb3_*.deb library
    cp library/usr/lib/*/libmariadb.so.3 "$(dirname "$(ls /usr/lib/*/libmariadb.so.3)")"
    cd /dlperf
    apt-get clean
    touch /.packages
}

MADE_OF="pyproject.toml requirements/constraints.txt slurm/newer.sh"
get_python() {
    rm -rf /venv
    [ ! -e /certificates ] || cp /certificates $CERTIFICATES # after the package that makes it
    python3 -m venv /venv
    # torch is Debian's, which wants its own sympy; h5py waits for TensorFlow there, and has no wheel for Python 3.14 yet.
    grep -vE '^(torch|sympy|h5py)==' requirements/constraints.txt >/tmp/constraints.txt
    pip="/venv/bin/python -m pip install --quiet --constraint /tmp/constraints.txt"
    ln -s /usr/lib/python3/dist-packages/torch* /usr/lib/python3/dist-packages/functorch \
        "$(/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    # What it and accelerate need, and no torch with 5 GB of CUDA in its place.
    /venv/bin/python -c 'from importlib.metadata import version as v; print("torch==" + v("torch"))' >>/tmp/constraints.txt
    $pip --editable '.[mpi,data]' pytest pytest-timeout pytest-xdist hypothesis torch accelerate nvidia-ml-py
    cat $MADE_OF >/venv/made-of
}

# Debian's torch has no libuv; torchrun over two nodes (a static rendezvous) asks for it, whatever USE_LIBUV says.
TORCHRUN=tests/slurm/test_slurm_programs.py::test_torchrun_accelerate_mpi_and_c_beside_ddp
# Last, a row for the table of slurm/README.md.
inside() {
    [ -e /.packages ] || get_packages
    cat $MADE_OF | cmp -s - /venv/made-of || get_python
    export OMP_NUM_THREADS=1
    set -- --deselect "$TORCHRUN" -n 3 --dist loadfile -m "not long" -p no:cacheprovider -vv -rf --tb=short -o testpaths=tests/slurm "$@"
    { /venv/bin/python -m pytest "$@" 2>&1 && echo 0 >/tmp/code || echo 1 >/tmp/code; } | tee /tmp/log
    torch=$(/venv/bin/python -c 'import torch; print(torch.__version__)')
    echo "| $(dpkg-query --show --showformat '${source:Upstream-Version}' slurmctld) | Debian $(cat /.suite) | $(python3 -V | sed 's/.* //') | $torch |" \
        "$(tail -n 1 /tmp/log) | $(cat dlperf_hpc/bundled/commit) |"
    exit "$(cat /tmp/code)"
}

case ${1:-} in
--unpack) shift && unpack "$@" ;;
--inside) shift && inside "$@" ;;
*)
    [ $# -ge 2 ] || stop "write sh slurm/newer.sh SUITE DIR [PYTEST'S ARGUMENTS], e.g. trixie /var/tmp/trixie"
    outside "$@"
    ;;
esac
