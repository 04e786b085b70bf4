"""The settings and tags of a run by the path of its log, when another program wrote it.

DLPerf's extraction knows one layout, ``bz32/4n8g/bert_b32_fp32_1.log``, and reads it by position:
a case of ten nodes or a name with one word more ends it, and two variants with one name become
one run. Here every word of the name is looked at by itself; what is no setting is a tag, so that
runs which differ in it are never taken for repeats of each other.

The file's name is read first, then its folders upwards as far as they look like a layout of
logs; the first folder that does not ends it. Only whole tokens are words: ``b32user`` is no
batch size. DLPerf and those who publish beside it (NVIDIA, Paddle) write ``b``, ``bs`` and ``bz``
for the batch of one GPU and ``gpu32`` for all GPUs, Megatron ``mbs`` for that of one replica.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from dlperf_hpc.logs.scanned import FACTS, Fact

_FOLDERS = 5  # above the file that are looked at
_LONGEST = 4096  # characters of a path's end that are looked at
_PACKED = re.compile(r"\.(?:gz|zst|xz|bz2|lz4|zip)\Z", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(?:zip|tar|tgz|tar\.[a-z0-9]{2,3})!", re.IGNORECASE)
_ENDING = re.compile(r"\.(?:log|txt|out|err|jsonl?)\Z", re.IGNORECASE)
_ATTEMPT = re.compile(r"\.attempt[0-9]{1,6}(?:\.rank[0-9]{1,6})?\Z")

# A dot belongs to a token where it is a decimal point: v1.5, 1.3b.
_TOKEN = re.compile(r"[^\W_]+(?:(?<=[0-9])\.(?=[0-9])[^\W_]+)*")
_NUMBERED = re.compile(r"([a-z]+)([0-9]+)")
_TOPOLOGY = re.compile(r"([0-9]+)n([0-9]+)[gd]|n([0-9]+)c([0-9]+)")
_REPEAT = re.compile(r"(.*[^_])_([0-9]{1,6})", re.DOTALL)
_OWN_TAGS = re.compile(r"[A-Za-z0-9.+-]+")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")

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
_OWN_FRAMEWORKS = {"ddp": "ddp"}  # as a folder only
# Words that are tags too: they name a variant of the framework, or run on top of another one.
_FRAMEWORK_TAGS = frozenset(
    ("tensorflow1", "tensorflow2", "tf1", "tf2", "paddleclas", "paddlenlp")
    + ("deepspeed", "horovod", "megatron")
)
_TAGS = frozenset(
    ("adam", "adamw", "amp", "apex", "dali", "lamb", "lars", "libai", "ngc", "nvidia", "sgd")
)
_NUMBERED_TAGS = ("dp", "mp", "phase", "pp", "tp", "zero")
_NO_SETTINGS = frozenset(  # words that are neither settings nor tags
    ("bench", "benchmark", "benchmarks", "dlperf", "lm", "log", "logs", "output", "perf")
    + ("pretrain", "pretraining", "result", "results", "run", "runs", "test", "tests", "train")
    + ("training", "use")
)
_COUNTING = frozenset((*_COUNTS, *_MICRO, *_NUMBERED_TAGS, "stage"))  # a number may follow
_LOGS = frozenset(("log", "logs"))
_HOMES = frozenset(("home", "users"))  # a folder in one is somebody's name
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
_LETTERED = frozenset(("clip", "deit", "efficientnet", "swin", "vit"))  # ViT-B/16, EfficientNet-B4
_RESNET = re.compile(r"rn?(?=[0-9])")


def facts_of_path(path: PurePath | str) -> tuple[Fact, ...]:
    """The settings that the path states, in the order of ``FACTS``, all of line 0.

    A name comes once, or where the path contradicts itself once for each value, that of the
    file's name first. Model names are as written. Never raises.
    """
    stated: dict[str, list[Any]] = {name: [] for name in FACTS}
    for part in _parts(str(path)[-_LONGEST:]):
        for name, value in part.facts:
            if value not in stated[name] and not (name == "model" and _same(value, stated[name])):
                stated[name].append(value)
    stated["framework"] = _topmost(stated["framework"])
    return tuple(Fact(0, name, value) for name, values in stated.items() for value in values)


def variant_of_path(path: PurePath | str) -> tuple[str, ...]:
    """The tags by which variants of a case differ and which are no settings (``zero1``, ``amp``).

    In lower case but for the tags of our own logs, in the order of the path, each once. ``xla``
    is among them when the path says that it was on. Never raises.
    """
    parts = _parts(str(path)[-_LONGEST:])
    tags = [tag for part in reversed(parts) for tag in part.tags]
    known = set(_topmost([value for part in parts for value in part.all("framework")]))
    if any(re.fullmatch("zero[0-9]", tag) for tag in tags):
        known.add("zero")  # the tag with the stage has it too
    return tuple(tag for tag in dict.fromkeys(tags) if tag not in known)


@dataclass
class _Part:
    """One component of a path. ``known`` counts the words that were understood."""

    facts: list[tuple[str, Any]] = field(default_factory=list)
    words: list[tuple[str, bool]] = field(default_factory=list)  # tags: text, whether it is known
    known: int = 0
    unrecognised: bool = False  # it has a word that was not understood
    logs: bool = False

    def names(self) -> set[str]:
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
        self.facts = [fact for fact in self.facts if fact[0] not in names]

    def all(self, name: str) -> list[Any]:
        return [value for each, value in self.facts if each == name]

    def first(self, name: str) -> Any:
        return next((value for each, value in self.facts if each == name), None)


class _Words:
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
        return self.all[index] if 0 <= index < len(self.all) else ""

    def joined(self, index: int) -> bool:
        """Whether one '-' or '_' is all between this token and the one before."""
        return 0 < index < len(self.all) and (
            self.text[self.spans[index - 1][1] : self.spans[index][0]] in ("-", "_")
        )


@lru_cache(maxsize=16)  # facts and variant of one path
def _parts(path: str) -> list[_Part]:
    """The file's name, then the folders above it that belong to a layout of logs, upwards."""
    text = _ARCHIVE.sub("/", path)
    components = [each for each in text.split("/") if each not in ("", ".")]
    if not components:
        return []
    name = _file(_stem(components[-1]))
    return [name, *_folders(components[-2::-1], name)]


def _stem(name: str) -> str:
    for _ in range(2):
        name = _PACKED.sub("", name)
    return _ATTEMPT.sub("", _ENDING.sub("", name))


def _file(stem: str) -> _Part:
    """A file's name: DLPerf's pattern if it has it, else word by word."""
    part = _pattern(stem)
    if part is not None:
        return part
    counted, words = _REPEAT.fullmatch(stem), _Words(stem)
    before = words.at(len(words.all) - 2)  # zero_1 is no repeat
    # Megatron's names end with a node's rank.
    if counted is not None and len(counted[2]) <= 2 and not words.parallel:
        part = _read(counted[1])
        if part.strength and before not in _COUNTING and before not in _NO_SETTINGS:
            part.facts.append(("repeat", int(counted[2])))
            return part
    return _read(stem)


def _pattern(stem: str) -> _Part | None:
    """``<model>_b<batch>_<precision>[-<tag>...][_<word>...][_<repeat>]``; the last such ``b``."""
    words = stem.split("_")
    for at in range(len(words) - 2, 0, -1):
        head, *tags = words[at + 1].split("-")
        if re.fullmatch("b[0-9]+", words[at]) and _is_precision(head):
            break
    else:
        return None
    if words[at - 1].lower() in _LETTERED:
        return None
    before, model, between = _trim(words[:at])
    after = words[at + 2 :]
    repeat = after.pop() if after and re.fullmatch("[0-9]{1,6}", after[-1]) else None
    if not _OWN_TAGS.fullmatch(words[at + 1]):
        after, tags = [*tags, *after], []
    part = _read("_".join([*before, *between, words[at], head]))
    if _MODEL_NAME.fullmatch(model):
        part.facts.insert(0, ("model", model))
    for tag in _own(tags):
        _own_tag(part, tag)
    rest = _read("_".join(after))
    part.facts += rest.facts
    part.words += rest.words
    if repeat is not None:
        part.facts.append(("repeat", int(repeat)))
    return part


def _is_precision(word: str) -> bool:
    return word.lower() in _PRECISIONS or word.lower() == "amp"


def _trim(words: list[str]) -> tuple[list[str], str, list[str]]:
    """The words before the batch size: some that name no model, the model's name, some more."""
    start, end = 0, len(words)
    while start < end and not _of_a_model(words[start]):
        start += 1
    while end > start and not _of_a_model(words[end - 1]):
        if end - start > 1 and words[end - 2].lower() in _LETTERED:
            break
        end -= 1
    return words[:start], "_".join(words[start:end]), words[end:]


def _of_a_model(word: str) -> bool:
    part = _read_once(word)
    return part.unrecognised or "model" in part.names()


def _own(tags: Sequence[str]) -> list[str]:
    """Tags of our own names: what begins with a digit belongs to the one before (``lr1e-05``)."""
    joined: list[str] = []
    for tag in tags:
        if joined and tag[:1].isdigit():
            joined[-1] += f"-{tag}"
        elif tag:
            joined.append(tag)
    return joined


def _own_tag(part: _Part, tag: str) -> None:
    match = _NUMBERED.fullmatch(tag)
    if match is not None and match[1] in _OWN_COUNTS:
        _count(part, *_COUNTS[match[1]], match[2])
    elif tag.lower() in ("xla", "noxla"):
        _add_xla(part, tag.lower() == "xla")
    else:
        part.words.append((tag, True))


def _folders(folders: list[str], name: _Part) -> Iterator[_Part]:
    """``folders`` from the file upwards, as long as they look like a layout of logs."""
    model, framework, anchored = name.first("model"), False, name.strength > 0
    placed = False  # the folder below is a topology or a batch size
    for at, folder in enumerate(folders[:_FOLDERS]):
        above = folders[at + 1] if at + 1 < len(folders) else ""
        if folder == "attempts":
            continue
        if folder == ".." or above.lower() in _HOMES:
            return
        part = _read(folder)
        own = _OWN_FRAMEWORKS.get(folder.lower())
        if own is not None and anchored:  # above it is a sweep's name
            yield _Part([("framework", own)])
            return
        in_model_position = placed and not framework and _is_framework(above)
        if in_model_position and not part.strength and not part.logs and part.unrecognised:
            part = _model_folder(folder, model)
        elif (part.unrecognised and part.strength < 2 and not _marked(part)) or not part.known:
            return
        anchored = anchored or part.strength > 0
        if not anchored and (part.facts or part.words):
            return
        if not in_model_position and _only_a_model(part) and not _agree(part, model):
            return
        if framework:
            part.without("framework", "model")
        if part.strength < 2:
            part.words = [word for word in part.words if word[1]]
        yield part
        if part.logs:
            return
        framework = framework or "framework" in part.names()
        placed = bool({"nodes", "batch_size"} & part.names())
        model = model or part.first("model")


def _only_a_model(part: _Part) -> bool:
    return "model" in part.names() and "framework" not in part.names() and part.strength < 2


def _agree(part: _Part, model: str | None) -> bool:
    return model is not None and _same(part.first("model"), [model])


def _marked(part: _Part) -> bool:
    return part.logs or ("ngc", True) in part.words


def _is_framework(folder: str) -> bool:
    part = _read_once(folder)
    return folder.lower() in _OWN_FRAMEWORKS or (
        "framework" in part.names() and not part.unrecognised and "model" not in part.names()
    )


def _model_folder(folder: str, model: str | None) -> _Part:
    """A folder of an unknown name where DLPerf's layout has the model: ``partial_fc`` is a method
    if the file names another model."""
    part = _Part(known=1)
    if model and not _same(folder, [model]):
        tag = "-".join(_Words(folder).all)
        part.words = [(tag, True)] if tag else []
    elif _MODEL_NAME.fullmatch(folder):
        part.facts.append(("model", folder))
    return part


def _read(text: str) -> _Part:
    """A component word by word; most are those of the file before."""
    part = _read_once(text)
    return replace(part, facts=list(part.facts), words=list(part.words))


@lru_cache(maxsize=1024)
def _read_once(text: str) -> _Part:
    part, words, at = _Part(), _Words(text), 0
    glue = -1  # the index of a word that would follow an unknown one
    while at < len(words.all):
        taken = next((taken for taken in (read(part, words, at) for read in _READERS) if taken), 0)
        if taken:
            part.known += taken
        elif _unknown(part, words, at, at == glue):
            glue = at + 1
        at += taken or 1
    if words.parallel:
        _leave_out_dp(part)
    return part


def _leave_out_dp(part: _Part) -> None:
    """The data parallel size is no variant where it follows from the other sizes: it grows with
    the devices along one curve."""
    numbered = (_NUMBERED.fullmatch(text) for text, _ in part.words)
    sizes = {match[1]: _whole(match[2]) for match in numbered if match is not None}
    devices = (part.first("nodes") or 0) * (part.first("gpus_per_node") or 0)
    if devices == math.prod(sizes.get(name, 1) for name in ("dp", "mp", "tp", "pp")):
        part.words = [word for word in part.words if word[0] != f"dp{sizes.get('dp')}"]


def _unknown(part: _Part, words: _Words, at: int, glued: bool) -> bool:
    """Add a word that is no setting; False if it is a number that counts nothing known."""
    word = words.all[at]
    if word.isdigit() and not glued:
        # Dates, times, job numbers, a count of tests, a node's rank.
        before = words.at(at - 1)
        stamp = len(word) >= 6 or (len(before) >= 6 and before.isdigit())
        counts = not stamp and part.known > 0 and before not in _NO_SETTINGS
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


def _model(part: _Part, words: _Words, at: int) -> int:
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
    if words.all[at] in _LETTERED and words.joined(sizes):
        sizes += bool(re.fullmatch("[bl][0-9]{1,2}", words.all[sizes]))
    name = words.text[words.spans[at][0] : words.spans[sizes - 1][1]]
    known = part.first("model")
    if known is None:
        part.facts.append(("model", name))
    elif not _same(name, [known]):
        return 0
    return sizes - at


def _framework(part: _Part, words: _Words, at: int) -> int:
    word = words.all[at]
    if word not in _FRAMEWORKS:
        return 0
    part.facts.append(("framework", _FRAMEWORKS[word]))
    if word in _FRAMEWORK_TAGS:
        part.words.append((word, True))
    return 1


def _topology(part: _Part, words: _Words, at: int) -> int:
    match = _TOPOLOGY.fullmatch(words.all[at])
    if match is None:
        return 0
    nodes, gpus = (_whole(match[i] or match[i + 2]) for i in (1, 2))
    if 0 < nodes <= _MOST_NODES and 0 < gpus <= _MOST_GPUS:
        part.facts += [("nodes", nodes), ("gpus_per_node", gpus)]
    return 1


def _counted(part: _Part, words: _Words, at: int) -> int:
    """``bs96``, ``gbs512``, ``gpu8``; Megatron's ``mbs2`` is a device's only in data parallel."""
    match = _NUMBERED.fullmatch(words.all[at])
    if match is None or (match[1] == "b" and words.at(at - 1) in _LETTERED):
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


def _spelt(part: _Part, words: _Words, at: int) -> int:
    """``globalBatchSize-64``: the number stands behind its name."""
    digits = words.at(at + 1)
    if words.all[at] not in _SPELT or not digits.isdigit() or not words.joined(at + 1):
        return 0
    _count(part, *_COUNTS[words.all[at]], digits)
    return 2


def _count(part: _Part, name: str, most: int, digits: str) -> None:
    if 0 < _whole(digits) <= most:
        part.facts.append((name, _whole(digits)))


def _whole(digits: str) -> int:
    return int(digits) if len(digits) <= 12 else 0


def _precision(part: _Part, words: _Words, at: int) -> int:
    precision = _PRECISIONS.get(words.all[at])
    if precision is None:
        return 0
    part.facts.append(("precision", precision))
    return 1


def _xla(part: _Part, words: _Words, at: int) -> int:
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


def _add_xla(part: _Part, on: bool) -> None:
    part.facts.append(("xla", on))
    if on:
        part.words.append(("xla", True))


def _zero(part: _Part, words: _Words, at: int) -> int:
    """``zero_stage1``, ``zero-1``."""
    match = re.fullmatch("(?:stage)?([0-3])", words.at(at + 1))
    if words.all[at] != "zero" or match is None:
        return 0
    part.words.append((f"zero{match[1]}", True))
    return 2


def _checkpointing(part: _Part, words: _Words, at: int) -> int:
    """``on_checkpoint_activation``: the switch stands before its name."""
    switch = words.all[at]
    if switch not in ("on", "off") or words.at(at + 1) != "checkpoint":
        return 0
    if words.at(at + 2) not in ("activation", "activations"):
        return 0
    part.words.append((f"checkpoint-activation-{switch}", True))
    return 3


def _tag(part: _Part, words: _Words, at: int) -> int:
    """Add a word that is a tag wherever it stands, or skip one that means nothing."""
    word = words.all[at]
    part.logs = part.logs or word in _LOGS
    match = _NUMBERED.fullmatch(word)
    if word in _TAGS or (match is not None and match[1] in _NUMBERED_TAGS):
        part.words.append((word, True))
        return 1
    return int(word in _NO_SETTINGS)


_READERS: tuple[Callable[[_Part, _Words, int], int], ...] = (
    _model, _framework, _topology, _counted, _spelt, _precision, _xla, _zero, _checkpointing, _tag,
)  # fmt: skip


def _same(model: str, others: Sequence[str]) -> bool:
    """Whether one of the others names this model, be it less exactly (``bert``, ``bert_base``).

    The names of ResNet are one model: ``rn50``, ``r50``, ``resnet50``.
    """
    key = _key(model)
    return any(key.startswith(each) or each.startswith(key) for each in map(_key, others))


def _key(model: str) -> str:
    return _RESNET.sub("resnet", "".join(_Words(model).all), count=1)


def _topmost(frameworks: list[str]) -> list[str]:
    """Of frameworks that stand on one another the one that ran the training loop; Horovod alone
    is one, beside another it only carries its gradients."""
    kept = [each for each in frameworks if each != "horovod"] or frameworks
    loops = [each for each in kept if each in ("deepspeed", "megatron")]
    if loops:
        kept = [each for each in kept if each not in ("deepspeed", "megatron", "pytorch")]
        kept.insert(0, loops[0])
    return kept
