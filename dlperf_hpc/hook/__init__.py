"""``python -m dlperf_hpc.hook train.py ...`` times a PyTorch program that knows nothing of it."""
