#!/bin/sh
# The Debian/Ubuntu packages of the one-machine Slurm: installed where this user may, named where not.
# The daemons that come with them are not used; ours run in a directory of their own.
set -eu
PATH=$PATH:/usr/sbin:/sbin
packages="slurmctld slurmd slurm-client munge slurmdbd mariadb-server"
missing=""
for program in slurmctld slurmd sbatch munged slurmdbd mariadbd; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -z "$missing" ] && exit 0

say_what() {
    echo "not installed:$missing" >&2
    echo "install once, as root: apt-get update && apt-get install -y --no-install-recommends $packages" >&2
    exit 2
}

command -v apt-get >/dev/null 2>&1 || say_what
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    say_what
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q >/dev/null
# RUNLEVEL=1 asks the packages not to start daemons of their own; nothing of the system is used.
$as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -q --no-install-recommends $packages >/dev/null
