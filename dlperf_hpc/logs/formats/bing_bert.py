"""DeepSpeedExamples' ``bing_bert/deepspeed_train.py``: BERT pre-training.

| line | counts |
|---|---|
| ``bing_bert_progress: step=100, loss=7.5, lr=1e-05, sample_count=409600`` | optimizer steps |
| `` At step 1280, the throughput is 272.123456 Samples/s`` | micro-steps |

Rank 0 prints both. The first comes every ``--print_steps`` optimizer steps (a fork adds
``step_time=``). The second comes every 20 optimizer steps and is all ranks' samples over the time
of all micro-steps since the second before it, data loader included; so the first one has the
warm-up in it. Its step is made one of optimizer steps with ``gradient_accumulation_steps`` of the
engine's configuration dump, for a reading has one counter; where the log lacks that dump, the
reading counts micro-steps and leaves the progress lines out. What the engine's own timer prints
between them is another format's. Lines are known from the source only.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._held import hold, tell
from dlperf_hpc.logs.formats.deepspeed import config_setting
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Counter, Evidence

_FIGURE = r"[-+.0-9a-zA-Z]{1,40}"
_PROGRESS = re.compile(
    r"bing_bert_progress: step=(?P<step>[0-9]{1,18}), loss=(?P<loss>"
    rf"{_FIGURE}), lr=(?P<lr>{_FIGURE}), sample_count="
)
_THROUGHPUT = re.compile(
    rf"At step (?P<step>[0-9]{{1,18}}), the throughput is (?P<rate>{_FIGURE}) Samples/s"
)
_SEQ_LEN = re.compile(r"[( ,]max_seq_length=([0-9]{1,9})[,)]")


def read(line: Line, draft: Draft) -> None:
    """A progress or a throughput line, or one that states a setting."""
    if match := _PROGRESS.search(line.text):
        tell(draft)
        _read_progress(line, draft, match)
    elif match := _THROUGHPUT.search(line.text):
        tell(draft)
        _read_throughput(line, draft, match)
    elif "Args = Namespace(" in line.text:
        if match := _SEQ_LEN.search(line.text):
            hold(line, draft, "seq_len", match[1])
    elif setting := config_setting(line.text):
        if setting[0] == "gradient_accumulation_steps" and setting[1] != "True":
            draft.state["accumulation"] = int(setting[1])
    elif "bing_bert_progress: step=" in line.text or "Samples/s" in line.text:
        draft.note(line, "a figure of bing_bert's, but not as it prints it")


def _read_progress(line: Line, draft: Draft, match: re.Match[str]) -> None:
    if draft.counter is Counter.OPTIMIZER_STEPS:
        stamp = full_stamp(line.text[: match.start()])
        draft.step(line, match["step"], stamp=stamp, loss=match["loss"], lr=match["lr"])


def _read_throughput(line: Line, draft: Draft, match: re.Match[str]) -> None:
    step = int(match["step"])
    if draft.counter is Counter.OPTIMIZER_STEPS:
        accumulation: int = draft.state.get("accumulation", 0)
        if not accumulation:
            _count_micro_steps(line, draft)
        elif step % accumulation:
            draft.note(line, f"step {step} is no multiple of the accumulation, {accumulation}")
            return
        else:
            step //= accumulation
    before = draft.steps[-1] if draft.steps else None
    stamp = full_stamp(line.text[: match.start()])
    draft.step(line, step, stamp=stamp, printed=match["rate"])
    if before and draft.steps[-1] is not before and before[1:3] == draft.steps[-1][1:3]:
        # The progress line of the same step: one iteration, one step.
        draft.steps[-2:] = [draft.steps[-1]._replace(loss=before.loss, lr=before.lr)]


def _count_micro_steps(line: Line, draft: Draft) -> None:
    """A speed matters more than a loss."""
    if draft.steps:
        draft.note(line, "no gradient_accumulation_steps in the log: progress lines left out")
    draft.steps.clear()
    draft.counter = Counter.MICRO_STEPS


FORMAT = Format(
    name="bing_bert",
    title="DeepSpeedExamples bing_bert",
    framework="deepspeed",
    evidence=Evidence.SOURCE,
    source="deepspeedai/DeepSpeedExamples bing_bert/deepspeed_train.py",
    needles=("bing_bert_progress: step=", ", the throughput is "),
    read=read,
    facts_needles=("Args = Namespace(", "gradient_accumulation_steps .."),
)
