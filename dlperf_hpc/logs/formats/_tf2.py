"""What TensorFlow 2 itself logs of the devices it runs on.

``Using MirroredStrategy with devices ('/job:localhost/replica:0/task:0/device:GPU:0',)`` names one
host's devices; of several hosts, ``MultiWorkerMirroredStrategy with cluster_spec = {...}, ...
num_workers = 2, local_devices = (...)`` tells the number too. Real: the ResNet-50 logs.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Line

NEEDLES = ("MirroredStrategy with ",)
_WORKERS = re.compile(r"num_workers = ([0-9]{1,9}),")


def strategy_facts(line: Line, draft: Draft) -> None:
    """Nodes and GPUs per node, as far as the line tells them."""
    gpus = line.text.count("/device:GPU:")
    workers = _WORKERS.search(line.text)
    if workers is not None:
        draft.fact(line, "nodes", workers[1])
    elif "/job:localhost/" in line.text and gpus:
        draft.fact(line, "nodes", 1)
    draft.fact(line, "gpus_per_node", gpus)
