"""On this site, will it work? What ``doctor`` and ``sweep --check`` look at, one line for each.

login    the login node: Slurm's commands, its controller, the partition, each array's script
local    the same for the local engine: mpiexec, cores
targets  what is to be tried on compute nodes, in which environment
job      the short jobs that try it, by the executors that submit sweeps
judge    what the job's ranks told, with ending, modules, mpi, gpus
examine  all of them, in order
"""
