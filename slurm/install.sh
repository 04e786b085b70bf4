#!/bin/sh
# The Debian/Ubuntu packages of the one-machine Slurm: installed where this user may, named where not.
# The daemons that come with them are not used; ours run in a directory of their own.
# RUNLEVEL=1 asks the packages not to start daemons of their own; nothing of the system is used.
exec sh "$(dirname "$0")/packages.sh" \
    "slurmctld slurmd sbatch munged slurmdbd mariadbd" \
    "slurmctld slurmd slurm-client munge slurmdbd mariadb-server" RUNLEVEL=1
