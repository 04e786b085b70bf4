"""Tables of the pages in docs/ that are made from the code.

``python docs/doc_tables.py`` writes them into the pages of its checkout, each between its mark
``<!-- NAME: python docs/doc_tables.py -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dlperf_hpc.logs.format import Format
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.interpret.rules import RULES, Basis, By, Mean, WindowRule, rule
from dlperf_hpc.logs.scan.search import programs
from dlperf_hpc.logs.scanned import Averaging, Counter, Printed, Unit
from dlperf_hpc.model.case import Option
from dlperf_hpc.sweepfile.declarations import Registry
from dlperf_hpc.sweepfile.readtable import GROUPS
from dlperf_hpc.train.registry import registry

_NVIDIA = "NVIDIADeepLearningExamples"
SCRIPTS: Mapping[str, str] = {
    "deepspeed-logs": "DeepSpeed/extract_deepspeed_logs.py",
    "deepspeed-gpt2": "DeepSpeed/Megatron-LM/extract_deepspeed_logs.py",
    "deepspeed-time": "DeepSpeed/bert/extract_deepspeed_logs_time.py",
    "tf2-bert-time": "TensorFlow/bert/extract_tensorflow_logs_time.py",
    "tf2-resnet-logs": "TensorFlow/resnet50v1.5/extract_tensorflow_logs.py",
    "tf2-resnet-time": "TensorFlow/resnet50v1.5/extract_tensorflow_logs_time.py",
    "ngc-tf-bert-logs": f"{_NVIDIA}/TensorFlow/LanguageModeling/BERT/extract_tensorflow_logs.py",
    "ngc-tf-bert-time": f"{_NVIDIA}/TensorFlow/LanguageModeling/BERT/"
    "extract_tensorflow_logs_time.py",
    "ngc-tf-resnet-logs": f"{_NVIDIA}/TensorFlow/Classification/ConvNets/resnet50v1.5/"
    "extract_tensorflow_logs.py",
    "ngc-tf-resnet-time": f"{_NVIDIA}/Tensorflow/Classification/ConvNets/resnet50v1.5/"
    "extract_tensorflow_logs_time.py",
    "ngc-pytorch-bert-time": f"{_NVIDIA}/PyTorch/BERT/extract_pytorch_logs_time.py",
    "ngc-pytorch-resnet-time": f"{_NVIDIA}/PyTorch/resnet50v1.5/extract_pytorch_logs_time.py",
    "pytorch-resnet-time": "PyTorch/resnet50v1.5/extract_pytorch_logs_time.py",
    "mxnet-ngc-logs": f"{_NVIDIA}/MxNet/Classification/RN50v1.5/extract_mxnet_logs.py",
    "mxnet-bert": "MxNet/BERT/extract_mxnet_logs.py",
    "insightface": "MxNet/InsightFace/extract_mxnet_logs.py",
    "partialfc": "MxNet/InsightFace/PartailFC/extract_mxnet_logs.py",
    "paddle-resnet-logs": "PaddlePaddle/resnet50v1.5/extract_paddle_logs.py",
    "paddle-resnet-time": "PaddlePaddle/resnet50v1.5/extract_paddle_logs_time.py",
    "paddle-bert": "PaddlePaddle/bert/extract_paddle_logs.py",
    "mindspore": "MindSpore/bert/extract_mindspore_logs_time.py",
    "oneflow": "OneFlow/LanguageModeling/BERT/extract_bert_result.py",
    "oneflow-cnn": "OneFlow/Classification/ConvNets/resnet50v1.5/extract_cnn_result.py",
    "oneflow-gpt": "OneFlow/LanguageModeling/GPT/extract_gpt_result.py",
    "oneflow-insightface": "OneFlow/Recognition/insightface/extract_oneflow_logs_time.py",
    "hugectr": "HugeCTR/tools/extract_hugectr_logs.py",
}
"""Named rules and the script of Oneflow-Inc/DLPerf that each stands for."""

_OF_DEVICES = (Unit.SAMPLES_PER_S, Unit.TOKENS_PER_S, Unit.UNPADDED_TOKENS_PER_S)


def formats_table() -> str:
    """Markdown: every log format, what its reader rests on, and what its figures are."""
    heads = ("format", "program", "evidence", "printed speed")
    table = _table(heads, map(_format_row, formats()))
    rare = {
        counter: ", ".join(f"`{each.name}`" for each in formats() if each.counter is counter)
        for counter in Counter
        if counter is not Counter.OPTIMIZER_STEPS
    }
    kinds = "; ".join(f"{counter.value} of {names}" for counter, names in rare.items())
    counts = f"The number of an iteration counts {kinds}; optimizer steps of all others."
    named = f"{len(programs())} programs are recognised only; `dlperf report --formats` lists them."
    return f"{len(formats())} formats:\n\n{table}\n{_wrapped(f'{counts} {named}')}"


def _wrapped(text: str) -> str:
    """A paragraph, wrapped as the pages are."""
    return "".join(f"{line}\n" for line in textwrap.wrap(text, 120, break_on_hyphens=False))


def _format_row(each: Format) -> Sequence[str]:
    speed = f"none: {each.instead}" if each.instead else _speed(each.printed)
    return f"`{each.name}`", each.title, each.evidence.value, speed


def _speed(printed: Printed) -> str:
    # A time per iteration is one time for all devices.
    scope = [printed.scope.value] if printed.unit in _OF_DEVICES else []
    averaging = {Averaging.RUNNING: ["running mean"], Averaging.LAST_ONE: ["last iteration"]}
    said = [printed.unit.value, *scope, *averaging.get(printed.averaging, [])]
    return ", ".join(said) + (f" after iteration {printed.origin}" if printed.origin else "")


def rules_table() -> str:
    """Markdown: every named rule as a general form, its script, and what was mended."""
    heads = ("rule", "window", "what it takes", "mended", "script")
    names = [name for name in RULES if name in SCRIPTS]
    return _table(heads, map(_rule_row, names))


def _rule_row(name: str) -> Sequence[str]:
    takes, _, mended = RULES[name].partition(" Mended: ")
    return f"`{name}`", _form(rule(name)), takes.rstrip("."), mended, f"`{SCRIPTS[name]}`"


def _form(made: WindowRule) -> str:
    """A rule as the general form that is most like it, and in what it differs."""
    ends = f"[{_end(made.first)}:{_end(made.last)}]"
    form = made.basis.value if made.basis is Basis.CLOCK or made.mean is Mean.TIME else "mean"
    differs = []
    if made.by is By.LINES and made.basis is Basis.CLOCK:
        ends, differs = "", [f"line {made.first} to {made.last}, from 0"]
    elif made.by is By.LINES:
        form = "lines"
    if made.skip:
        differs.append(f"lines after iteration {made.skip}")
    if made.mean is Mean.RATES:
        differs.append("mean of rates")
    if made.every_rank:
        differs.append("median over ranks first")
    if made.per_node:
        differs.append("times the nodes")
    return ", ".join([f"`{form}{ends}`", *differs])


def _end(number: int | None) -> str:
    return "" if number is None else str(number)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown, a line a row."""
    lines = [heads, ["-"] * len(heads), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def options_table() -> str:
    """Markdown: every option of a back end or a model, with who declares it."""
    return _table(("key", "of", "default", "meaning"), _option_rows(registry()))


def _option_rows(known: Registry) -> Iterator[Sequence[str]]:
    owners: dict[tuple[str, str, str], list[str]] = {}
    declared: Mapping[str, Sequence[Option]] = {
        **{name: each.options for name, each in known.backends.items()},
        **{name: each.options for name, each in known.workloads.items()},
    }
    for name, options in declared.items():
        for option in options:
            key = (option.name, json.dumps(option.default), _line(option.doc))
            owners.setdefault(key, []).append(name)
    for (option_name, default, doc), names in owners.items():
        of = ", ".join(f"`{name}`" for name in _families(names, list(declared)))
        yield f"`{option_name}`", of, f"`{default}`", doc


def _line(text: str | None) -> str:
    return " ".join((text or "").split()).rstrip(".")


def _families(names: Sequence[str], every: Sequence[str]) -> list[str]:
    """``bert-*`` in place of all names that begin so, where there are several."""
    found: dict[str, None] = {}
    for name in names:
        family = name.rpartition("-")[0]
        members = [each for each in every if family and each.startswith(f"{family}-")]
        whole = len(members) > 1 and set(members) <= set(names)
        found[f"{family}-*" if whole else name] = None
    return list(found)


def frameworks_table() -> str:
    """Markdown: every back end."""
    rows = ((f"`{name}`", _line(each.doc)) for name, each in registry().backends.items())
    return _table(("framework", "what it is"), rows)


def models_table() -> str:
    """Markdown: every model, with its sequence lengths."""
    rows = []
    for name, each in registry().workloads.items():
        tokens = f"{each.default_seq_len}, {each.max_seq_len}" if each.max_seq_len else "no tokens"
        rows.append((f"`{name}`", _line(each.doc), tokens))
    return _table(("model", "what it is", "tokens: default, at most"), rows)


def groups_table() -> str:
    """Markdown: the groups that the pattern of a line may have."""
    rows = (f"| `{name}` | {meaning} |\n" for name, meaning in GROUPS.items())
    return "".join(["| group | what it holds |\n| - | - |\n", *rows])


TABLES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "formats": ("external-logs.md", formats_table),
    "rules": ("window-rules.md", rules_table),
    "options": ("sweep-file.md", options_table),
    "frameworks": ("sweep-file.md", frameworks_table),
    "models": ("sweep-file.md", models_table),
    "groups": ("programs.md", groups_table),
}
"""The page and the maker of each table."""

COMMAND = "python docs/doc_tables.py"


def with_table(page: str, name: str) -> str:
    """The text of a page with its table as the code makes it; ValueError if it has no marks."""
    begin, end = f"<!-- {name}: {COMMAND} -->\n", "<!-- end -->"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page has no {begin.strip()} with {end} behind it")
    return f"{before}{begin}{TABLES[name][1]()}{end}{after}"


def main() -> None:
    """Write every table into its page."""
    for name, (page, _) in TABLES.items():
        path = Path(__file__).with_name(page)
        path.write_text(with_table(path.read_text(encoding="utf-8"), name), encoding="utf-8")


if __name__ == "__main__":
    main()
