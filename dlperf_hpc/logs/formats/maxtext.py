r"""MaxText, Google's trainer of language models on JAX.

| since | line |
|---|---|
| 2023 | ``completed step: 4711, seconds: 2.500, TFLOP/s: 31.836, loss: 2.312`` |
| 2024 | ``.. seconds: 0.200, TFLOP/s/device: 34.525, loss: 210.125`` |
| 2024-07 | ``.. TFLOP/s/device: 245.500, Tokens/s/device: 34880.125, loss: 9.500`` |
| 2024 | ``.. Tokens/s/device: 9830.400, total_weights: 786432, loss: 10.562`` |
| 2026 | ``.. loss: 10.562, lm_loss: 10.562, perplexity: 38637.375``, and more behind it |

They stand in MaxText's own issue 8, pull requests 761, 2232 and 4847, and in its documentation
(``docs/guides/monitoring_and_debugging/understand_logs_and_metrics.md``). Early versions print the
line alone, later ones through absl, whose stamp (``I0811 21:12:05.002473``) is the clock.

A step is an optimizer step, its index counts from 0, and every step prints. ``Tokens/s/device`` is
``max_target_length x per_device_batch_size x gradient_accumulation_steps`` over ``seconds``, one
step's time as the host sees it: step 0 compiles, and since the host runs ahead of the devices, the
next one or two are far too fast (2400 TFLOP/s where the chip has 459). A window that begins at
iteration 20 has none of them. Padding counts as tokens; ``total_weights`` does not count it, and is
not read. Every process prints the same line into its own output.

While the batch grows (``[Rampup Batch Size Phase], completed step: ..``) no line says what the
batch is, so that these steps are not read; nor are those after the number of slices has changed
(``live slice count: 2``), since the settings are of the first. The settings are lines of the
configuration, ``Config param max_target_length: 2048``.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Columns, Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import NUMBER, absl_stamp, one_more
from dlperf_hpc.logs.scanned import Averaging, Printed, Stamps, Unit

_RAMP_UP = "[Rampup Batch Size Phase]"
_STEP = (
    rf"completed step: (?P<index>[0-9]+), seconds: (?P<seconds>{NUMBER}), "
    rf"(?:live slice count: (?P<slices>[0-9]{{1,6}}), )?TFLOP/s(?:/device)?: {NUMBER}, "
    rf"(?:Tokens/s/device: (?P<printed>{NUMBER}), )?(?:total_weights: {NUMBER}, )?"
    r"loss: (?P<loss>[0-9]{1,15}\.[0-9]{3}(?![0-9])|[-+]?(?:nan|inf))"
)
_SETTING = re.compile(r"Config param (?P<name>[a-z_]{1,60}): (?P<value>[\w.+-]{1,80})\s*$")
_SETTINGS = {
    "max_target_length": "seq_len",
    "per_device_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulation",
    "global_batch_size_to_train_on": "global_batch",
    "num_target_devices": "devices",
    "model_name": "model",
}
_DEVICES = re.compile(r"\bNum_devices: (?P<devices>[0-9]{1,7}), shape ")
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_NOT_QUANTIZED = ("", "QuantizationType.NONE", "None")


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A line of the configuration, or the number of devices."""
    if setting := _SETTING.search(line.text):
        _read_setting(line, builder, setting["name"], setting["value"])
    elif devices := _DEVICES.search(line.text):
        builder.fact(line, "devices", devices["devices"])


def _read_ramp_up(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    if "completed step: " in line.text:
        builder.recognise(line)
        builder.note_once(line, "the batch grows, and no line says what it is: steps not read")
    else:
        read(line, builder, found)


def _read_step(line: Line, builder: ReadingBuilder, step: Groups) -> None:
    if step["slices"] != builder.state.setdefault("slices", step["slices"]):
        builder.note_once(line, "the number of slices has changed: steps not read")
        return
    if not builder.steps and step["printed"] is None:
        builder.printed = Printed(Unit.S_PER_ITERATION, averaging=Averaging.LAST_ONE)
    of_tokens = builder.printed.unit is Unit.TOKENS_PER_S
    builder.step(
        line,
        one_more(step["index"]),
        stamp=absl_stamp(line.text),
        stamps=Stamps.NO_YEAR,
        printed=step["printed"] if of_tokens else step["seconds"],
        loss=step["loss"],
    )


def _are_usual(builder: ReadingBuilder, columns: Columns) -> bool:
    """Whether the lines' speeds are in tokens, as those before, and none names its slices."""
    of_tokens = builder.printed.unit is Unit.TOKENS_PER_S
    return of_tokens and "slices" not in columns and builder.state.get("slices", "") is None


def _read_setting(line: Line, builder: ReadingBuilder, name: str, value: str) -> None:
    """A setting; a batch of a part of a sample, and the precision of a model whose weights are
    quantized, are left out."""
    if name in _SETTINGS:
        if value != "default":
            builder.fact(line, _SETTINGS[name], value.removesuffix(".0"))
    elif name == "quantization" and value not in _NOT_QUANTIZED:
        builder.fact(line, "precision", value)
        builder.state["quantized"] = True
    elif name == "dtype" and "quantized" not in builder.state:
        builder.fact(line, "precision", _PRECISIONS.get(value))


LINES = {
    "maxtext": (
        LinePattern(re.escape(_RAMP_UP), take=_read_ramp_up),
        LinePattern(_STEP, clock="absl", take=_read_step, usual=_are_usual),
        LinePattern("completed step: ", note="a step of MaxText's, but not as it prints it"),
        LinePattern(take=read),
    )
}
