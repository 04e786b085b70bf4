"""The settings and tags of a run by the path of its log, when another program wrote it.

DLPerf's extraction knows one layout, ``bz32/4n8g/bert_b32_fp32_1.log``, and reads it by position:
a case of ten nodes or a name with one word more ends it, and two variants with one name become
one run. Here every word of the name is looked at by itself; what is no setting is a tag, so that
runs which differ in it are never taken for repeats of each other.

The file's name is read first, then its folders upwards as far as they look like a layout of
logs; the first folder that does not ends it. :mod:`.words` reads each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from dlperf_hpc.logs.scanned import FACTS, Fact
from dlperf_hpc.logs.words import (
    COUNTING,
    LETTERED,
    NO_SETTINGS,
    Part,
    Words,
    is_precision,
    own_tag,
    read,
    read_once,
    same,
)

_FOLDERS = 5  # above the file that are looked at
_LONGEST = 4096  # characters of a path's end that are looked at
_PACKED = re.compile(r"\.(?:gz|zst|xz|bz2|lz4|zip)\Z", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(?:zip|tar|tgz|tar\.[a-z0-9]{2,3})!", re.IGNORECASE)
_ENDING = re.compile(r"\.(?:log|txt|out|err|jsonl?)\Z", re.IGNORECASE)
_ATTEMPT = re.compile(r"\.attempt[0-9]{1,6}(?:\.rank[0-9]{1,6})?\Z")

_REPEAT = re.compile(r"(.*[^_])_([0-9]{1,6})", re.DOTALL)
_OWN_TAGS = re.compile(r"[A-Za-z0-9.+-]+")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")

_OWN_FRAMEWORKS = {"ddp": "ddp"}  # as a folder only
_HOMES = frozenset(("home", "users"))  # a folder in one is somebody's name


def facts_of_path(path: PurePath | str) -> tuple[Fact, ...]:
    """The settings that the path states, in the order of ``FACTS``, all of line 0.

    A name comes once, or where the path contradicts itself once for each value, that of the
    file's name first. Model names are as written. Never raises.
    """
    stated: dict[str, list[Any]] = {name: [] for name in FACTS}
    for part in _parts(str(path)[-_LONGEST:]):
        for name, value in part.facts:
            if value not in stated[name] and not (name == "model" and same(value, stated[name])):
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


@lru_cache(maxsize=16)  # facts and variant of one path
def _parts(path: str) -> list[Part]:
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


def _file(stem: str) -> Part:
    """A file's name: DLPerf's pattern if it has it, else word by word."""
    part = _pattern(stem)
    if part is not None:
        return part
    counted, words = _REPEAT.fullmatch(stem), Words(stem)
    before = words.at(len(words.all) - 2)  # zero_1 is no repeat
    # Megatron's names end with a node's rank.
    if counted is not None and len(counted[2]) <= 2 and not words.parallel:
        part = read(counted[1])
        if part.strength and before not in COUNTING and before not in NO_SETTINGS:
            part.facts.append(("repeat", int(counted[2])))
            return part
    return read(stem)


def _pattern(stem: str) -> Part | None:
    """``<model>_b<batch>_<precision>[-<tag>...][_<word>...][_<repeat>]``; the last such ``b``."""
    words = stem.split("_")
    for at in range(len(words) - 2, 0, -1):
        head, *tags = words[at + 1].split("-")
        if re.fullmatch("b[0-9]+", words[at]) and is_precision(head):
            break
    else:
        return None
    if words[at - 1].lower() in LETTERED:
        return None
    before, model, between = _trim(words[:at])
    after = words[at + 2 :]
    repeat = after.pop() if after and re.fullmatch("[0-9]{1,6}", after[-1]) else None
    if not _OWN_TAGS.fullmatch(words[at + 1]):
        after, tags = [*tags, *after], []
    part = read("_".join([*before, *between, words[at], head]))
    if _MODEL_NAME.fullmatch(model):
        part.facts.insert(0, ("model", model))
    for tag in _own(tags):
        own_tag(part, tag)
    rest = read("_".join(after))
    part.facts += rest.facts
    part.words += rest.words
    if repeat is not None:
        part.facts.append(("repeat", int(repeat)))
    return part


def _trim(words: list[str]) -> tuple[list[str], str, list[str]]:
    """The words before the batch size: some that name no model, the model's name, some more."""
    start, end = 0, len(words)
    while start < end and not _of_a_model(words[start]):
        start += 1
    while end > start and not _of_a_model(words[end - 1]):
        if end - start > 1 and words[end - 2].lower() in LETTERED:
            break
        end -= 1
    return words[:start], "_".join(words[start:end]), words[end:]


def _of_a_model(word: str) -> bool:
    part = read_once(word)
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


def _folders(folders: list[str], name: Part) -> Iterator[Part]:
    """``folders`` from the file upwards, as long as they look like a layout of logs."""
    model, framework, anchored = name.first("model"), False, name.strength > 0
    placed = False  # the folder below is a topology or a batch size
    for at, folder in enumerate(folders[:_FOLDERS]):
        above = folders[at + 1] if at + 1 < len(folders) else ""
        if folder == "attempts":
            continue
        if folder == ".." or above.lower() in _HOMES:
            return
        part = read(folder)
        own = _OWN_FRAMEWORKS.get(folder.lower())
        if own is not None and anchored:  # above it is a sweep's name
            yield Part([("framework", own)])
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


def _only_a_model(part: Part) -> bool:
    return "model" in part.names() and "framework" not in part.names() and part.strength < 2


def _agree(part: Part, model: str | None) -> bool:
    return model is not None and same(part.first("model"), [model])


def _marked(part: Part) -> bool:
    return part.logs or ("ngc", True) in part.words


def _is_framework(folder: str) -> bool:
    part = read_once(folder)
    return folder.lower() in _OWN_FRAMEWORKS or (
        "framework" in part.names() and not part.unrecognised and "model" not in part.names()
    )


def _model_folder(folder: str, model: str | None) -> Part:
    """A folder of an unknown name where DLPerf's layout has the model: ``partial_fc`` is a method
    if the file names another model."""
    part = Part(known=1)
    if model and not same(folder, [model]):
        tag = "-".join(Words(folder).all)
        part.words = [(tag, True)] if tag else []
    elif _MODEL_NAME.fullmatch(folder):
        part.facts.append(("model", folder))
    return part


def _topmost(frameworks: list[str]) -> list[str]:
    """Of frameworks that stand on one another the one that ran the training loop; Horovod alone
    is one, beside another it only carries its gradients."""
    kept = [each for each in frameworks if each != "horovod"] or frameworks
    loops = [each for each in kept if each in ("deepspeed", "megatron")]
    if loops:
        kept = [each for each in kept if each not in ("deepspeed", "megatron", "pytorch")]
        kept.insert(0, loops[0])
    return kept
