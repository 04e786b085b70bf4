#!/bin/sh
# Debian's chromium and its driver, for the tests of the page: installed where this user may, named where not.
set -eu
packages="chromium chromium-driver"
missing=""
for program in chromium chromedriver; do
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
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $packages >/dev/null
