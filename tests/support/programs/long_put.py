"""A rank that starts through PMI as MPICH does, with a line longer than Slurm's mpi/pmi2 reads."""

from __future__ import annotations

import os
import sys


def ask(line: str) -> None:
    """Send a line of PMI 1.1, and print the answer."""
    os.write(int(os.environ["PMI_FD"]), f"{line}\n".encode())
    print(os.read(int(os.environ["PMI_FD"]), 4096).decode(), end="", flush=True)


ask("cmd=init pmi_version=1 pmi_subversion=1")
ask(f"cmd=put kvsname=7.0 key=-allgather-0-0-seg-1/9 value={'A' * int(sys.argv[1])}")
sys.exit("the value came back in pieces")
