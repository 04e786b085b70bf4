#!/bin/sh
# Debian's chromium and its driver, for the tests of the page: installed where this user may, named where not.
exec sh "$(dirname "$0")/../../slurm/packages.sh" "chromium chromedriver" "chromium chromium-driver"
