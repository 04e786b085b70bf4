"""One rank of the short job that ``doctor`` runs: what node, Python and MPI are like here.

``python -u -m dlperf_hpc.train.probe <directory> --token T ...``; the login node sends it as a
copy of this package, which has something to say even where nothing of ours is installed. It needs
the standard library and mpi4py, and torch only where there are GPUs to be joined.

protocol           how it speaks
rank               the order of things: the process's entry
node               the Python, its modules, the node's GPUs
launchers          the variables that tell a rank its place; real ranks and a Timer go by them too
own_gpus           which of the GPUs that a rank sees are its own; real ranks go by it too
collective_checks  what ranks do with each other, files to and from the login node
collective         all-reduce between the ranks, timed
collectives        sweeps of sizes of several collectives
compute            steps that a rank computes by itself
"""
