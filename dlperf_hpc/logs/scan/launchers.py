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
| | and GitHub's (a stamp with nanoseconds), GitLab's ``.. 00O ``, compose's ``trainer-1  | ``, |
| | journald's ``host python[7]: ``, ``[pod/bert-0/torch] ``, stern's ``bert-0 torch `` |

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Optional

from ahocorasick_rs import BytesAhoCorasick

from dlperf_hpc.logs.format import Format, Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.scan.demux import HEAD_BYTES, STAMP, TAG, demultiplex, tagged_by
from dlperf_hpc.logs.scanned import Evidence

CONTAINER = "container"
"""The launcher's name where a container's or a journal's stamps stand before the lines."""

_DEEPEST = 8
_PART_BYTES = 1 << 12  # of the head in each of four places
_FEWEST = 3
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ANSI_BYTES = re.compile(_ANSI.pattern.encode())
_TORCHRUN = r"\[(?:rank(?P<global>[0-9]{1,9})|default(?P<local>[0-9]{1,9}))\]: ?"
_UNMISTAKABLE = re.compile(rf"(?:{STAMP})?{TAG} ?|{_TORCHRUN}")
_TORCHRUN_STARTS = ("[rank", "[default")
_MARKS = ("\x1b", "]<std", *_TORCHRUN_STARTS)
_UNMISTAKABLE_STARTS = ("[", *"MTWFS")  # a bracket or a day's name

_HOST = r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{0,252}):(?: |\Z)"
_PDSH = re.compile(rf"(?:pdsh@[A-Za-z0-9._-]{{1,253}}: )?{_HOST}")
_AGENT = re.compile(rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}} {_HOST}")
_LABEL = re.compile(r"(?:(?P<host>P[0-9]{1,4}) )?(?P<label> {0,6}(?P<rank>[0-9]{1,7})):(?: |\Z)")
_ISO = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
_ZONE = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})"
_STAMP = rf"{_ISO}\.[0-9]{{1,9}}{_ZONE} "  # when a line was collected
_CONTAINER = re.compile(
    rf"(?:{_STAMP}(?:std(?:out|err) [FP] |[0-9A-F]{{2}}[OE][ +])"
    rf"|(?:[^\t\n]{{1,200}}\t[^\t\n]{{1,200}}\t)?{_ISO}\.[0-9]{{7,9}}{_ZONE} "
    rf"|\[pod/[\w.-]{{1,253}}/[\w.-]{{1,253}}\] (?:{_STAMP})?"
    rf"|(?:[A-Za-z0-9][\w.-]{{0,100}}[-_][0-9]{{1,4}} {{1,60}}|[a-z][\w.-]{{0,100}} {{2,60}})"
    rf"\| (?:{_STAMP})?"
    rf"|(?:{_STAMP[:-1]}|{_ISO}{_ZONE}|[A-Z][a-z]{{2}} [ 0-9][0-9] [0-9:]{{8}}(?:\.[0-9]{{6}})?"
    r"|[A-Z][a-z]{2} [0-9-]{10} [0-9:]{8} [A-Z]{2,5}|[0-9]{9,10}\.[0-9]{6}|\[ {0,8}[0-9.]{8,20}\]) "
    r"[A-Za-z0-9][\w.-]{0,252} [\w.@/-]{1,100}\[[0-9]{1,9}\]: )",
    re.ASCII,
)
_POD = (
    r"(?P<host>[a-z0-9][a-z0-9.]{0,60}-[a-z0-9.-]{1,190}) (?!step|iter|epoch)[a-z][a-z0-9-]{0,62} "
)
_STERN = re.compile(rf"{_POD}(?:{_STAMP})?")
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
_NAMING = BytesAhoCorasick([b"pdsh ", b"WORLD INFO DICT: "])
_PDSH_COMMAND = re.compile(r"\bpdsh [^\n]{0,200}?-w ([A-Za-z0-9._,-]{1,10000})")
_WORLD = re.compile(r"WORLD INFO DICT: \{([^}\n]{0,10000})\}")
_QUOTED = re.compile(r"'([A-Za-z0-9._-]{1,253})'")


_Origin = tuple[Optional[int], Optional[str]]  # rank and host


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
        if found is None or not self.hosts:
            return found
        host = found["host"]
        return found if host in self.hosts or _shape(host) in self.hosts else None


@dataclass(frozen=True)
class LinePrefixes:
    """How a file's lines are to be freed of what the launcher added.

    ``name`` is the outermost of ompi, horovodrun, srun, pdsh, torchrun, agent, container; or none.
    A ``tagged`` file goes through :func:`~dlperf_hpc.logs.scan.demux.demultiplex` first.
    """

    name: str = "none"
    tagged: bool = False
    forms: tuple[Form, ...] = ()

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
        for form in self.forms:
            found = form.match(text)
            if found is not None:
                rank, host = _origin(found, rank, host)
                text = text[found.end() :]
                if text.startswith(_UNMISTAKABLE_STARTS):
                    rank, host, text = _strip_unmistakable(rank, host, text)
        return StrippedLine(rank, host, text)


def detect_launcher(head: bytes) -> LinePrefixes:
    """The launcher that wrote the file which begins with ``head`` (64 KiB are looked at). A file is
    tagged if it has one tag to twenty lines: no other program writes tags. The text behind the
    tags, or behind the first prefix, may have prefixes of its own."""
    head = head[:HEAD_BYTES]
    by = tagged_by(head)
    if by:
        head = b"\n".join(chunk.data for chunk in demultiplex([head]))
    forms = _forms(head)
    names = [by, *(form.name for form in forms), "none"]
    return LinePrefixes(next(filter(None, names)), bool(by), tuple(forms))


def _forms(head: bytes) -> list[Form]:
    """The forms of prefix that most lines have, outermost first."""
    if b"\x1b" in head:
        head = _ANSI_BYTES.sub(b"", head)
    named, text = _named_hosts(head), _sample(head).decode("utf-8", errors="replace")
    lines = [line for line in text.split("\n") if line.strip()]
    forms: list[Form] = []
    while len(forms) < _DEEPEST:
        form = _form(lines, named)
        if form is None:
            break
        forms.append(form)
        found = [(line, form.match(line)) for line in lines]
        lines = [line[prefix.end() :] if prefix else line for line, prefix in found]
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


def _form(lines: list[str], named: frozenset[str]) -> Form | None:
    """The form that most of the lines begin with."""
    for form in (Form("torchrun", re.compile(_TORCHRUN)), Form(CONTAINER, _CONTAINER)):
        if _most(sum([form.pattern.match(line) is not None for line in lines]), lines):
            return form
    return (
        _labels(lines)
        or _hosts("agent", _AGENT, lines, named)
        or _hosts("pdsh", _PDSH, lines, named)
        or _hosts(CONTAINER, _STERN, lines, named)
    )


def _most(covered: int, lines: list[str]) -> bool:
    return covered >= _FEWEST and 2 * covered > len(lines)


def _labels(lines: list[str]) -> Form | None:
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
# shell's variable is no value. How processes lie on nodes is taken where the line alone says so:
# not from a hostfile, nor from a number of processes by itself.


class _Launcher(NamedTuple):
    """How a launcher's command begins, and what its options say. ``nodes`` is their number where no
    option says it. One process on each node may have all its GPUs, unless ``own``: each process has
    one, whatever their number."""

    command: str
    says: Mapping[str, str]
    own: bool = True
    nodes: str = ""


def _says(**options: str) -> dict[str, str]:
    return {name: what for what, names in options.items() for name in names.split()}


_TORCHRUN_SAYS = _says(nodes="nnodes", per_node="nproc-per-node")
_DEEPSPEED = _says(nodes="num-nodes", per_node="num-gpus", include="include i")
_ACCELERATE = _says(nodes="num-machines", processes="num-processes")
_MPI = _says(processes="np n c", per_node="npernode N ppn perhost map-by", hosts="H host hosts")
_HOROVOD = _says(processes="np n num-proc", hosts="H hosts", elastic="min-np min-num-proc")
_JSRUN = _says(sets="n nrs", sets_per_node="r rs-per-host", gpus_of_set="g gpu-per-rs")
_SRUN_SAYS = _says(nodes="N nodes", processes="n ntasks", per_node="ntasks-per-node")
_LAUNCHERS = (
    _Launcher(r"(?:mpirun|mpiexec|orterun)(?:\.[a-z]{2,10})?", _MPI, own=False),
    _Launcher("srun", _SRUN_SAYS, own=False),
    _Launcher("aprun", _says(processes="n", per_node="N"), own=False),
    _Launcher("jsrun", _JSRUN),
    _Launcher("horovodrun", _HOROVOD),
    _Launcher(r"(?:torchrun|torch\.distributed\.(?:run|launch))", _TORCHRUN_SAYS, nodes="1"),
    _Launcher("deepspeed", _DEEPSPEED),
    _Launcher("accelerate launch", _ACCELERATE),
)
_OF_PROGRAMS = _Launcher("", {**_TORCHRUN_SAYS, **_DEEPSPEED, **_ACCELERATE})
"""What a program's own options say where no launcher does."""

_COMMAND = re.compile(
    rf"(?<![\w.-])(?:{'|'.join([f'({each.command})' for each in _LAUNCHERS])})(?=\s)"
)
_PROGRAM_ENDS = (".py", ".sh", "python")
_QUOTES = "'\"\\"
_NUMBER = re.compile(r"(?:ppr:)?([0-9]{1,6})(?:[:-](?:\1(?![0-9])|(?:node|host)\b.*))?")
_OF_BATCH = {
    "--per_device_train_batch_size": "batch_size",
    "--gradient_accumulation_steps": "accumulation",
}
_BATCH = re.compile(rf"({'|'.join(_OF_BATCH)})[= ]{{1,2}}['\"]?([0-9]{{1,7}})\b")
_ELASTIC = re.compile(r"^\s*(min_nodes|max_nodes|nproc_per_node)\s*: ([0-9]{1,5})\s*$")
_PROGRAM = re.compile(r"\.py\b|\bpython|\btorchrun\b|\baccelerate launch\b")


def _read_command(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """The nodes and devices of a command line, and the batch that it gives to its program."""
    text = line.text
    if match := _ELASTIC.search(text):
        _read_elastic(line, builder, match[1], match[2])
        return
    for option, value in _BATCH.findall(text):
        builder.fact(line, _OF_BATCH[option], value)
    if _PROGRAM.search(text):
        for name, value in _topology_of(text).items():
            builder.fact(line, name, value)


def _read_elastic(line: Line, builder: ReadingBuilder, name: str, value: str) -> None:
    """torchrun's own settings: so many nodes at least, and at most."""
    if name == "nproc_per_node":
        builder.fact(line, "gpus_per_node", value)
    elif name == "min_nodes":
        builder.state["min_nodes"] = value
    elif builder.state.get("min_nodes") == value:
        builder.fact(line, "nodes", value)


def _topology_of(text: str) -> dict[str, int]:
    """What a command line says of nodes and devices. Of a launcher that starts another one, the
    nodes count."""
    told = _devices(_OF_PROGRAMS, _options(text.split(), _OF_PROGRAMS.says))
    commands = list(_COMMAND.finditer(text))
    ends = [*(each.start() for each in commands[1:]), len(text)]
    for at, (command, end) in enumerate(zip(commands, ends)):
        launcher = _LAUNCHERS[(command.lastindex or 1) - 1]
        said = _options(text[command.end() : end].split(), launcher.says)
        if not at and not text.rstrip().endswith("\\"):  # the rest may stand on the next line
            said.setdefault("nodes", launcher.nodes)
        told.update(_devices(launcher, said))
        if at + 1 < len(commands):
            told.pop("gpus_per_node", None)
    return told


def _options(words: Iterable[str], says: Mapping[str, str]) -> dict[str, str]:
    found, waits = {}, ""
    for word in itertools.islice(words, 1000):
        bare = word.strip(_QUOTES)
        name, given, value = bare.partition("=")
        key = name.lstrip("-").replace("_", "-")
        if key[1:].isdigit() and name[1:2] != "-":  # -N2
            key, given, value = key[0], "=", key[1:]
        if waits:
            found[waits], waits = bare, ""
        elif bare.startswith("-") and key in says:
            waits = "" if given else says[key]
            found[says[key]] = value.strip(_QUOTES)
        elif says is not _OF_PROGRAMS.says and bare.rstrip(".0123456789").endswith(_PROGRAM_ENDS):
            break
    return found


def _devices(launcher: _Launcher, said: Mapping[str, str]) -> dict[str, int]:
    """Nodes and GPUs per node by the values of a launcher's options, as far as they are certain."""
    numbers = {name: _number(value) for name, value in said.items() if value}
    nodes, per_node, processes = map(numbers.get, ("nodes", "per_node", "processes"))
    if gpus := numbers.get("gpus_of_set"):
        processes, per_node = [gpus * (numbers.get(n) or 0) for n in ("sets", "sets_per_node")]
    for hosts in filter(None, (_slots(said, "hosts", ","), _slots(said, "include", "@"))):
        nodes, per_node = hosts
        processes = processes if "processes" in said else nodes * per_node
        if processes is None:
            return {}
    if processes and per_node and not nodes:
        nodes = processes // per_node
    if processes and nodes and not per_node:
        per_node = processes // nodes
    if "elastic" in said or (processes and processes != (nodes or 0) * (per_node or 0)):
        return {}
    found = {"nodes": nodes, "gpus_per_node": per_node if launcher.own or per_node != 1 else None}
    return {name: value for name, value in found.items() if value}


def _number(value: str) -> int | None:
    """A whole number, also ``2:2`` nodes and ``ppr:8:node``; None of anything else."""
    match = _NUMBER.fullmatch(value)
    return int(match[1]) if match else None


def _slots(said: Mapping[str, str], name: str, between: str) -> tuple[int, int] | None:
    """The number of hosts and of the slots on each: ``a:4,b:4``, ``a:0,1@b:0,1``. None if these
    are not named, or are not the same on all."""
    hosts, counts = said.get(name, "").split(between), set()
    for slots in [host.partition(":")[2] for host in hosts]:
        counts.add(slots.count(",") + 1 if between == "@" and slots else _number(slots) or 0)
    count = counts.pop()
    return (len(hosts), count) if count and not counts else None


LAUNCH = Format(
    name="launch line",
    title="launch lines",
    evidence=Evidence.SOURCE,
    source="the launchers' documents",
    literals=(),
    own=(LinePattern(take=_read_command),),
    facts_literals=(
        *("nproc", "min_nodes ", "max_nodes ", "srun ", "aprun ", "mpirun ", "mpiexec"),
        *("horovodrun ", "deepspeed --", "accelerate launch ", "--num_gpus", "--num_machines"),
        *_OF_BATCH,
    ),
)
