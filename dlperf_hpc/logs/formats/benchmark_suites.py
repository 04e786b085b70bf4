r"""Benchmark suites: MLPerf's logging, tf_cnn_benchmarks, Horovod's; and the log of this package.

mlperf
------
MLPerf's logging (MLLOG), which every submission prints, whatever it trains with.

``:::MLLOG {"namespace": "", "time_ms": 1745926244002, "event_type": "INTERVAL_END", "key":
"block_stop", "value": null, "metadata": {"file": "..", "lineno": 72, "samples_count": 768}}``

| key | what is taken |
|---|---|
| ``block_start``, ``block_stop`` with ``samples_count`` | samples trained so far, and the clock |
| ``tracked_stats``, ``{"throughput": 1.9215}`` beside a ``block_stop`` | the printed speed |
| ``tracked_stats`` within a block, with ``samples_count`` and ``step`` | samples, and the clock |
| ``train_loss`` | the loss |
| ``global_batch_size``, ``gradient_accumulation_steps``, ``max_sequence_length``, \
``submission_benchmark`` | settings |
| ``number_of_nodes``, ``accelerators_per_node`` | the topology (MLPerf HPC) |

A block is training without evaluation, so that the clock of this format **stands still between a
block's stop and the next block's start**: evaluation is not in the speed. The time from
``run_start`` to ``run_stop``, which MLPerf scores, has all evaluations in it and is never used. A
block in which an evaluation lies is counted with it, and noted.

``samples_count`` is a count of samples, over all devices; divided by the global batch it is the
number of optimizer steps. NVIDIA's callback of v5.1 has these as ``step`` at both ends of a block,
beside the ``samples_count`` of the evaluation before. A count that is no multiple of the batch is
not read, nor are logs that count epochs (``epoch_num``, ``first_epoch_num``): some programs write
samples there, others tokens. Those of the benchmark ``gpt3`` are tokens, a block's stop repeats its
start, and no ``eval_start`` is printed where ``eval_accuracy`` has the block's time in it. Where
``samples_count`` stays at 0, ``step`` of ``tracked_stats`` counts the samples, if it is there. A
``block_stop`` of NVIDIA's callback of v5.0 repeats its block's start: the samples of the next
``eval_start`` or ``block_start`` are those at that stop. The
unit of ``tracked_stats`` is nowhere stated: samples/s in all logs with ``samples_count`` that were
seen, tokens/s in GPT-3's of v3.1, which have none. The clock is held against it.

NVIDIA's BERT counts samples of packed batches as ``epoch_num``: ``{'global_steps': 29, 'eval_loss':
4.2, ..}`` behind each evaluation has the step of the ``tracked_stats`` before (samples/s, with the
evaluation before in their time). R-GAT's ``DLL <stamp> - Iteration 12 | train_acc : 0.2 % |
iteration_time : 90.74 ms | ..``, counted from 0, has the time of that iteration alone.

Rank 0 prints. Real lines were read where the READMEs of submissions quote them (the LoRA of Llama 2
70B, Llama 3.1 8B and BERT of v4.0 to v5.1), source is mlcommons/logging mlperf_logging/mllog.

tf_cnn_benchmarks
-----------------
TensorFlow's ``tf_cnn_benchmarks.py``, alone and under Horovod.

| line | what |
|---|---|
| ``Model:       resnet101``, ``Batch size:  128 global``, ``   64 per device`` | settings |
| ``Devices:     ['horovod/gpu:0', 'horovod/gpu:1']`` | every process's under Horovod |
| ``10\timages/sec: 241.6 +/- 0.2 (jitter = 0.5)\t7.880`` | step, running mean, total loss |
| ``total images/sec: 238.68`` | whole run, all processes |

Under mpirun every rank prints every line: the step lines are the process's own, the total is all
processes' together (not so where mpirun starts processes that know nothing of each other). The
mean is that of all steps after the warm-up; steps count from there, and each is an optimizer step.
An evaluation prints a total of its own: one without a step line before it is not read. Real lines
were read where documents and issues quote them.

horovod_synthetic
-----------------
Horovod's synthetic benchmarks (PyTorch, TensorFlow 1 and 2, Keras, MXNet).

| line | what |
|---|---|
| ``Model: resnet50``, ``Batch size: 32``, ``Number of GPUs: 4`` | settings, batch per process |
| ``Iter #0: 108.3 img/sec per GPU`` | one device, over a block of batches |
| ``Img/sec per GPU: 108.2 +-1.2`` | the blocks' mean and 1.96 standard deviations: not read |
| ``Total img/sec on 4 GPU(s): 432.8 +-4.9`` | that mean times the number of processes |

Rank 0 prints. An ``Iter`` is a block of ``--num-batches-per-iter`` optimizer steps (10 by
default; the number is not printed), timed by itself after the warm-up (10 batches); the Keras
variant has no warm-up and leaves ``Iter #0`` out of its total. ``CPU`` stands for ``GPU`` where
there is none. Real lines were read where documents and issues quote them.

dlperf
------
The log of this package, so that it is recognised among other programs' logs.

``dlperf 2026-11-21T14:53:35.595660Z iteration n=6 loss=10.86 ms=211.895`` (docs/log-format.md).
Such a log is then read by :mod:`dlperf_hpc.records.logfile` and not by its figures here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import COUNT, FIGURE, json_object
from dlperf_hpc.logs.scanned import OUR_OWN, Averaging, Printed, Unit

# --- mlperf

_MARK = ":::MLLOG {"
_LATEST_MS = 1e14  # no clock shows the year 5138
_SETTINGS = {
    "global_batch_size": "global_batch",
    "gradient_accumulation_steps": "accumulation",
    "max_sequence_length": "seq_len",
    "number_of_nodes": "nodes",
    "accelerators_per_node": "gpus_per_node",
}
_NO_SAMPLES = "blocks are counted in epochs, not in samples: no speed is read of them"
_EVALUATION = "an evaluation lies within a block: its time is in the speed"
_OTHER_COUNT = "a block does not begin with the samples at which the one before ended: not read"
_NOT_COUNTED = "samples_count is the same at both ends of a block, and no step is told: not read"
_NO_BATCH = "no global_batch_size stands before the first block: samples are no iterations"


_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")


def _read_event(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    event = json_object(line.text, _MARK)
    if event is None:
        builder.note(line, "MLLOG, but no JSON object that can be read")
        return
    builder.recognise(line)
    key, value, metadata = event.get("key"), event.get("value"), event.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    if key in _SETTINGS and type(value) is int:
        builder.fact(line, _SETTINGS[key], value)
    elif key == "submission_benchmark":
        if isinstance(value, str) and _NAME.fullmatch(value):
            builder.fact(line, "model", value)
    elif key in ("block_start", "block_stop"):
        _read_block(line, builder, event, metadata)
    else:
        _read_other(line, builder, event, metadata)


def _read_other(
    line: Line, builder: ReadingBuilder, event: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    key, value = event.get("key"), event.get("value")
    if key == "run_start":
        builder.state["run"] = {}
    elif key == "eval_start":
        _count_late(builder, _samples(builder, metadata))
        if _run(builder).get("open"):
            builder.note_once(line, _EVALUATION)
    elif key == "tracked_stats" and isinstance(value, dict):
        _read_stats(builder, value.get("throughput"), metadata)
        _read_inside(line, builder, event.get("time_ms"), metadata)
    elif key == "train_loss":
        _run(builder)["loss"] = value
    elif key == "eval_accuracy" and event.get("time_ms") == _run(builder).get("since"):
        builder.note_once(line, _EVALUATION)


def _samples(builder: ReadingBuilder, metadata: Mapping[str, Any]) -> Any:
    """The samples trained so far, over all devices, or None."""
    samples, step = metadata.get("samples_count"), metadata.get("step")
    batch = builder.latest("global_batch")
    if samples is None:
        return _of_tokens(builder, metadata.get("first_epoch_num", metadata.get("epoch_num")))
    return step * batch if type(step) is int and batch and step != samples else samples


def _of_tokens(builder: ReadingBuilder, count: Any) -> int | None:
    """The sequences in GPT-3's count of tokens; of other benchmarks None."""
    seq_len = builder.latest("seq_len")
    tokens = builder.latest("model") == "gpt3" and seq_len and type(count) is int
    return count // seq_len if tokens else None


def _read_stats(builder: ReadingBuilder, speed: Any, metadata: Mapping[str, Any]) -> None:
    """A block's speed; behind its stop in NVIDIA's Stable Diffusion, which counts steps."""
    last = builder.last_step()
    step = metadata.get("step")
    sequences = _of_tokens(builder, step)
    _run(builder)["printed"] = (step if sequences is None else sequences, speed)
    if last and not _run(builder).get("open") and metadata.get("step_num") == last.iteration > 0:
        builder.steps[-1] = last._replace(printed=_number(speed))


def _read_inside(
    line: Line, builder: ReadingBuilder, time_ms: Any, metadata: Mapping[str, Any]
) -> None:
    """Add what NVIDIA's callbacks print within a block: steps and samples, which must agree."""
    run, now, batch = _run(builder), _number(time_ms), builder.latest("global_batch")
    samples, step = _number(metadata.get("samples_count")), _number(metadata.get("step"))
    if not run.get("open") or now is None or samples is None or step is None or not batch:
        return
    if samples > run["samples"] and samples in (step * batch, (step + 1) * batch):
        _add(line, builder, now, int(samples))


def _run(builder: ReadingBuilder) -> dict[str, Any]:
    """What is known of the run so far: where the last block ended and how long the clock stood."""
    run: dict[str, Any] = builder.state.setdefault("run", {})
    return run


def _read_block(
    line: Line, builder: ReadingBuilder, event: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    run, begins = _run(builder), event["key"] == "block_start"
    now, samples = _number(event.get("time_ms")), _samples(builder, metadata)
    if type(samples) is not int or now is None or not 0 < now < _LATEST_MS:
        builder.note_once(line, _NO_SAMPLES)
        return
    if begins:
        first = "samples" not in run
        _count_late(builder, samples)
        samples = run["samples"] if run.get("by_step") else samples
        if not first and run["samples"] != samples:
            run["lost"] = True
            builder.note_once(line, _OTHER_COUNT)
        run["stood"] = run.get("stood", 0.0) + now - run.pop("since", now)
        run.update(open=True, samples=samples, printed=(None, None))
        if first:
            _add(line, builder, now, samples)
    elif run.get("open"):
        run.update(open=False, since=now)
        _read_stop(line, builder, now, samples)


def _read_stop(line: Line, builder: ReadingBuilder, now: float, samples: int) -> None:
    """A block's stop: where its samples are not counted, those of its ``tracked_stats``."""
    run = _run(builder)
    step, before = run.get("printed", (None,))[0], run["samples"]
    if samples == before and type(step) is int and step > before:
        run["by_step"] = True
    samples = step if run.get("by_step") and type(step) is int else samples
    if samples == before:
        run["uncounted"] = line
    else:
        run["samples"] = samples
        _add(line, builder, now, samples)


def _count_late(builder: ReadingBuilder, samples: Any) -> None:
    """Add the block that stopped with the samples of its start, if those of now are more."""
    run = _run(builder)
    stop = run.pop("uncounted", None)
    if stop is None:
        return
    before, (_, speed) = run["samples"], run.get("printed", (None, None))
    if type(samples) is int and samples > before:
        run.update(samples=samples, printed=(samples, speed))
        _add(stop, builder, run["since"], samples)
    else:
        run["lost"] = True
        builder.note_once(stop, _NOT_COUNTED)
        builder.steps[-1:] = builder.steps[-1:] if before else []


def _add(line: Line, builder: ReadingBuilder, now: float, samples: int) -> None:
    run, batch = _run(builder), builder.latest("global_batch")
    if run.get("lost"):
        return
    if batch is None:
        builder.note_once(line, _NO_BATCH)
    elif samples % batch:
        builder.note(
            line, f"{samples} samples are no multiple of the global batch {batch}: not read"
        )
    else:
        at, printed = run.pop("printed", (None, None))
        if at != samples:
            printed = None
        stamp, loss = (now - run.get("stood", 0.0)) / 1000, _number(run.pop("loss", None))
        builder.step(line, samples // batch, stamp=stamp, printed=_number(printed), loss=loss)


def _read_steps(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """The step at which NVIDIA's BERT began the evaluation that it has just finished."""
    _, speed = _run(builder).pop("printed", (None, None))
    if "samples" not in _run(builder) and speed is not None:
        if not builder.steps:
            builder.note(line, "each speed has the time of the evaluation before it", partly=True)
        builder.step(line, found["steps"], printed=_number(speed))


def _in_ms(builder: ReadingBuilder, _: object) -> None:
    builder.printed = Printed(Unit.MS_PER_ITERATION, averaging=Averaging.LAST_ONE)


def _number(value: Any) -> float | None:
    """A finite number as JSON has it; of text and truth values None."""
    if type(value) not in (int, float):
        return None
    return float(value) if math.isfinite(value) else None


# --- tf_cnn_benchmarks


def _note_mode(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.note(line, f"mode {found['mode']}: these speeds are no training's")


_TOTAL = r"total images/sec: (?P<total>[0-9]{1,15}\.[0-9]{2})(?![0-9])"
_TF_CNN = (
    LinePattern(
        rf"(?<![0-9.])(?P<iteration>{COUNT})\s{{1,16}}images/sec: (?P<printed>{FIGURE})"
        rf" \+/- {FIGURE} \(jitter = {FIGURE}\)"
        r"(?:\s{1,16}(?P<loss>[0-9]{1,12}\.[0-9]{3}|nan|inf)\b)?",
        clock="full",
    ),
    LinePattern(_TOTAL, name="total images/sec", usual=lambda builder, _: bool(builder.steps)),
    LinePattern(_TOTAL, passed_over=True),  # an evaluation's
    LinePattern("images/sec: ", note="images/sec, but not as tf_cnn_benchmarks prints it"),
    LinePattern(r"^Model: {2,12}(?P<model>\S{1,60})\s*$", held=True),
    LinePattern(r"^Batch size: {2,4}(?P<global_batch>[0-9]{1,12})(?:\.0)? global\s*$", held=True),
    LinePattern(r"^\s*(?P<batch_size>[0-9]{1,12})(?:\.0)? per device\s*$", held=True),
    LinePattern(  # the processes' devices; those of this process alone are no fact
        "^Devices: ",
        take=lambda line, builder, _: builder.hold(line, "devices", line.text.count("'horovod/")),
    ),
    LinePattern(r"^Mode: {2,12}(?!training(?!\S))(?P<mode>\S{1,40})", take=_note_mode),
)

# --- horovod_synthetic

_HOROVOD = (
    LinePattern(
        rf"Iter #(?P<index>[0-9]{{1,17}}): (?P<printed>{FIGURE}) img/sec per [A-Z]{{1,8}}\b"
    ),
    LinePattern(
        rf"Total img/sec on (?P<devices>[0-9]{{1,9}}) [A-Z]{{1,8}}\(s\): (?P<total>{FIGURE}) \+-",
        name="Total img/sec",
    ),
    LinePattern(
        r"^(?:Model: (?P<model>\S{1,60})|Batch size: (?P<batch_size>\S{1,60})"
        r"|Number of [A-Z]{1,8}s: (?P<devices>\S{1,60}))\s*$",
        held=True,
    ),
    LinePattern("img/sec", note="img/sec, but not as Horovod's benchmarks print it"),
)

# --- dlperf

_TIME = r"^dlperf (?P<full>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6})Z"
_OWN = (
    LinePattern(
        rf"{_TIME} iteration n=(?P<iteration>[0-9]+)(?: loss=(?P<loss>\S+))?"
        r"(?: ms=(?P<printed>\S+))?"
    ),
    LinePattern(rf"{_TIME} summary .* samples_per_s=(?P<total>\S+)", name="samples_per_s"),
    LinePattern(" begin format=", take=lambda line, builder, _: builder.recognise(line)),
)

LINES = {
    "mlperf": (
        LinePattern(r"^\{'global_steps': (?P<steps>[0-9]{1,12}), 'eval_loss': ", take=_read_steps),
        LinePattern(
            rf"DLL .{{20,30}} - Iteration (?P<index>{COUNT}) \| .{{0,60}}\| iteration_time : "
            rf"(?P<printed>{FIGURE}) ms +\| train_loss : (?P<loss>{FIGURE}) ",
            usual=lambda builder, _: "samples" not in _run(builder),
            then=_in_ms,
        ),
        LinePattern(r"\bDLL .{20,30} - ", passed_over=True),
        LinePattern(take=_read_event),
    ),
    "tf_cnn_benchmarks": _TF_CNN,
    "horovod_synthetic": _HOROVOD,
    OUR_OWN: _OWN,
}
