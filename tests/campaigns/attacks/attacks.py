"""The attacks: what is planted, and the commands that a user types who knows nothing of it."""

from __future__ import annotations

import json
import os
import socket
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attacks.scene import SECRET, VICTIM, Command, Scene

Commands = Sequence[Command]
REFUSED = r"belongs to|can write it"  # what a refusal for somebody else's must say
ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202egpj\x7f\x9b31m"  # title, clear, right to left, DEL, C1


@dataclass(frozen=True)
class Attack:
    """``plant`` makes a scene and returns the commands. ``two_users``: it rests on an owner."""

    name: str
    plant: Callable[[Scene], Commands]
    two_users: bool = False


ATTACKS: list[Attack] = []


def attack(name: str, two_users: bool = False) -> Callable[[Callable[[Scene], Commands]], None]:
    """Put a function among the attacks."""

    def add(plant: Callable[[Scene], Commands]) -> None:
        ATTACKS.append(Attack(name, plant, two_users))

    return add


def _change(place: Path, *changes: tuple[str, Any]) -> None:
    """Change values of a manifest: ``arrays.0.token``."""
    path = place / "manifest.json"
    data = json.loads(path.read_text())
    for key, value in changes:
        *way, last = [int(part) if part.isdigit() else part for part in key.split(".")]
        at = data
        for part in way:
            at = at[part]
        at[last] = value
    path.write_text(json.dumps(data))


def never_ended(place: Path) -> None:
    """Take away what the runs left, so that they are to be asked about and run again."""
    for path in place.glob("ddp/**/*.*"):
        path.unlink()


def _looks(scene: Scene, place: Path) -> list[Command]:
    """All verbs that only look at a sweep's directory."""
    out, packed = scene.home / "report", scene.home / f"{place.name}.zip"
    return [
        Command(["status", str(place)]),
        Command(["status", "--json", str(place)]),
        Command(["logs", str(place)]),
        Command(["report", str(place), "--out", str(out)], writes=[out]),
        Command(["archive", str(place), "--anyway", "--out", str(packed)], writes=[packed]),
        Command(["rerun", "--dry-run", str(place)]),
    ]


@attack("ledger files are links, run ids shell words", two_users=True)
def _(scene: Scene) -> Commands:
    commands: list[Command] = []
    for name, words in (("linked", "bert-tiny"), ("worded", f"$({scene.payload('run-id')})")):
        place = scene.sweep(name)
        never_ended(place)
        _change(place, ("engine", "slurm"), ("cases.0.model", words))
        for file in ("verdicts.jsonl", ".submitting"):
            (place / file).symlink_to(scene.home / ".bashrc")
        (place / "report").symlink_to(scene.home)
        scene.plant(place).chmod(0o777)
        told = _said_to_have_ended(scene, place)
        looks = [*_looks(scene, place), Command(["logs", "-f", str(place)])]
        if name == "worded":
            looks = [replace(look, told="manifest.json") for look in looks]
        commands += [replace(look, env=told) for look in looks]
        commands.append(Command(["rerun", str(place)], looks[0].told or REFUSED, env=told))
    return commands


def _said_to_have_ended(scene: Scene, place: Path) -> dict[str, str]:
    """An environment whose squeue says of every task that it has failed, which is worth noting."""
    arrays = {
        row["token"]: row for row in json.loads((place / "manifest.json").read_text())["arrays"]
    }
    rows = [json.loads(line) for line in (place / "submissions.jsonl").read_text().splitlines()]
    tasks = [
        (f"{row['job_id']}_{index}", arrays[row["token"]]["name"], row["token"])
        for row in rows
        if row["job_id"]
        for index in range(len(arrays[row["token"]]["tasks"]))
    ]
    folder = scene.shared / f"bin-{place.name}"
    folder.mkdir()
    script = folder / "squeue"
    script.write_text(_SQUEUE.format(python=sys.executable, tasks=tasks))
    script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


_SQUEUE = """\
#!{python}
import sys

form = next(word.partition("=")[2] for word in sys.argv if word.startswith("--format="))
header = ("JOBID", "NAME", "COMMENT")
for task, name, token in [header, *{tasks!r}]:
    line = form
    for sign, value in (("%i", task), ("%T", "FAILED"), ("%r", "NonZeroExitCode"), ("%N", "n1"),
                        ("%j", name), ("%k", token), ("%U", "60101")):
        line = line.replace(sign, value)
    print(line)
"""


@attack("a directory planted where the sweep will go", two_users=True)
def _(scene: Scene) -> Commands:
    place = scene.sweep("quick")
    never_ended(place)
    (place / "submissions.jsonl").unlink()
    environment = {"python": "python3", "setup": [scene.payload("planted-setup")]}
    _change(place, ("site.environment", {"default": environment}))
    spec = scene.home / "quick.toml"
    spec.write_bytes((place / "sweep.toml").read_bytes())
    scene.plant(place)
    place.chmod(0o777)
    empty = scene.shared / "empty"
    (empty / "jobs").mkdir(parents=True)
    scene.plant(empty)
    empty.chmod(0o777)
    # --no-check: the user that is attacked may not start the Python of this checkout.
    where = ["--cluster", "local", "--no-check", "--logs", str(scene.shared)]
    return [
        Command(["sweep", str(spec), *where], told=REFUSED),
        Command(["sweep", str(spec), *where, "--name", "empty"], told=REFUSED),
    ]


@attack("setup lines and an interpreter in a manifest", two_users=True)
def _(scene: Scene) -> Commands:
    places = [scene.sweep(name) for name in ("setup", "python", "writable")]
    for place in places:
        never_ended(place)
    script = scene.shared / "interpreter"
    script.write_text(f"#!/bin/sh\n{scene.payload('python')}\n")
    script.chmod(0o755)
    for place in (places[0], places[2]):
        setup = {"default": {"setup": [scene.payload("setup")]}}
        _change(place, ("site.environment", setup))
    _change(places[1], ("site.environment", {"default": {"python": str(script)}}))
    for place in places[:2]:
        scene.plant(place).chmod(0o777)
    scene.give(places[2], VICTIM)  # the victim's own, but everybody could have written it
    places[2].chmod(0o777)
    return [Command(["rerun", str(place)], told=REFUSED) for place in places]


@attack("links to the victim's files in what is archived")
def _(scene: Scene) -> Commands:
    place = scene.sweep("gallery")
    (place / "jobs" / "notes.out").symlink_to(scene.home / ".ssh" / "id_rsa")
    (place / "keys").symlink_to(scene.home / ".ssh")
    os.mkfifo(place / "jobs" / "pipe.out")
    scene.plant(place)
    target = scene.home / "gallery.zip"
    return [Command(["archive", str(place), "--out", str(target)], "notes.out", writes=[target])]


def _archive(path: Path, members: Sequence[tuple[str, bytes]], link: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
        if link:
            told = zipfile.ZipInfo(f"quick/{link}")
            told.external_attr = 0o120777 << 16
            archive.writestr(told, "/etc/passwd")
    return path


@attack("archives: bombs, members outside, links, damage")
def _(scene: Scene) -> Commands:
    manifest = (scene.sweep("whole") / "manifest.json").read_bytes()
    whole = [("quick/manifest.json", manifest)]
    zeros = bytes(64 << 20)
    bomb = [(f"quick/ddp/{n}.log", zeros) for n in range(8)]
    made = {
        "bomb": _archive(scene.shared / "bomb.zip", [*whole, *bomb]),
        "up": _archive(scene.shared / "up.zip", [*whole, ("quick/../../../effects/up", b"x")]),
        "top": _archive(scene.shared / "top.zip", [("../manifest.json", manifest)]),
        "dot": _archive(scene.shared / "dot.zip", [("./manifest.json", manifest)]),
        "root": _archive(scene.shared / "root.zip", [("/manifest.json", manifest)]),
        "link": _archive(scene.shared / "link.zip", whole, link="ddp/x.log"),
        "damaged": _archive(scene.shared / "damaged.zip", whole),
    }
    data = bytearray(made["damaged"].read_bytes())
    data[60:120] = bytes(60)
    made["damaged"].write_bytes(data)
    out = scene.home / "out"
    temporary = {"TMPDIR": str(scene.home)}
    told = {"bomb": "unpacks to", "up": "no plain path", "link": "no file", "damaged": "unpacked"}
    looks = [
        Command(["status", str(path)], told.get(name, "error"), env=temporary)
        for name, path in made.items()
    ]
    reports = [
        Command(["report", str(path), "--out", str(out)], told.get(name, ""), [out], env=temporary)
        for name, path in made.items()
    ]
    return [*looks, *reports]


@attack("secrets in the environment of a run")
def _(scene: Scene) -> Commands:
    families = ("NVIDIA", "CUDA", "NCCL", "OMPI", "TORCH", "XLA", "UCX", "PMIX", "SLURM_JOB")
    words = ("API_KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS", "AUTH", "JWT")
    names = [f"{family}_{word}" for family in families for word in words]
    names.append("OMPI_MCA_orte_precondition_transports")
    return [tiny_sweep(scene, "secret", env=dict.fromkeys(names, SECRET))]


@attack("modules in the current directory")
def _(scene: Scene) -> Commands:
    place = scene.shared / "here"
    place.mkdir()
    for name in ("pandas", "matplotlib", "submitit", "numpy", "torch", "mpi4py", "rich", "json"):
        (place / f"{name}.py").write_text(f"import os\nos.system({scene.payload(name)!r})\n")
    scene.plant(place)
    sweep = tiny_sweep(scene, "modules", cwd=place)
    out = scene.home / "out"
    report = ["report", str(scene.home / "modules"), "--out", str(out)]
    return [sweep, Command(report, writes=[out], cwd=place)]


def tiny_sweep(scene: Scene, name: str, **more: Any) -> Command:
    """A sweep of one short run, in the victim's home."""
    spec = scene.home / f"{name}.toml"
    spec.write_text(
        'repeats = 1\ntopologies = ["1n1g"]\n[case]\nframework = "ddp"\nmodel = "bert-tiny"\n'
        "batch_size = 2\nseq_len = 16\n[measure]\nwarmup = 1\niterations = 2\n"
    )
    argv = ["sweep", str(spec), "--cluster", "local", "--no-check", "--logs", str(scene.home)]
    return Command(argv, told="1n1g", writes=[scene.home / name], **more)


@attack("pipes, sockets and devices in place of files")
def _(scene: Scene) -> Commands:
    commands: list[Command] = []
    for number, name in enumerate(("manifest.json", "verdicts.jsonl", "submissions.jsonl", "log")):
        for kind in ("pipe", "zero"):
            place = scene.sweep(f"{kind}{number}")
            path = next(place.glob("ddp/**/*.log")) if name == "log" else place / name
            path.unlink(missing_ok=True)
            _put(kind, path)
            scene.plant(place)
            commands += [Command(["status", str(place)], told=_KINDS[kind])]
            out = scene.home / place.name
            argv = ["report", str(place), "--out", str(out), "--write", "csv"]
            commands += [Command(argv, _KINDS[kind], writes=[out])]
    for kind in _KINDS:
        spec = scene.shared / f"{kind}.toml"
        _put(kind, spec)
        commands.append(Command(["sweep", str(spec), "--dry-run"], told=_KINDS[kind]))
        commands.append(Command(["extract", f"--log_dir={spec}"], told=_KINDS[kind]))
    walked = scene.sweep("walked")
    for kind in _KINDS:
        _put(kind, walked / f"{kind}.log")
    (walked / "manifest.json").unlink()
    out = scene.home / "walked"
    commands.append(Command(["report", str(walked), "--out", str(out)], writes=[out]))
    return commands


_KINDS = {"pipe": "named pipe", "zero": "device", "socket": "socket"}


def _put(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path, 0o644)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)


_VALUES: tuple[tuple[str, Any], ...] = (
    ("arrays.0.repeats_per_job", 0),
    ("arrays.0.token", ["dlperf-1"]),
    ("arrays.0.token", "x\n#SBATCH --wrap=id"),
    ("arrays.0.name", "../../../evil"),
    ("arrays.0.time_limit_s", "soon"),
    ("arrays.0.tasks", [[0, 10**30]]),
    ("arrays.0.exclude", "$(id)"),
    ("arrays.0.environment", {"a": 1}),
    ("sweep", "../../evil"),
    ("sweep", "\ud800"),
    ("engine", "../../os"),
    ("measure", {"iterations": "x"}),
    ("cases.0.topology", "999999999999n1g"),
    ("cases.0.environment", ESCAPE),
)


@attack("values in a manifest that no sweep writes")
def _(scene: Scene) -> Commands:
    commands: list[Command] = []
    for number, change in enumerate(_VALUES):
        place = scene.sweep(f"value{number}")
        never_ended(place)
        _change(place, change)
        commands.append(Command(["status", str(place)], told="manifest.json"))
        commands.append(Command(["rerun", "--dry-run", str(place)], told="manifest.json"))
    deep = scene.sweep("deep")
    (deep / "manifest.json").write_text("[" * 100_000)
    rows = scene.sweep("rows")
    for path in (rows / "submissions.jsonl", rows / "verdicts.jsonl"):
        path.write_text("[" * 100_000 + "\n" + '{"array": [], "token": {}, "run": 7}\n')
    scene.give(scene.shared, VICTIM)  # as if his own: what is in it has to be enough
    commands += [Command(["status", str(deep)], told="manifest.json")]
    return [*commands, Command(["status", str(rows)], told="jsonl")]


@attack("control characters in reasons, names and keys")
def _(scene: Scene) -> Commands:
    place = scene.sweep("noisy")
    never_ended(place)
    path = place / "manifest.json"
    rows = [
        {"array": row["name"], "token": row["token"], "error": ESCAPE}
        for row in json.loads(path.read_text())["arrays"]
    ]
    (place / "submissions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    strange = scene.shared / "strange"
    strange.mkdir()
    (strange / f"a{ESCAPE.replace('/', '')}\nb.log").write_text("no format at all\n")
    (strange / "deepspeed_1n1g_b2_fp32.log").write_text(
        f"0/1, SamplesPerSec=1.5 {ESCAPE}\nError: {ESCAPE}\n"
    )
    spec = scene.shared / "keys.toml"
    spec.write_text('"a\\u001b[31m\\u202e" = 1\n[case]\n"\\u009b" = 2\n')
    scene.plant(place)
    out = scene.home / "strange"
    return [
        *_looks(scene, place),
        Command(["report", str(strange), "--out", str(out)], writes=[out]),
        Command(["extract", f"--log_dir={strange}"], writes=[scene.home / "result"]),
        Command(["sweep", str(spec), "--dry-run"], told="error"),
        Command(["sweep", str(scene.shared / ESCAPE), "--dry-run"], told="keys|found|no such"),
        Command(["status", str(scene.shared / ESCAPE)], told="no "),
    ]


@attack("sweep files without bounds")
def _(scene: Scene) -> Commands:
    many = ", ".join(map(str, range(10**6)))
    wide = ", ".join(map(str, range(1, 217)))
    rows = {
        "digits": f"repeats = {'9' * 5000}\n",
        "list": f"[matrix]\nbatch_size = [{many}]\n",
        "product": f"[matrix]\nbatch_size = [{wide}]\nseq_len = [{wide}]\nseed = [{wide}]\n",
        "deep": f"a = {'[' * 100_000}\n",
        "excludes": f"[matrix]\nbatch_size = [{wide}]\nseed = [{wide}]\n"
        + "".join(f"[[exclude]]\nbatch_size = {n}\nseed = {n}\n" for n in range(1000)),
        "errors": "".join(f"wrong{n} = 1\n" for n in range(10_000)),
    }
    commands = []
    for name, text in rows.items():
        path = scene.shared / f"{name}.toml"
        head = 'repeats = 1\ntopologies = ["1n1g"]\n' if name != "digits" else ""
        path.write_text(head + text)
        commands.append(Command(["sweep", str(path), "--dry-run"], told="toml"))
    return commands


@attack("a cache of scans that somebody else made", two_users=True)
def _(scene: Scene) -> Commands:
    cache = scene.shared / "cache"
    place = scene.sweep("cached")
    (place / "manifest.json").unlink()
    (place / "x.log").write_text("0/1, SamplesPerSec=1.5\n0/2, SamplesPerSec=1.5\n")
    out = scene.home / "cached"
    folder = cache / "dlperf_hpc"
    folder.mkdir(parents=True)
    scene.plant(cache)
    for path in (cache, folder):
        path.chmod(0o777)
    argv = ["report", str(place), "--out", str(out), "--nodes", "1", "--gpus-per-node", "1"]
    return [Command(argv, writes=[out, cache], env={"XDG_CACHE_HOME": str(cache)})]


@attack("another's directory as the current one")
def _(scene: Scene) -> Commands:
    place = scene.shared / "cwd"
    (place / "slurm").mkdir(parents=True)
    (place / "slurm" / "mine.toml").write_text('[environment.default]\npython = "x\\ny"\n')
    (place / "x.toml").write_text("repeats = 1\n[case]\nmodel = 7\n")
    scene.plant(place)
    return [
        Command(["sweep", "x.toml", "--site", "mine", "--dry-run"], told="toml", cwd=place),
        Command(["status", "."], told="manifest.json", cwd=place),
    ]
