"""One rank of the short job that ``doctor`` runs: what node, Python and MPI are like here.

``python -u -m dlperf_hpc.train.probe <directory> --token T ...``; the login node sends it as a
copy of this package, which has something to say even where nothing of ours is installed. It needs
the standard library and mpi4py, and torch only where there are GPUs to be joined.

__main__   the order of things, how a rank speaks, what ranks do with each other and with the
           login node
node       the variables that tell a rank its place, the Python and its modules, the node's GPUs,
           which of them are a rank's own (real ranks and a Timer go by these too), steps that a
           rank computes by itself
bandwidth  all-reduce and others between the ranks, timed
"""

MARK = "dlperf-probe"
"""What each line of a rank begins with."""
