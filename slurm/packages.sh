#!/bin/sh
# Debian/Ubuntu packages that bring programs: installed where this user may, named where not.
#     sh packages.sh "PROGRAM..." "PACKAGE..." [VARIABLE=VALUE...]
# Nothing is done where all programs are there. The variables are those of apt-get's environment.
# Exit code 2: a program is missing, and this user may not install it.
set -eu
programs=$1 packages=$2
shift 2
PATH=$PATH:/usr/sbin:/sbin # Debian's users have no daemons in their PATH
missing=""
for program in $programs; do
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
$as_root apt-get update -q >/dev/null
$as_root env DEBIAN_FRONTEND=noninteractive "$@" \
    apt-get install -y -q --no-install-recommends $packages >/dev/null
