"""What launchers put in front of the lines of a log, how a file's launcher is recognised, and the
settings of the command line that started it (``LAUNCH``).

| launcher | prefix |
|---|---|
| ``ompi``, ``horovodrun`` | tags, see :mod:`dlperf_hpc.logs.scan.demux` |
| ``srun`` (``--label``) | ``0: ``, padded with blanks or zeros to one width; ``P1 3: `` |
| ``pdsh`` | ``vs003: ``, ``10.0.0.7: ``; before its own messages ``pdsh@vs001: vs003: `` |
| ``torchrun`` | ``[default0]:``, ``[rank0]: `` (PyTorch itself prints the latter before errors) |
| ``agent`` | a cloud agent's ``2021-05-29 19:53:45 run6222: `` |
| ``container`` | Kubernetes' ``2026-01-05T10:00:05.123456789Z stdout F ``, ``docker logs -t`` |
| | (a stamp with nanoseconds), compose's ``trainer-1  | ``, journald's ``host python[7]: `` |

A container's or a journal's stamp is when a line was collected, many at once if output is buffered:
it is taken off, and never the program's clock.

Tags and torchrun's form are taken off wherever they stand. A number or a word before a colon can be
anything (``INFO:``, ``12: ``): it is a label only if labels of one form stand before **more than
half** of the lines of the file's head that are not blank, and before three lines at least. A host
name has a letter and a digit, or is an IPv4 address, or the log itself names it as a host; it is no
word of training (``epoch3``), and each occurs twice on average. A task number has the width that
most have, and they do not just ascend, as those of a list do.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from ahocorasick_rs import BytesAhoCorasick

from dlperf_hpc.logs.format import Format, Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.scan.demux import HEAD_BYTES, STAMP, TAG, demultiplex, is_spaced
from dlperf_hpc.logs.scanned import Evidence

CONTAINER = "container"
"""The launcher's name where a container's or a journal's stamps stand before the lines."""

_DEEPEST = 8
_PART_BYTES = 1 << 12  # of the head in each of four places
_MOST_KNOWN = 4096  # prefixes whose rank and host are remembered
_FEWEST = 3
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ANSI_BYTES = re.compile(_ANSI.pattern.encode())
_TORCHRUN = r"\[(?:rank(?P<global>[0-9]{1,9})|default(?P<local>[0-9]{1,9}))\]: ?"
_IS_TORCHRUN = re.compile(_TORCHRUN)
_UNMISTAKABLE = re.compile(rf"(?:{STAMP})?{TAG} ?|{_TORCHRUN}")
_TORCHRUN_STARTS = ("[rank", "[default")
_MARKS = ("\x1b", "]<std", *_TORCHRUN_STARTS)
_UNMISTAKABLE_STARTS = ("[", *"MTWFS")  # a bracket or a day's name
_ANY_TAG = re.compile(TAG.encode())
_GLOO_TAG = re.compile(rb"\[[0-9]{1,9}\]<std")

_HOST = r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{0,252}):(?: |\Z)"
_PDSH = re.compile(rf"(?:pdsh@[A-Za-z0-9._-]{{1,253}}: )?{_HOST}")
_AGENT = re.compile(rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}} {_HOST}")
_LABEL = re.compile(r"(?:(?P<host>P[0-9]{1,4}) )?(?P<label> {0,6}(?P<rank>[0-9]{1,7})):(?: |\Z)")
_ISO = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
_ZONE = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})"
_CONTAINER = re.compile(
    rf"(?:{_ISO}\.[0-9]{{1,9}}{_ZONE} std(?:out|err) [FP] "
    rf"|{_ISO}\.[0-9]{{7,9}}{_ZONE} "
    rf"|[A-Za-z0-9][\w.-]{{0,100}}[-_][0-9]{{1,4}} {{1,60}}\| (?:{_ISO}\.[0-9]{{1,9}}{_ZONE} )?"
    rf"|(?:[A-Z][a-z]{{2}} [ 0-9][0-9] [0-9:]{{8}}|{_ISO}(?:\.[0-9]{{1,9}})?{_ZONE}) "
    r"[A-Za-z0-9][\w.-]{0,252} [\w.@/-]{1,100}\[[0-9]{1,9}\]: )",
    re.ASCII,
)
_NUMBERS = re.compile(r"[0-9]+")
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_SOURCE_FILE = (".py", ".sh", ".c", ".cc", ".cpp", ".cu", ".h")
_NO_HOSTS = frozenset(
    (
        *("epoch", "step", "iter", "iteration", "batch", "microbatch", "trial", "fold", "phase"),
        *("stage", "layer", "conv", "fc", "bn", "loss", "top", "acc", "accuracy", "lr", "rank"),
        "slurmstepdn",  # slurmstepd-n1: error: ...
    )
)
# What may be a line's prefix, on the bytes of a whole head: quick, and misses only named hosts.
_CANDIDATE = re.compile(
    rb"\n(?:[0-9]{4}-[0-9-]{5}T[0-9:]{8}|[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} "
    rb"|[A-Za-z0-9][A-Za-z0-9_.-]{0,100}[-_][0-9]{1,4} {1,60}\|"
    rb"|\[(?:rank|default)[0-9]|(?:P[0-9]{1,4} )? {0,6}[0-9]{1,7}:(?=[ \r\n])"
    rb"|(?:[0-9]{4}-[0-9-]{5} [0-9:]{8} |pdsh@[A-Za-z0-9._-]{1,253}: )?"
    rb"[A-Za-z._-]{0,252}[0-9][A-Za-z0-9._-]{0,252}:(?=[ \r\n]))"
)
_BLANK = re.compile(rb"\n(?=[ \t\r]*\n)")
_NAMING = BytesAhoCorasick([b"pdsh ", b"WORLD INFO DICT: "])
_PDSH_COMMAND = re.compile(r"\bpdsh [^\n]{0,200}?-w ([A-Za-z0-9._,-]{1,10000})")
_WORLD = re.compile(r"WORLD INFO DICT: \{([^}\n]{0,10000})\}")
_QUOTED = re.compile(r"'([A-Za-z0-9._-]{1,253})'")


_Origin = tuple[Optional[int], Optional[str]]  # rank and host
_Prefix = tuple[int, str, Optional[int], Optional[str]]  # depth, text, rank and host so far


class StrippedLine(NamedTuple):
    """A line's text without prefixes, and the rank and host by these. torchrun's ``[default3]``
    counts within its node: if another prefix numbers the nodes (srun starts one torchrun on each),
    that number is the ``host``."""

    rank: int | None
    host: str | None
    text: str


class Form(NamedTuple):
    """A form of prefix that most lines of a file have. ``hosts`` are the names, and the shapes of
    names (``vs#``), that it may have; empty for numbers."""

    name: str
    pattern: re.Pattern[str]
    hosts: frozenset[str] = frozenset()

    def match(self, text: str) -> re.Match[str] | None:
        """The prefix at the beginning of ``text``."""
        found = self.pattern.match(text)
        return found if found is not None and self.takes(found) else None

    def takes(self, found: re.Match[str]) -> bool:
        """Whether what ``pattern`` matched is this form's prefix."""
        return not self.hosts or found["host"] in self.hosts or _shape(found["host"]) in self.hosts


@dataclass(frozen=True)
class LinePrefixes:
    """How a file's lines are to be freed of what the launcher added.

    ``name`` is the outermost of ompi, horovodrun, srun, pdsh, torchrun, agent, container; or none.
    A ``tagged`` file goes through :func:`~dlperf_hpc.logs.scan.demux.demultiplex` first.
    """

    name: str = "none"
    tagged: bool = False
    forms: tuple[Form, ...] = ()
    _known: dict[_Prefix, _Origin | tuple[()]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def leaves(self, text: str) -> bool:
        """Whether :meth:`strip` would take nothing off any of the lines in ``text``."""
        return not self.forms and not any([mark in text for mark in _MARKS])

    def strip(self, text: str) -> StrippedLine:
        """A line without prefixes and ANSI codes, with the rank and host by the prefixes."""
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        if not self.forms and text[:1] != "[" and "]<std" not in text:
            return StrippedLine(None, None, text)  # as nearly all are
        rank = host = None
        if "]<std" in text or text.startswith(_TORCHRUN_STARTS):
            rank, host, text = _strip_unmistakable(rank, host, text)
        for depth, form in enumerate(self.forms):
            found = form.pattern.match(text)
            origin = found and self._origin(depth, form, found, rank, host)
            if found and origin:
                rank, host = origin
                text = text[found.end() :]
                if text.startswith(_UNMISTAKABLE_STARTS):
                    rank, host, text = _strip_unmistakable(rank, host, text)
        return StrippedLine(rank, host, text)

    def _origin(
        self, depth: int, form: Form, found: re.Match[str], rank: int | None, host: str | None
    ) -> _Origin | tuple[()]:
        """Rank and host by a prefix, () if it is none. They recur behind the same ones."""
        key = (depth, found[0], rank, host)
        origin = self._known.get(key)
        if origin is None:
            origin = _origin(found, rank, host) if form.takes(found) else ()
            if len(self._known) < _MOST_KNOWN:
                self._known[key] = origin
        return origin


def detect_launcher(head: bytes) -> LinePrefixes:
    """The launcher that wrote the file which begins with ``head`` (64 KiB are looked at). A file is
    tagged if it has one tag to twenty lines: no other program writes tags. The text behind the
    tags, or behind the first prefix, may have prefixes of its own."""
    head = head[:HEAD_BYTES]
    tagged_by = _tagged_by(head)
    if tagged_by:
        head = b"\n".join(chunk.data for chunk in demultiplex([head]))
    forms = _forms(head)
    names = [tagged_by, *(form.name for form in forms), "none"]
    return LinePrefixes(next(filter(None, names)), bool(tagged_by), tuple(forms))


def _tagged_by(head: bytes) -> str:
    """The launcher that writes the tags on the lines, or "" if there are none."""
    tags = [tag[0] for tag in _ANY_TAG.finditer(head)] if b"]<std" in head else []
    if not tags or 20 * len(tags) < head.count(b"\n"):
        return ""
    gloo = sum(_GLOO_TAG.match(tag) is not None for tag in tags)
    # A lone number and a blank is PRRTE's "rank" output.
    return "horovodrun" if 2 * gloo > len(tags) and not is_spaced(head) else "ompi"


def _forms(head: bytes) -> list[Form]:
    """The forms of prefix that most lines have, outermost first."""
    if b"\x1b" in head:
        head = _ANSI_BYTES.sub(b"", head)
    named, head = _named_hosts(head), _sample(head)
    if not named and not _may_have_form(b"\n" + head):
        return []
    text = head.decode("utf-8", errors="replace")
    lines = [line for line in text.split("\n") if line.strip()]
    forms: list[Form] = []
    while len(forms) < _DEEPEST:
        form = _form(lines, named)
        if form is None:
            break
        forms.append(form)
        found = [(line, form.match(line)) for line in lines]
        lines = [line[prefix.end() :] if prefix else line for line, prefix in found]
        if not named and not _may_have_form("\n".join(["", *lines]).encode()):
            break
    return forms


def _sample(head: bytes) -> bytes:
    """Whole lines from four places of a long head: enough to see what most of its lines are."""
    if len(head) <= 4 * _PART_BYTES:
        return head
    parts = []
    for begin in range(0, len(head), -(-len(head) // 4)):
        start = head.find(b"\n", begin) + 1 if begin else 0
        parts.append(head[start : head.rfind(b"\n", start, begin + _PART_BYTES) + 1])
    return b"".join(parts)


def _may_have_form(head: bytes) -> bool:
    """Whether lines may have a form of prefix: a quick test, since most files have none."""
    lines = head.count(b"\n") - len(_BLANK.findall(head)) - 1
    middle = max(head.rfind(b"\n", 0, len(head) // 2), 0)
    candidates = len(_CANDIDATE.findall(head, 0, middle + 1))
    if 2 * (candidates + head.count(b"\n", middle)) <= lines:
        return False
    candidates += len(_CANDIDATE.findall(head, middle))
    return candidates >= _FEWEST and 2 * candidates > lines


def _form(lines: list[str], named: frozenset[str]) -> Form | None:
    """The form that most of the lines begin with."""
    for form in (Form("torchrun", _IS_TORCHRUN), Form(CONTAINER, _CONTAINER)):
        if _most(sum([form.pattern.match(line) is not None for line in lines]), lines):
            return form
    return (
        _labels(lines)
        or _hosts("agent", _AGENT, lines, named)
        or _hosts("pdsh", _PDSH, lines, named)
    )


def _most(covered: int, lines: list[str]) -> bool:
    return covered >= _FEWEST and 2 * covered > len(lines)


def _labels(lines: list[str]) -> Form | None:
    """The form of srun's labels, if most lines have one."""
    found = [label for label in map(_LABEL.match, lines) if label]
    if not found:
        return None
    width = Counter(len(label["label"]) for label in found).most_common(1)[0][0]
    ranks = [int(label["rank"]) for label in found if len(label["label"]) == width]
    # Ranks come in any order, or it is one rank; a list's numbers ascend but where it starts anew.
    falls = sum(later <= earlier for earlier, later in zip(ranks, ranks[1:]))
    if not _most(len(ranks), lines) or 20 * falls < len(ranks):
        return None
    number = rf"(?=[ 0-9]{{{width}}}:) *(?P<rank>[0-9]{{1,7}})"
    return Form("srun", re.compile(rf"(?:(?P<host>P[0-9]{{1,4}}) )?{number}:(?: |\Z)"))


def _hosts(
    name: str, pattern: re.Pattern[str], lines: list[str], named: frozenset[str]
) -> Form | None:
    """A form with host names in it."""
    words = Counter([found["host"] for found in map(pattern.match, lines) if found])
    hosts = {word: n for word, n in words.items() if word in named or _may_be_host(word)}
    covered = sum(hosts.values())
    if not _most(covered, lines) or covered < 2 * len(hosts):
        return None
    shapes = {_shape(word) for word in hosts if _NUMBERS.search(word)}
    return Form(name, pattern, frozenset(hosts) | shapes)


def _may_be_host(word: str) -> bool:
    """Whether a word before a colon looks like a host's name, rather than anything else."""
    if _IPV4.fullmatch(word):
        return True
    letters = "".join(filter(str.isalpha, word)).lower()
    if not letters or letters in _NO_HOSTS or word.lower().endswith(_SOURCE_FILE):
        return False
    return _NUMBERS.search(word) is not None


def _named_hosts(head: bytes) -> frozenset[str]:
    """Hosts that DeepSpeed's launcher names in pdsh's command line or its table of workers."""
    if not _NAMING.find_matches_as_indexes(head):
        return frozenset()
    text = head.decode("utf-8", errors="replace")
    commands = (match.split(",") for match in _PDSH_COMMAND.findall(text))
    worlds = map(_QUOTED.findall, _WORLD.findall(text))
    return frozenset(itertools.chain(*commands, *worlds))


def _shape(host: str) -> str:
    """``vs003`` -> ``vs#``: nodes whose first line comes later have names of the same shape."""
    return _NUMBERS.sub("#", host)


def _strip_unmistakable(rank: int | None, host: str | None, text: str) -> StrippedLine:
    """A line without the prefixes that cannot be mistaken, with the rank and host by them."""
    for _ in range(_DEEPEST):
        found = _UNMISTAKABLE.match(text)
        if found is None:
            break
        rank, host = _origin(found, rank, host)
        text = text[found.end() :]
    return StrippedLine(rank, host, text)


def _origin(found: re.Match[str], outer: int | None, host: str | None) -> _Origin:
    """Rank and host by a prefix; ``outer`` and ``host`` are those by the prefixes before it."""
    groups = found.groupdict()
    host = groups.get("host") or host
    rank = groups.get("rank") or groups.get("global") or groups.get("local")
    if groups.get("local") and host is None and outer is not None:
        host = str(outer)
    return int(rank) if rank else outer, host


# --- command lines that a script prints, and torchrun's own ``min_nodes        : 2``
#
# They belong to no program: the settings count only in a file in which a format is recognised. A
# shell's variable is no value, and only torchrun's one node is taken for a default.

_VALUE = r"[= ]{1,2}['\"]?"
_PER_NODE = re.compile(rf"--nproc[-_]per[-_]node{_VALUE}([0-9]{{1,4}})\b")
_NNODES = re.compile(rf"--nnodes{_VALUE}([0-9]{{1,5}})(?::([0-9]{{1,5}}))?(?![0-9:])")
_TORCHRUN_COMMAND = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|-?-standalone)\b")
_SRUN = re.compile("srun ")
_SRUN_NODES = re.compile(rf"(?:--nodes{_VALUE}|\s-N ?)([0-9]{{1,5}})(?![-0-9,])")
_PROCESSES = re.compile(r"\s(?:-np|-n|--num-proc|--np)[= ]([0-9]{1,6})\b")
_HOSTS = re.compile(
    r"\s(?:-H|--hosts?)[= ]((?:[\w.-]{1,255}:[0-9]{1,4},){0,4096}[\w.-]{1,255}:[0-9]{1,4})(?=\s)"
)
_NUM_NODES = re.compile(rf"--num_nodes{_VALUE}([0-9]{{1,5}})\b")
_NUM_GPUS = re.compile(rf"--num_gpus{_VALUE}([0-9]{{1,4}})\b")
_MACHINES = re.compile(rf"--num_machines{_VALUE}([0-9]{{1,5}})\b")
_NUM_PROCESSES = re.compile(rf"--num_processes{_VALUE}([0-9]{{1,6}})\b")
_BATCH = re.compile(rf"--per_device_train_batch_size{_VALUE}([0-9]{{1,7}})\b")
_ELASTIC = re.compile(r"^\s*(min_nodes|nproc_per_node)\s*: ([0-9]{1,5})\s*$")
_ELASTIC_FACTS = {"min_nodes": "nodes", "nproc_per_node": "gpus_per_node"}
_PROGRAM = re.compile(r"\.py\b|\bpython|\btorchrun\b")


# What shows the launcher, and the settings that it is given.
_LAUNCHERS = (
    (_PER_NODE, {"gpus_per_node": _PER_NODE}),  # torchrun
    (_NUM_GPUS, {"gpus_per_node": _NUM_GPUS, "nodes": _NUM_NODES}),  # deepspeed
    (_MACHINES, {"nodes": _MACHINES, "devices": _NUM_PROCESSES}),  # accelerate
    (_SRUN, {"nodes": _SRUN_NODES}),
)


def _read_command(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """The nodes and devices of a command line, and the batch that it gives to its program."""
    text = line.text
    if match := _ELASTIC.search(text):
        builder.fact(line, _ELASTIC_FACTS[match[1]], match[2])
        return
    if match := _BATCH.search(text):
        builder.fact(line, "batch_size", match[1])
    if _PROGRAM.search(text):
        _read_launcher(line, builder)


def _read_launcher(line: Line, builder: ReadingBuilder) -> None:
    for sign, settings in _LAUNCHERS:
        if sign.search(line.text):
            for name, pattern in settings.items():
                if match := pattern.search(line.text):
                    builder.fact(line, name, match[1])
            if sign is _PER_NODE:
                _read_nnodes(line, builder)
            return
    if "mpirun " in line.text or "horovodrun " in line.text:
        _read_hosts(line, builder)


def _read_nnodes(line: Line, builder: ReadingBuilder) -> None:
    nodes, text = _NNODES.search(line.text), line.text
    if nodes is not None:
        if nodes[2] in (None, nodes[1]):
            builder.fact(line, "nodes", nodes[1])
    elif "--nnodes" not in text and _TORCHRUN_COMMAND.search(text) and "srun " not in text:
        builder.fact(line, "nodes", 1)


def _read_hosts(line: Line, builder: ReadingBuilder) -> None:
    """Hosts and their slots, if the processes fill them."""
    hosts, processes = _HOSTS.search(line.text), _PROCESSES.search(line.text)
    if hosts is None:
        return
    slots = {host.rsplit(":", 1)[1] for host in hosts[1].split(",")}
    count = hosts[1].count(",") + 1
    if len(slots) == 1 and (processes is None or int(processes[1]) == count * int(*slots)):
        builder.fact(line, "nodes", count)
        builder.fact(line, "gpus_per_node", slots.pop())


LAUNCH = Format(
    name="launch line",
    title="launch lines",
    evidence=Evidence.SOURCE,
    source="the launchers' documents",
    literals=(),
    own=(LinePattern(take=_read_command),),
    facts_literals=(
        *("nproc", "min_nodes ", "srun ", "mpirun ", "horovodrun "),
        *("--num_gpus", "--num_machines", "--per_device_train_batch_size"),
    ),
)
