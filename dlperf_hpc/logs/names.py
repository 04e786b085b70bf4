"""The settings and tags of a run by the path of its log, when another program wrote it.

DLPerf's layout is ``bz32/4n8g/bert_b32_fp32_1.log``. Every word of a name is looked at by itself;
what is no setting is a tag, so that runs which differ in it are never taken for repeats.

The file's name is read first, then its folders upwards as far as they look like a layout of logs.
Only whole tokens are words: ``b32user`` is no batch size. DLPerf, NVIDIA and Paddle write ``b``,
``bs`` and ``bz`` for the batch of one GPU and ``gpu32`` for all GPUs, Megatron ``mbs`` for the
batch of one replica.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
_HOMES = frozenset(("home", "users"))  # a folder in one is somebody's name
_OWN_FRAMEWORKS = ("ddp", "fsdp")  # as folders only

# --- words: each is a setting, a tag, both, or means nothing

_PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")
_FRAMEWORKS = {
    **{"tf": "tensorflow", "torch": "pytorch", "pyt": "pytorch"},
    **{
        name: name
        for name in ("tensorflow", "pytorch", "paddle", "hugectr", "mindspore", "mxnet", "oneflow")
    },
}
# Words that are tags too: they name a variant of the framework, or run on top of another one.
_FRAMEWORK_TAGS = {
    **dict.fromkeys(("tf1", "tf2"), "tensorflow"),
    **dict.fromkeys(("paddleclas", "paddlenlp"), "paddle"),
    **{name: name for name in ("deepspeed", "horovod", "megatron")},
}
_TAGS = ("adam", "adamw", "amp", "apex", "dali", "lamb", "lars", "libai", "ngc", "nvidia", "sgd")
_NOTHING = frozenset(
    ("bench", "benchmark", "benchmarks", "dlperf", "lm", "log", "logs", "output", "perf")
    + ("pretrain", "pretraining", "result", "results", "run", "runs", "test", "tests", "train")
    + ("training", "use")
)
_WORDS: dict[str, tuple[tuple[str, Any] | None, bool]] = {
    **{word: (("precision", word), False) for word in _PRECISIONS},
    **{word: (("framework", name), False) for word, name in _FRAMEWORKS.items()},
    **{word: (("framework", name), True) for word, name in _FRAMEWORK_TAGS.items()},
    **{"xla": (("xla", True), True), "noxla": (("xla", False), False)},
    **dict.fromkeys(_TAGS, (None, True)),
    **dict.fromkeys(_NOTHING, (None, False)),
}
"""The setting that a word states, if any, and whether it is a tag."""

_COUNTS = {
    **dict.fromkeys(("b", "bs", "bz", "bsz", "batchsize", "mb", "mbs", "mbz"), "batch_size"),
    **dict.fromkeys(("gbs", "gbz", "globalbatchsize"), "global_batch"),
    **dict.fromkeys(("acc", "accum", "gas"), "accumulation"),
    **dict.fromkeys(("seq", "seqlen"), "seq_len"),
    "gpu": "devices",
}
_OWN_COUNTS = ("acc", "seq", "gbs")
_MICRO = ("mb", "mbs", "mbz")
_PARALLEL = ("mp", "tp", "pp")
_NUMBERED_TAGS = (*_PARALLEL, "phase", "zero")

# A dot belongs to a token where it is a decimal point: v1.5, 1.3b.
_TOKEN = re.compile(r"[^\W_]+(?:(?<=[0-9])\.(?=[0-9])[^\W_]+)*")
_NUMBERED = re.compile(r"([a-z]+)([0-9]{1,7})")
_TOPOLOGY = re.compile(r"([0-9]{1,5})n([0-9]{1,3})[gd]|n([0-9]{1,5})c([0-9]{1,3})")
_SIZE = (
    r"(?:base|large|small|medium|tiny|mini|big|huge|xx?l|v[0-9](?:\.[0-9])?[a-z]?"
    r"|[0-9]{1,4}(?:\.[0-9]{1,3})?[bm])"
)
_MODEL = re.compile(
    r"(?:(?:(?:al|ro|distil|deb|mobile)?bert|roberta|electra|gpt(?:[-_]?[23]|j)?|bloom|llama[23]?"
    r"|t5|transformer|opt(?=[-_][0-9])|rn(?:18|34|50|101|152)|r(?:18|34|50|100|101|152)|y1"
    r"|resnet[0-9]{0,3}(?:v[0-9.]{1,3}[a-z]?)?|resnext[0-9]{2,3}|vgg[0-9]{0,2}|alexnet"
    r"|inception[0-9]?|mobilenet(?:v[0-9])?|wdl|dlrm)"
    rf"(?:[-_]{_SIZE}(?![^\W_]))*|(?:efficientnet|vit)(?:-[bl][0-9]{{1,2}})?)(?![^\W_])",
    re.IGNORECASE,
)
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
_RESNET = re.compile(r"rn?(?=[0-9])")

# Words that are one: globalBatchSize-64 states a batch size, EfficientNet-B4 does not.
_ONE_WORD = (
    (re.compile(r"(batchsize)[-_](?=[0-9])", re.IGNORECASE), r"\1"),
    (re.compile(r"(efficientnet|vit)_(?=[bl][0-9]{1,2}(?![^\W_]))", re.IGNORECASE), r"\1-"),
    (re.compile(r"(zero)[-_](?:stage)?(?=[0-3](?![^\W_]))", re.IGNORECASE), r"\1"),
    (re.compile(r"no[-_]xla|xla[-_](?:false|off)", re.IGNORECASE), "noxla"),
)

# <model>_b<batch>_<precision>[-<tag>...][_<word>...], the last such b; before a repeat.
_PATTERN = re.compile(
    rf"(.+)_(b[0-9]+)_({'|'.join(_PRECISIONS)}|amp)(?:-([A-Za-z0-9.+-]+))?(?:_(.*))?",
    re.IGNORECASE | re.DOTALL,
)
_REPEAT = re.compile(r"(?:(.*[^_])_)?([0-9]{1,6})", re.DOTALL)


@dataclass
class _Part:
    """One component of a path. ``known`` counts the words that were understood; ``unrecognised``:
    there is another word; ``logs``: it is marked as a folder of logs."""

    facts: list[tuple[str, Any]] = field(default_factory=list)
    words: list[tuple[str, bool]] = field(default_factory=list)  # tags: text, whether it is known
    known: int = 0
    unrecognised: bool = False
    logs: bool = False

    def names(self) -> set[str]:
        """The settings that it states."""
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

    def first(self, name: str) -> Any:
        """The first value that it states of a setting; None if there is none."""
        return next((value for each, value in self.facts if each == name), None)

    def as_folder(self, below_framework: bool) -> _Part:
        """The part without what a folder does not say: an unknown word unless it states two
        settings, and a framework or a model above the framework's folder."""
        if self.strength < 2:
            self.words = [word for word in self.words if word[1]]
        if below_framework:
            self.facts = [fact for fact in self.facts if fact[0] not in ("framework", "model")]
        return self

    def state(self, name: str, digits: str) -> None:
        """Add a count, if it counts anything."""
        if int(digits) > 0:
            self.facts.append((name, int(digits)))


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
    tags = dict.fromkeys(tag for part in reversed(parts) for tag in part.tags)
    frameworks = [value for part in parts for name, value in part.facts if name == "framework"]
    known = _topmost(frameworks)
    return tuple(tag for tag in tags if tag not in known)


def _topmost(frameworks: list[str]) -> list[str]:
    """Of frameworks that stand on one another the one that ran the training loop; Horovod alone
    is one, beside another it only carries its gradients."""
    kept = [each for each in frameworks if each != "horovod"] or frameworks
    loops = [each for each in kept if each in ("deepspeed", "megatron")]
    if not loops:
        return kept
    return [loops[0], *(each for each in kept if each not in (*loops, "pytorch"))]


@lru_cache(maxsize=16)  # facts and variant of one path
def _parts(path: str) -> list[_Part]:
    """The file's name, then the folders above it that belong to a layout of logs, upwards."""
    text = _ARCHIVE.sub("/", path)
    for apart, joined in _ONE_WORD:
        text = apart.sub(joined, text)
    components = [each for each in text.split("/") if each not in ("", ".")]
    if not components:
        return []
    stem = components[-1]
    for ending in (_PACKED, _PACKED, _ENDING, _ATTEMPT):
        stem = ending.sub("", stem)
    name = _file(stem)
    return [name, *_folders(components[-2::-1], name)]


# --- the file's name


def _file(stem: str) -> _Part:
    """A file's name: DLPerf's pattern if it has it, else word by word."""
    match = _PATTERN.fullmatch(stem)
    if match is not None:
        return _by_pattern(*match.groups(""))
    counted, part = _REPEAT.fullmatch(stem), _read(stem)
    words = _tokens(stem)
    # Megatron's names end with a node's rank, and zero_1 is no repeat.
    if counted is None or not counted[1] or len(counted[2]) > 2 or _is_megatrons(words):
        return part
    shorter = _read(counted[1])
    if not shorter.strength or words[-2] in (*_COUNTS, *_NUMBERED_TAGS):
        return part
    shorter.facts.append(("repeat", int(counted[2])))
    return shorter


def _by_pattern(before: str, batch: str, precision: str, tags: str, after: str) -> _Part:
    words = before.split("_")
    own = [at for at, word in enumerate(words) if _is_of_a_model(word)]
    first, last = (own[0], own[-1] + 1) if own else (len(words), len(words))
    part = _read("_".join([*words[:first], *words[last:], batch, precision]))
    model = "_".join(words[first:last])
    if _MODEL_NAME.fullmatch(model):
        part.facts.insert(0, ("model", model))
    # What begins with a digit belongs to the tag before it: lr1e-05.
    for tag in filter(None, re.split("-(?![0-9])", re.sub("-+", "-", tags.strip("-")))):
        _add_own_tag(part, tag)
    repeated = _REPEAT.fullmatch(after)
    rest = _read(repeated[1] or "" if repeated else after)
    part.facts += rest.facts
    part.words += rest.words
    if repeated:
        part.facts.append(("repeat", int(repeated[2])))
    return part


@lru_cache(maxsize=1024)  # those of the file before, for the most part
def _is_of_a_model(word: str) -> bool:
    part = _read(word)
    return part.unrecognised or "model" in part.names()


def _add_own_tag(part: _Part, tag: str) -> None:
    match = _NUMBERED.fullmatch(tag)
    if match is not None and match[1] in _OWN_COUNTS:
        part.state(_COUNTS[match[1]], match[2])
    elif tag in ("xla", "noxla"):
        _add_word(part, tag)
    else:
        part.words.append((tag, True))


# --- the folders


def _folders(folders: list[str], name: _Part) -> Iterator[_Part]:
    """``folders`` from the file upwards, as long as they look like a layout of logs."""
    model, framework, anchored = name.first("model"), False, name.strength > 0
    placed = False  # the folder below is a topology or a batch size
    for folder, above in _with_above(folders):
        if folder.lower() in _OWN_FRAMEWORKS and anchored:  # above it is a sweep's name
            yield _Part([("framework", folder.lower())])
            return
        part = _folder(folder, model, placed and not framework and _is_framework(above))
        if part is None:
            return
        anchored = anchored or part.strength > 0
        if not anchored and (part.facts or part.words):
            return
        yield part.as_folder(framework)
        if part.logs:
            return
        framework = framework or "framework" in part.names()
        placed = bool({"nodes", "batch_size"} & part.names())
        model = model or part.first("model")


def _with_above(folders: list[str]) -> Iterator[tuple[str, str]]:
    """The folders up to somebody's home, each with the one above it."""
    for folder, above in zip(folders[:_FOLDERS], [*folders[1:], ""]):
        if folder == ".." or above.lower() in _HOMES:
            return
        if folder != "attempts":
            yield folder, above


def _folder(folder: str, model: str | None, names_the_model: bool) -> _Part | None:
    """A folder by its words, and by its place in DLPerf's layout; None if it is of no layout: if a
    word is unknown, and there are neither two settings nor a mark of logs."""
    part = _read(folder)
    strength = part.strength
    if names_the_model and part.unrecognised and not (strength or part.logs):
        return _model_folder(folder, model)
    marked = part.logs or ("ngc", True) in part.words or strength >= 2
    if not part.known or (part.unrecognised and not marked):
        return None
    if not names_the_model and strength < 2 and _is_of_another_model(part, model):
        return None
    return part


def _is_of_another_model(part: _Part, model: str | None) -> bool:
    own = part.first("model")
    if own is None or part.first("framework") is not None:
        return False
    return model is None or not _same(own, [model])


@lru_cache(maxsize=1024)  # those of the file before, for the most part
def _is_framework(folder: str) -> bool:
    part = _read(folder)
    named = "framework" in part.names() and not part.unrecognised and "model" not in part.names()
    return named or folder.lower() in _OWN_FRAMEWORKS


def _model_folder(folder: str, model: str | None) -> _Part:
    """A folder of an unknown name where DLPerf's layout has the model: ``partial_fc`` is a method
    if the file names another model."""
    part = _Part(known=1)
    if model and not _same(folder, [model]):
        part.words = [("-".join(_tokens(folder)) or folder, True)]
    elif _MODEL_NAME.fullmatch(folder):
        part.facts.append(("model", folder))
    return part


# --- words


def _tokens(text: str) -> list[str]:
    return [token.lower() for token in _TOKEN.findall(text)]


def _read(text: str) -> _Part:
    part, tokens = _Part(), _tokens(text)
    before, end = "", 0
    for match in _TOKEN.finditer(text):
        if match.start() < end:  # within a model's name
            continue
        word, known = match[0].lower(), part.first("model")
        model = _MODEL.match(text, match.start())
        if model is not None and (known is None or _same(model[0], [known])):
            part.known, end = part.known + 1, model.end()
            if known is None:
                part.facts.append(("model", model[0]))
        elif word in _WORDS:
            _add_word(part, word)
        elif not _add_numbered(part, word, tokens):
            _add_unknown(part, word, before)
        before = word
    return part


def _add_word(part: _Part, word: str) -> None:
    fact, is_tag = _WORDS[word]
    part.known += 1
    part.logs = part.logs or word in ("log", "logs")
    if fact is not None:
        part.facts.append(fact)
    if is_tag:
        part.words.append((word, True))


def _add_numbered(part: _Part, word: str, tokens: Sequence[str]) -> bool:
    """Add ``4n8g``, ``bs96``, ``gpu8`` or ``mp2``; False if the word is none of these."""
    topology, match = _TOPOLOGY.fullmatch(word), _NUMBERED.fullmatch(word)
    if topology is not None:
        nodes, gpus = filter(None, topology.groups())
        if int(nodes) and int(gpus):
            part.facts += [("nodes", int(nodes)), ("gpus_per_node", int(gpus))]
    elif match is None:
        return False
    elif match[1] in _NUMBERED_TAGS:
        part.words.append((word, True))
    elif match[1] in _MICRO and _is_split(tokens):
        part.words.append((f"mbs{match[2]}", True))  # a replica's, which has several devices
    elif setting := _counted(match[1], tokens):
        part.state(setting, match[2])
    elif match[1] != "dp":  # which follows from the devices and the other sizes
        return False
    part.known += 1
    return True


def _counted(kind: str, tokens: Sequence[str]) -> str:
    """The setting that a number states behind these letters; '' if none."""
    if kind == "s" and _is_megatrons(tokens):
        return "seq_len"
    if kind == "gb" and any(_kind(token) in _MICRO for token in tokens):
        return "global_batch"
    return _COUNTS.get(kind, "")


def _kind(token: str) -> str:
    match = _NUMBERED.fullmatch(token)
    return match[1] if match is not None else ""


def _is_megatrons(tokens: Sequence[str]) -> bool:
    """Whether a name states how a model is split, as Megatron's do."""
    kinds = set(map(_kind, tokens))
    return "pp" in kinds and bool({"mp", "tp"} & kinds)


def _is_split(tokens: Sequence[str]) -> bool:
    return any(_kind(each) in _PARALLEL and each[2:].lstrip("0") != "1" for each in tokens)


def _add_unknown(part: _Part, word: str, before: str) -> None:
    """Add a word that is no setting. A number is none either where it is a date, a time, a job's
    number or a count of tests, or begins a name."""
    if word.isdigit():
        stamp = len(word) >= 6 or (len(before) >= 6 and before.isdigit())
        if stamp or before in _NOTHING or not (part.known or part.words):
            part.known += 1
            return
    part.unrecognised = True
    part.words.append((word, False))


def _same(model: str, names: Sequence[str]) -> bool:
    """Whether one of the names is this model's, be it less exactly (``bert``, ``bert_base``).

    The names of ResNet are one model: ``rn50``, ``r50``, ``resnet50``.
    """
    key = _key(model)
    return any(key.startswith(each) or each.startswith(key) for each in map(_key, names))


def _key(model: str) -> str:
    return _RESNET.sub("resnet", "".join(_tokens(model)), count=1)


def alike(one: Any, other: Any) -> bool:
    """``rn50`` and ``resnet50_v1.5`` are one model, ``ngc/tensorflow`` and ``tensorflow`` alike."""
    a, b = _key(str(one)), _key(str(other))
    return a in b or b in a
