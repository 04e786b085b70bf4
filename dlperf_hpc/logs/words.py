"""The words of one component of a log's path: settings, tags, and what means nothing.

Only whole tokens are words: ``b32user`` is no batch size. DLPerf and those who publish beside it
(NVIDIA, Paddle) write ``b``, ``bs`` and ``bz`` for the batch of one GPU and ``gpu32`` for all GPUs,
Megatron ``mbs`` for that of one replica.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

# A dot belongs to a token where it is a decimal point: v1.5, 1.3b.
_TOKEN = re.compile(r"[^\W_]+(?:(?<=[0-9])\.(?=[0-9])[^\W_]+)*")
_NUMBERED = re.compile(r"([a-z]+)([0-9]+)")
_TOPOLOGY = re.compile(r"([0-9]+)n([0-9]+)[gd]|n([0-9]+)c([0-9]+)")
_COUNTS = {
    **dict.fromkeys(("b", "bs", "bz", "bsz", "batchsize"), ("batch_size", 10**7)),
    **dict.fromkeys(("gbs", "gbz", "globalbatchsize"), ("global_batch", 10**9)),
    **dict.fromkeys(("acc", "accum", "gas"), ("accumulation", 10**6)),
    **dict.fromkeys(("seq", "seqlen"), ("seq_len", 10**7)),
    "gpu": ("devices", 10**6),
}
_SPELT = ("batchsize", "globalbatchsize")
_OWN_COUNTS = ("acc", "seq", "gbs")
_MICRO = ("mb", "mbs", "mbz")
_MOST_NODES, _MOST_GPUS = 99_999, 999
_PRECISIONS = {
    **{name: name for name in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")},
    **{"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"},
}
_FRAMEWORKS = {
    **dict.fromkeys(("tensorflow", "tensorflow1", "tensorflow2", "tf", "tf1", "tf2"), "tensorflow"),
    **dict.fromkeys(("pytorch", "pyt", "torch"), "pytorch"),
    **dict.fromkeys(("paddle", "paddlepaddle", "paddleclas", "paddlenlp"), "paddle"),
    **{
        name: name
        for name in ("deepspeed", "horovod", "hugectr", "megatron", "mindspore", "mxnet", "oneflow")
    },
}
# Words that are tags too: they name a variant of the framework, or run on top of another one.
_FRAMEWORK_TAGS = frozenset(
    ("tensorflow1", "tensorflow2", "tf1", "tf2", "paddleclas", "paddlenlp")
    + ("deepspeed", "horovod", "megatron")
)
_TAGS = frozenset(
    ("adam", "adamw", "amp", "apex", "dali", "lamb", "lars", "libai", "ngc", "nvidia", "sgd")
)
_NUMBERED_TAGS = ("dp", "mp", "phase", "pp", "tp", "zero")
NO_SETTINGS = frozenset(  # words that are neither settings nor tags
    ("bench", "benchmark", "benchmarks", "dlperf", "lm", "log", "logs", "output", "perf")
    + ("pretrain", "pretraining", "result", "results", "run", "runs", "test", "tests", "train")
    + ("training", "use")
)
COUNTING = frozenset((*_COUNTS, *_MICRO, *_NUMBERED_TAGS, "stage"))  # a number may follow
_LOGS = frozenset(("log", "logs"))
_FAMILY = re.compile(
    r"(?:al|ro|distil|deb|mobile)?bert|roberta|electra|gpt[23]?|gptj|bloom|llama[23]?|t5|transformer"
    r"|rn(?:18|34|50|101|152)|r(?:18|34|50|100|101|152)|y1|resnet[0-9]{0,3}(?:v[0-9.]{1,3}[a-z]?)?"
    r"|resnext[0-9]{2,3}|vgg[0-9]{0,2}|alexnet|inception[0-9]?|mobilenet(?:v[0-9])?"
    r"|efficientnet|vit|wdl|dlrm"
)
_SIZE = re.compile(
    r"base|large|small|medium|tiny|mini|big|huge|xx?l|v[0-9](?:\.[0-9])?[a-z]?"
    r"|[0-9]{1,4}(?:\.[0-9]{1,3})?[bm]"
)
LETTERED = frozenset(("clip", "deit", "efficientnet", "swin", "vit"))  # ViT-B/16, EfficientNet-B4
_RESNET = re.compile(r"rn?(?=[0-9])")


@dataclass
class Part:
    """One component of a path. ``known`` counts the words that were understood."""

    facts: list[tuple[str, Any]] = field(default_factory=list)
    words: list[tuple[str, bool]] = field(default_factory=list)  # tags: text, whether it is known
    known: int = 0
    unrecognised: bool = False  # it has a word that was not understood
    logs: bool = False

    def names(self) -> set[str]:
        """Of the settings that it states."""
        return {name for name, _ in self.facts}

    @property
    def strength(self) -> int:
        """How many of the settings that only benchmark logs have in their names are there."""
        settings = {"batch_size", "global_batch", "precision", "nodes", "devices"} & self.names()
        amp = ("amp", True) in self.words and "precision" not in settings
        return len(settings) + amp

    @property
    def tags(self) -> list[str]:
        """The tags; of a name that states no settings, only the known words."""
        settings = self.strength
        return [text for text, known in self.words if known or settings]

    def without(self, *names: str) -> None:
        """Forget what it states of these settings."""
        self.facts = [fact for fact in self.facts if fact[0] not in names]

    def all(self, name: str) -> list[Any]:
        """Every value that it states of a setting."""
        return [value for each, value in self.facts if each == name]

    def first(self, name: str) -> Any:
        """The first value that it states of a setting; None if there is none."""
        return next((value for each, value in self.facts if each == name), None)


class Words:
    """The tokens of a component in lower case, and which kinds of setting they have."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spans = [match.span() for match in _TOKEN.finditer(text)]
        self.all = [text[start:end].lower() for start, end in self.spans]
        numbered = [match for match in map(_NUMBERED.fullmatch, self.all) if match]
        kinds = {match[1] for match in numbered}
        self.parallel = "pp" in kinds and bool({"mp", "tp"} & kinds)
        self.micro = bool(kinds.intersection(_MICRO))
        self.split = any(
            match[1] in ("mp", "tp", "pp") and match[2].lstrip("0") != "1" for match in numbered
        )

    def at(self, index: int) -> str:
        """A token; '' where there is none."""
        return self.all[index] if 0 <= index < len(self.all) else ""

    def joined(self, index: int) -> bool:
        """Whether one '-' or '_' is all between this token and the one before."""
        return 0 < index < len(self.all) and (
            self.text[self.spans[index - 1][1] : self.spans[index][0]] in ("-", "_")
        )


def read(text: str) -> Part:
    """A component word by word; most are those of the file before."""
    part = read_once(text)
    return replace(part, facts=list(part.facts), words=list(part.words))


@lru_cache(maxsize=1024)
def read_once(text: str) -> Part:
    """A component word by word, not to be changed: other files have it too."""
    part, words, at = Part(), Words(text), 0
    glue = -1  # the index of a word that would follow an unknown one
    while at < len(words.all):
        taken = next((n for n in (reader(part, words, at) for reader in _READERS) if n), 0)
        if taken:
            part.known += taken
        elif _unknown(part, words, at, at == glue):
            glue = at + 1
        at += taken or 1
    if words.parallel:
        _leave_out_dp(part)
    return part


def _leave_out_dp(part: Part) -> None:
    """The data parallel size is no variant where it follows from the other sizes: it grows with
    the devices along one curve."""
    numbered = (_NUMBERED.fullmatch(text) for text, _ in part.words)
    sizes = {match[1]: _whole(match[2]) for match in numbered if match is not None}
    devices = (part.first("nodes") or 0) * (part.first("gpus_per_node") or 0)
    if devices == math.prod(sizes.get(name, 1) for name in ("dp", "mp", "tp", "pp")):
        part.words = [word for word in part.words if word[0] != f"dp{sizes.get('dp')}"]


def _unknown(part: Part, words: Words, at: int, glued: bool) -> bool:
    """Add a word that is no setting; False if it is a number that counts nothing known."""
    word = words.all[at]
    if word.isdigit() and not glued:
        # Dates, times, job numbers, a count of tests, a node's rank.
        before = words.at(at - 1)
        stamp = len(word) >= 6 or (len(before) >= 6 and before.isdigit())
        counts = not stamp and part.known > 0 and before not in NO_SETTINGS
        part.known += not counts
        if not counts:
            return False
    if glued and (word[0].isdigit() or word in ("true", "false")):
        if len(word) < 6 or not word.isdigit():
            part.words[-1] = (f"{part.words[-1][0]}-{word}", False)
        return True
    part.unrecognised = True
    part.words.append((word, False))
    return True


def _model(part: Part, words: Words, at: int) -> int:
    sizes = at + 1
    if words.all[at] == "gpt" and words.joined(sizes) and words.all[sizes] in ("2", "3"):
        sizes += 1
    while words.joined(sizes) and _SIZE.fullmatch(words.all[sizes]):
        sizes += 1
    if words.all[at] == "opt":  # OPT-1.3B; by itself it may be anything
        if sizes == at + 1 or not words.all[at + 1][0].isdigit():
            return 0
    elif not _FAMILY.fullmatch(words.all[at]):
        return 0
    if words.all[at] in LETTERED and words.joined(sizes):
        sizes += bool(re.fullmatch("[bl][0-9]{1,2}", words.all[sizes]))
    name = words.text[words.spans[at][0] : words.spans[sizes - 1][1]]
    known = part.first("model")
    if known is None:
        part.facts.append(("model", name))
    elif not same(name, [known]):
        return 0
    return sizes - at


def _framework(part: Part, words: Words, at: int) -> int:
    word = words.all[at]
    if word not in _FRAMEWORKS:
        return 0
    part.facts.append(("framework", _FRAMEWORKS[word]))
    if word in _FRAMEWORK_TAGS:
        part.words.append((word, True))
    return 1


def _topology(part: Part, words: Words, at: int) -> int:
    match = _TOPOLOGY.fullmatch(words.all[at])
    if match is None:
        return 0
    nodes, gpus = (_whole(match[i] or match[i + 2]) for i in (1, 2))
    if 0 < nodes <= _MOST_NODES and 0 < gpus <= _MOST_GPUS:
        part.facts += [("nodes", nodes), ("gpus_per_node", gpus)]
    return 1


def _counted(part: Part, words: Words, at: int) -> int:
    """``bs96``, ``gbs512``, ``gpu8``; Megatron's ``mbs2`` is a device's only in data parallel."""
    match = _NUMBERED.fullmatch(words.all[at])
    if match is None or (match[1] == "b" and words.at(at - 1) in LETTERED):
        return 0
    kind, digits = match[1], match[2]
    if kind in _MICRO and words.split:
        part.words.append((f"mbs{digits}", True))
        return 1
    if kind in _MICRO:
        kind = "bs"
    elif kind == "s" and words.parallel:
        kind = "seq"
    elif kind == "gb" and words.micro:
        kind = "gbs"
    if kind not in _COUNTS:
        return 0
    _count(part, *_COUNTS[kind], digits)
    return 1


def _spelt(part: Part, words: Words, at: int) -> int:
    """``globalBatchSize-64``: the number stands behind its name."""
    digits = words.at(at + 1)
    if words.all[at] not in _SPELT or not digits.isdigit() or not words.joined(at + 1):
        return 0
    _count(part, *_COUNTS[words.all[at]], digits)
    return 2


def _count(part: Part, name: str, most: int, digits: str) -> None:
    if 0 < _whole(digits) <= most:
        part.facts.append((name, _whole(digits)))


def _whole(digits: str) -> int:
    return int(digits) if len(digits) <= 12 else 0


def _precision(part: Part, words: Words, at: int) -> int:
    precision = _PRECISIONS.get(words.all[at])
    if precision is None:
        return 0
    part.facts.append(("precision", precision))
    return 1


def _xla(part: Part, words: Words, at: int) -> int:
    word, after = words.all[at], words.at(at + 1)
    if after == "xla" and word in ("no", "non", "without", "wo", "with", "w"):
        _add_xla(part, word in ("with", "w"))
        return 2
    if word in ("noxla", "nonxla", "xlafalse", "xlaoff", "xlatrue", "xlaon"):
        _add_xla(part, word in ("xlatrue", "xlaon"))
        return 1
    if word != "xla":
        return 0
    _add_xla(part, after not in ("false", "off"))
    return 2 if after in ("true", "false", "on", "off") else 1


def _add_xla(part: Part, on: bool) -> None:
    part.facts.append(("xla", on))
    if on:
        part.words.append(("xla", True))


def _zero(part: Part, words: Words, at: int) -> int:
    """``zero_stage1``, ``zero-1``."""
    match = re.fullmatch("(?:stage)?([0-3])", words.at(at + 1))
    if words.all[at] != "zero" or match is None:
        return 0
    part.words.append((f"zero{match[1]}", True))
    return 2


def _checkpointing(part: Part, words: Words, at: int) -> int:
    """``on_checkpoint_activation``: the switch stands before its name."""
    switch = words.all[at]
    if switch not in ("on", "off") or words.at(at + 1) != "checkpoint":
        return 0
    if words.at(at + 2) not in ("activation", "activations"):
        return 0
    part.words.append((f"checkpoint-activation-{switch}", True))
    return 3


def _tag(part: Part, words: Words, at: int) -> int:
    """Add a word that is a tag wherever it stands, or skip one that means nothing."""
    word = words.all[at]
    part.logs = part.logs or word in _LOGS
    match = _NUMBERED.fullmatch(word)
    if word in _TAGS or (match is not None and match[1] in _NUMBERED_TAGS):
        part.words.append((word, True))
        return 1
    return int(word in NO_SETTINGS)


_READERS: tuple[Callable[[Part, Words, int], int], ...] = (
    _model, _framework, _topology, _counted, _spelt, _precision, _xla, _zero, _checkpointing, _tag,
)  # fmt: skip


def is_precision(word: str) -> bool:
    """Whether a word names a precision, ``amp`` among them."""
    return word.lower() in _PRECISIONS or word.lower() == "amp"


def own_tag(part: Part, tag: str) -> None:
    """Add a tag of our own names: a count (``acc4``), XLA, or what it says."""
    match = _NUMBERED.fullmatch(tag)
    if match is not None and match[1] in _OWN_COUNTS:
        _count(part, *_COUNTS[match[1]], match[2])
    elif tag.lower() in ("xla", "noxla"):
        _add_xla(part, tag.lower() == "xla")
    else:
        part.words.append((tag, True))


def same(model: str, others: Sequence[str]) -> bool:
    """Whether one of the others names this model, be it less exactly (``bert``, ``bert_base``).

    The names of ResNet are one model: ``rn50``, ``r50``, ``resnet50``.
    """
    key = _key(model)
    return any(key.startswith(each) or each.startswith(key) for each in map(_key, others))


def _key(model: str) -> str:
    return _RESNET.sub("resnet", "".join(Words(model).all), count=1)
