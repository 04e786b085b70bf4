"""``python -u -m dlperf_hpc.train.probe <directory> --token T ...``: one rank of it."""

from .rank import main

if __name__ == "__main__":
    main()
