r"""MLPerf's logging (MLLOG), which every submission prints, whatever it trains with.

``:::MLLOG {"namespace": "", "time_ms": 1745926244002, "event_type": "INTERVAL_END", "key":
"block_stop", "value": null, "metadata": {"file": "..", "lineno": 72, "samples_count": 768}}``

| key | what is taken |
|---|---|
| ``block_start``, ``block_stop`` with ``samples_count`` | samples trained so far, and the clock |
| ``tracked_stats``, ``{"throughput": 1.9215}`` just before a ``block_stop`` | the printed speed |
| ``train_loss`` | the loss |
| ``global_batch_size``, ``gradient_accumulation_steps``, ``max_sequence_length``, \
``submission_benchmark`` | settings |
| ``number_of_nodes``, ``accelerators_per_node`` | the topology (MLPerf HPC) |

A block is training without evaluation, so that the clock of this format **stands still between a
block's stop and the next block's start**: evaluation is not in the speed. The time from
``run_start`` to ``run_stop``, which MLPerf scores, has all evaluations in it and is never used. A
block in which an evaluation lies is counted with it, and noted.

``samples_count`` is a count of samples, over all devices; divided by the global batch it is the
number of optimizer steps. A count that is no multiple of it is not read, nor are logs that count
epochs (``epoch_num``, ``first_epoch_num``): some programs write samples there, others tokens. The
unit of ``tracked_stats`` is nowhere stated: samples/s in all logs with ``samples_count`` that were
seen, tokens/s in GPT-3's of v3.1, which have none. The clock is held against it.

Rank 0 prints. Real lines were read where the READMEs of submissions quote them (the LoRA of Llama 2
70B, Llama 3.1 8B and BERT of v4.0 to v5.1), source is mlcommons/logging mlperf_logging/mllog.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder

_MARK = ":::MLLOG {"
_LATEST_MS = 1e14  # no clock shows the year 5138
_MOST_DIGITS = 18  # of a whole number
_SETTINGS = {
    "global_batch_size": "global_batch",
    "gradient_accumulation_steps": "accumulation",
    "max_sequence_length": "seq_len",
    "number_of_nodes": "nodes",
    "accelerators_per_node": "gpus_per_node",
}
_NO_SAMPLES = "blocks are counted in epochs, not in samples: no speed is read"
_EVALUATION = "an evaluation lies within a block: its time is in the speed"
_OTHER_COUNT = "a block does not begin with the samples at which the one before ended: not read"
_NO_BATCH = "no global_batch_size stands before the first block: samples are no iterations"


def _bounded(digits: str) -> float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")
_DECODER = json.JSONDecoder(parse_int=_bounded)


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """One event."""
    event = _decoded(line.text)
    if event is None:
        builder.note(line, "MLLOG, but no JSON object that can be read")
        return
    builder.recognise(line)
    key, value = event.get("key"), event.get("value")
    metadata = event.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if key in _SETTINGS:
        if type(value) is int:
            builder.fact(line, _SETTINGS[key], value)
    elif key == "submission_benchmark":
        if isinstance(value, str) and _NAME.fullmatch(value):
            builder.fact(line, "model", value)
    elif key == "run_start":
        builder.state["run"] = {}
    elif key in ("block_start", "block_stop"):
        _read_block(line, builder, event, metadata)
    elif key == "eval_start" and _run(builder).get("open"):
        _note_once(line, builder, _EVALUATION)
    elif key == "tracked_stats" and isinstance(value, dict):
        _run(builder)["printed"] = (metadata.get("step"), value.get("throughput"))
    elif key == "train_loss":
        _run(builder)["loss"] = value


def _decoded(text: str) -> dict[str, Any] | None:
    start = text.find(_MARK)
    try:
        event, _ = _DECODER.raw_decode(text, start + len(_MARK) - 1)
    except (ValueError, RecursionError):
        return None
    return event if start >= 0 and isinstance(event, dict) else None


def _run(builder: ReadingBuilder) -> dict[str, Any]:
    """What is known of the run so far: where the last block ended and how long the clock stood."""
    run: dict[str, Any] = builder.state.setdefault("run", {})
    return run


def _read_block(
    line: Line, builder: ReadingBuilder, event: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    """An end of a block: the first one's start, and every stop."""
    run, begins = _run(builder), event["key"] == "block_start"
    now, samples = _number(event.get("time_ms")), metadata.get("samples_count")
    if type(samples) is not int or now is None or not 0 < now < _LATEST_MS:
        _note_once(line, builder, _NO_SAMPLES)
        return
    if begins:
        first = "samples" not in run
        if not first and run["samples"] != samples:
            run["lost"] = True
            _note_once(line, builder, _OTHER_COUNT)
        run["stood"] = run.get("stood", 0.0) + (now - run["since"] if "since" in run else 0.0)
        run.update(open=True, samples=samples, printed=(None, None))
        run.pop("since", None)
        if first:
            _add(line, builder, now, samples)
    elif run.get("open"):
        run.update(open=False, samples=samples, since=now)
        _add(line, builder, now, samples)


def _add(line: Line, builder: ReadingBuilder, now: float, samples: int) -> None:
    """The iteration that is done at ``now`` (ms)."""
    run, batch = _run(builder), builder.latest("global_batch")
    if run.get("lost"):
        return
    if batch is None:
        _note_once(line, builder, _NO_BATCH)
    elif samples % batch:
        builder.note(
            line, f"{samples} samples are no multiple of the global batch {batch}: not read"
        )
    else:
        at, printed = run.pop("printed", (None, None))
        builder.step(
            line,
            samples // batch,
            stamp=(now - run.get("stood", 0.0)) / 1000,
            printed=_number(printed) if at == samples else None,
            loss=_number(run.pop("loss", None)),
        )


def _number(value: Any) -> float | None:
    """A finite number as JSON has it; of text and truth values None."""
    if type(value) not in (int, float):
        return None
    return float(value) if math.isfinite(value) else None


def _note_once(line: Line, builder: ReadingBuilder, text: str) -> None:
    if text not in builder.state.setdefault("noted", []):
        builder.state["noted"].append(text)
        builder.note(line, text)


LINES = {
    "mlperf": (LinePattern(take=read),),
}
