"""torchtitan (pytorch/torchtitan, torchtrain until 2024-04).

| since | line, behind ``[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - `` |
|---|---|
| 2024-03 | ``step: 10  loss:  7.0123  wps: 5,762  peak_memory: 50.6%`` |
| 2024-03 | ``step: 10  loss:  7.0123  memory: 40.10GiB(50.63%)  wps: 5,762  mfu: 37.41%`` |
| 2024-11 | the same with ``tps:`` for ``wps:`` |
| 2025-02 | ``tflops: 370.02`` before ``mfu:`` |
| 2025-06 | ``grad_norm:  1.6558`` behind the loss |
| 2026-02 | five decimals of the loss; ``mfu: N/A`` with float8 |

Steps are optimizer steps done, printed at step 1 and at every tenth (``log_freq``). ``tps`` is
tokens per second of one device: those of a data-parallel rank over the time since the line before,
divided by the devices that share its batch (tensor and pipeline parallel; context parallel from
2024-10 on, when it came). It has the data loader and checkpoints in it, and in the first line
set-up and compilation. ``validate step:`` (2025-07) is no training, and the time of a validation is
not in the next line's ``tps`` but in its time stamp. Every rank prints; torchrun shows rank 0's
unless told otherwise. A pipeline's ranks without a loss print one of -1.

Settings: ``Building 1-D device mesh with ['dp_shard'], [8]`` or, since 2026, ``.. mesh with
parallelism: pp=1, dp_replicate=1, dp_shard=8, ..`` are all devices; ``local batch size 8, global
batch size 64, gradient accumulation steps 1, sequence length 2048,`` (2024-07, accumulation since
2025-06; gone in 2026-08); ``Model llama3 8B size: 8,030,261,248 total parameters``. Whole logs of
2024 to 2026 were read where repositories hold them.
"""

from __future__ import annotations

import math
import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import NUMBER, full_stamp, word

_COUNT = r"[0-9]{1,18}"
_STEP = re.compile(rf"{word('step: ')} *(?P<done>{_COUNT}) +loss: +(?P<loss>{NUMBER}) ")
_RATE = re.compile(r" [tw]ps: +(?P<rate>[0-9][0-9,]{0,24}) +(?=tflops|mfu|peak_memory)")
_MEMORY = re.compile(r" memory: +(?P<gib>[0-9]{1,9}\.[0-9]{2})GiB\(")
_MESH = re.compile(
    r"Building [0-9]-D device mesh with \[(?P<names>[a-z_', ]{2,200})\],"
    r" \[(?P<sizes>[0-9, ]{1,80})\]"
)
_PARALLELISM = re.compile(
    r"Building device mesh with parallelism: pp=(?P<pp>[0-9]{1,9}),"
    r" dp_replicate=(?P<dp_replicate>[0-9]{1,9}), dp_shard=(?P<dp_shard>[0-9]{1,9}),"
    r" cp=(?P<cp>[0-9]{1,9}), tp=(?P<tp>[0-9]{1,9}),"
)
_BATCHES = re.compile(
    r"with local batch size (?P<local>[0-9]{1,9}), global batch size (?P<batch>[0-9]{1,12}),"
    r" (?:gradient accumulation steps (?P<accumulation>[0-9]{1,9}), )?"
    r"sequence length (?P<seq_len>[0-9]{1,9}), total steps "
)
_MODEL = re.compile(
    r"\bModel (?P<model>\S{1,40} \S{1,40}) size: [0-9][0-9,]{0,24} total parameters"
)


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A step or a setting; a validation is left."""
    if "tps: " in line.text or "wps: " in line.text:
        _read_step(line, builder)
    elif match := _MESH.search(line.text):
        names = re.findall(r"[a-z_]+", match["names"])
        sizes = [int(size) for size in re.findall(r"[0-9]{1,9}", match["sizes"])]
        _hold_mesh(line, builder, dict(zip(names, sizes)) if len(names) == len(sizes) else {})
    elif match := _PARALLELISM.search(line.text):
        _hold_mesh(line, builder, {name: int(size) for name, size in match.groupdict().items()})
    elif match := _BATCHES.search(line.text):
        builder.hold(line, "global_batch", match["batch"])
        builder.hold(line, "seq_len", match["seq_len"])
        if match["accumulation"]:
            builder.hold(line, "accumulation", match["accumulation"])
        if builder.state.get("split") is False:
            builder.hold(line, "batch_size", match["local"])
    elif match := _MODEL.search(line.text):
        builder.hold(line, "model", match["model"].replace(" ", "-"))


def _read_step(line: Line, builder: ReadingBuilder) -> None:
    step = _STEP.search(line.text)
    if step is None or line.text.endswith("validate ", 0, step.start()):
        return
    rate = _RATE.search(line.text, step.end() - 1)
    if rate is None:
        builder.note(line, "a step's tokens per second, but not as torchtitan prints them")
        return
    builder.release_held()
    memory = _MEMORY.search(line.text, step.end() - 1, rate.start())
    builder.step(
        line,
        step["done"],
        stamp=full_stamp(line.text[: step.start()]),
        printed=rate["rate"].replace(",", ""),
        loss=None if step["loss"].startswith("-1.0") else step["loss"],
        memory_mb=1024 * float(memory["gib"]) if memory else None,
    )


def _hold_mesh(line: Line, builder: ReadingBuilder, sizes: dict[str, int]) -> None:
    """All devices; and whether a local batch is one device's."""
    if sizes and min(sizes.values()) > 0:
        builder.hold(line, "devices", math.prod(sizes.values()))
        builder.state["split"] = any(
            size > 1 for name, size in sizes.items() if not name.startswith(("dp", "batch"))
        )


LINES = {
    "torchtitan": (LinePattern(take=read),),
}
