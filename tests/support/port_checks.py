"""What can be bound to a port that TensorFlow's session reserved: ``port_checks.py RESULTS``."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from dlperf_hpc.errors import WorldError
from dlperf_hpc.train.tensorflow.strategy import reserve_port


def binds(port: int, reuse: bool) -> bool:
    with socket.socket() as other:
        if reuse:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("", port))
            other.listen()
        except OSError:
            return False
        return True


def reserves(port: int) -> bool:
    try:
        reserve_port([port]).close()
    except WorldError:
        return False
    return True


if __name__ == "__main__":
    holder = reserve_port()
    number = holder.getsockname()[1]
    found = {
        "reserved twice": reserves(number),
        "bound by another": binds(number, reuse=False),
        "by gRPC's way": binds(number, reuse=True),
    }
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
