"""dlperf_hpc: how fast does deep learning train on this machine, and how does it scale?"""

__version__ = "0.1.0"
