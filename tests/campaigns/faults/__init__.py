"""The fault campaign: sweeps on a real Slurm, struck on purpose, and what must hold afterwards."""
