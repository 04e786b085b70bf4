"""What bites among colleagues: locks, links, planted names, other people's jobs, an open umask."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from places import ROOT

from attacks.attacks import Commands, attack, never_ended, tiny_sweep
from attacks.scene import ATTACKER, SECRET, TOKEN, VICTIM, Command, Scene
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import read_ledger

# One that the attacker can start, who has none of root's rights.
_PYTHON = next(filter(os.path.exists, ("/usr/bin/python3", sys.executable)))
_HOLDS = """
import fcntl, os, sys, time
held = {}
while True:
    for folder, _, names in os.walk(sys.argv[1]):
        for path in (os.path.join(folder, name) for name in names):
            try:
                if path not in held:
                    held[path] = open(path)
                    fcntl.flock(held[path], fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.lockf(held[path], fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                pass
    print(len(held), flush=True)
    time.sleep(0.01)
"""


@attack("every file held that the attacker can open", two_users=True)
def _(scene: Scene) -> Commands:
    places = [_in_a_folder(scene, name) for name in ("held", "killed")]
    log = next(places[1].glob("ddp/**/*.log"))
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    log.with_suffix(".json").unlink()
    layout.life_of(log).touch(mode=0o600)  # what a rank leaves that was killed
    spec = scene.home / "quick.toml"
    spec.write_bytes((places[0] / "sweep.toml").read_bytes())
    for place in places:
        scene.give(place.parent, VICTIM)
        scene.start(ATTACKER, [_PYTHON, "-c", _HOLDS, str(place)])
    sweep = ["sweep", str(spec), "--cluster", "local", "--logs", str(places[0].parent)]
    run, lock = log.relative_to(places[1]).with_suffix(""), places[1] / layout.LOCK
    return [
        Command(sweep, works="12/12 .*done", writes=[places[0]]),
        Command(["status", "--why", str(run), str(places[1])], works="unknown", writes=[lock]),
    ]


def _in_a_folder(scene: Scene, name: str) -> Path:
    (scene.shared / name).mkdir()
    return scene.sweep("quick", scene.shared / name)


@attack("links in the way of what is written", two_users=True)
def _(scene: Scene) -> Commands:
    first, second = scene.sweep("first"), scene.sweep("second")
    place, keys = scene.shared / "project", scene.home / ".ssh"
    (place / "kit").mkdir(parents=True)
    for name in ("report", "result", "logs", "kit/sweeps"):
        (place / name).symlink_to(keys)
    scene.plant(place).chmod(0o777)
    (place / "kit").chmod(0o777)
    spec = scene.home / "linked.toml"
    spec.write_bytes((first / "sweep.toml").read_bytes())
    (scene.home / "scratch").mkdir()
    (scene.home / "mine").symlink_to(scene.home / "scratch")
    (scene.home / "theirs").symlink_to(place / "kit")
    scene.give(scene.home, VICTIM)
    written = [place / "kit" / name for name in ("programs", "slurm")]
    both = ["report", str(first), str(second)]
    link = f"a link of uid {ATTACKER}'s|belongs to uid {ATTACKER}"
    return [
        Command(both, told=link, cwd=place),
        Command(["extract", f"--log_dir={first}"], told=link, cwd=place),
        Command(["sweep", str(spec), "--cluster", "local", "--no-check"], told=link, cwd=place),
        Command(["init", "kit"], told=link, cwd=place, writes=written),
        Command([*both, "--out", "theirs"], told=f"into a directory of uid {ATTACKER}'s"),
        Command(["init", "mine"], works="written", writes=[scene.home / "scratch"]),
    ]


@attack("a Slurm of one machine in another's directory", two_users=True)
def _(scene: Scene) -> Commands:
    theirs, box = scene.shared / "theirs", scene.home / "box"
    theirs.mkdir()
    box.mkdir()
    (scene.shared / "link").symlink_to(box)
    scene.plant(theirs).chmod(0o777)
    scene.give(box, VICTIM)
    scene.plant(scene.shared / "link")
    env = {"PYTHONPATH": f"{ROOT}/slurm:{ROOT}/slurm/onebox"}
    return [
        Command(["up", str(path)], told=words, program=(sys.executable, "-m", "onebox"), env=env)
        for path, words in (
            (theirs, f"belongs to uid {ATTACKER}"),
            (theirs / "box", f"others can rename what is in it .*uid {ATTACKER}"),
            (scene.shared / "link", f"belongs to uid {ATTACKER}"),
        )
    ]


@attack("an umask that lets everybody write")
def _(scene: Scene) -> Commands:
    sweep = tiny_sweep(scene, "open", umask=0)
    place = scene.home / "open"
    out, kit, result = (scene.home / name for name in ("out", "kit", "result"))
    every = "csv,json,md,png,html,sqlite,junit"
    cache = {"XDG_CACHE_HOME": str(scene.home / "caches")}
    logs = [f"--log_dir={place}", f"--output_dir={result}"]
    return [
        sweep,
        Command(["report", str(place), "--out", str(out), "--write", every], writes=[out], umask=0),
        Command(["archive", str(place), "--out", f"{kit}.zip"], writes=[kit], umask=0),
        Command(["init", str(kit)], works="written", writes=[kit], umask=0),
        Command(["extract", *logs], writes=[result, scene.home / "caches"], umask=0, env=cache),
    ]


@attack("a planted name, a copy, another's job under one's own number", two_users=True)
def _(scene: Scene) -> Commands:
    copy, mine = scene.plant(scene.sweep("copy")), scene.sweep("mine")
    never_ended(mine)
    manifest = mine / layout.MANIFEST
    manifest.write_text(manifest.read_text().replace('"engine": "local"', '"engine": "slurm"'))
    scene.give(mine, VICTIM)
    noted = read_ledger(mine).submissions[-1]
    folder = scene.shared / "bin"
    folder.mkdir()
    rows = [(noted.job_id, ATTACKER, noted.token), ("9", VICTIM, noted.token)]
    squeue = _SQUEUE.format(python=sys.executable, rows=rows, me=VICTIM)
    for name, text in (("squeue", squeue), ("scancel", "#!/bin/sh\n"), ("sbatch", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    whose = f"belongs to uid {ATTACKER}"
    return [
        Command(["status", str(copy)], told=whose),
        Command(["cancel", str(copy)], told=whose, env=env),
        Command(["cancel", str(mine)], rf"job {noted.job_id} {whose}", [mine], env=env,
                works="cancelled: 9"),
    ]  # fmt: skip


_SQUEUE = """\
#!{python}
import sys

words = " ".join(sys.argv)
form = next(word.partition("=")[2] for word in sys.argv if word.startswith("--format="))
print(form.replace("%", ""))
for job, uid, token in {rows!r}:
    if ("--me" not in words or uid == {me}) and ("--jobs" not in words or job in words):
        line = form.replace("%i", job + "_0").replace("%F", job).replace("%U", str(uid))
        line = line.replace("%T", "RUNNING").replace("%k", token)
        print(line)
"""


_WORDS = ["--token", SECRET, f"--password={SECRET}", "--hub", TOKEN, "--db", f"a://me:{SECRET}@b/c",
          "--sas", f"https://a.net/c?sv=1&sig={SECRET}", "--web",
          f"https://hooks.slack.com/services/T0/B0/{SECRET}"]  # fmt: skip
_SPEC = f"""\
topologies = ["1n1g"]
repeats = 1
[measure]
warmup = 1
iterations = 2
[case]
framework = "mine"
model = "toy"
batch_size = 2
[matrix]
end = [0, 3]
[program.mine]
launch = "rank"
run = {json.dumps(["python3", "train.py", "{end}", "{outdir}", *_WORDS])}
[program.mine.env]
WANDB_API_KEY = "{SECRET}"
NCCL_SITE = "http://me:{SECRET}@b"
[program.mine.keys]
end = 0
"""
_PROGRAM = """\
import os, sqlite3, sys

print(sys.argv, dict(os.environ))
with sqlite3.connect(f"{sys.argv[2]}/my.sqlite") as made:
    made.execute("create table args as select ? as x", [" ".join(sys.argv)])
sys.exit(int(sys.argv[1]) and f"error: {sys.argv}")
"""
# What a program itself printed, or wrote, is not ours.
_READS = """
import base64, gzip, os, re, sys, zipfile

def files(path):
    with open(path, "rb") as file:
        yield path, file.read()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            yield from ((name, packed.read(name)) for name in packed.namelist())

number = 0
for folder, _, names in os.walk(sys.argv[1]):
    for path in (os.path.join(folder, name) for name in names):
        try:
            for name, data in files(path):
                number += 1
                for packed in re.findall(rb"H4sI[A-Za-z0-9+/=]+", data) * name.endswith(".html"):
                    print(ascii(gzip.decompress(base64.b64decode(packed))))
                if name.endswith(".log"):
                    data = b"".join(re.findall(rb"(?m)^dlperf .*", data))
                if not name.endswith((".out", "my.sqlite")):
                    print(name, ascii(data))
        except PermissionError:
            print("closed to others:", path)
print("files that were read:", number)
"""


@attack("a colleague reads a sweep with secrets", two_users=True)
def _(scene: Scene) -> Commands:
    group = scene.shared / "project"
    place, out = group / "secret", group / "report"
    group.mkdir()
    scene.give(group, VICTIM)
    group.chmod(0o2775)
    for name, text in (("secret.toml", _SPEC), ("train.py", _PROGRAM)):
        (scene.home / name).write_text(text)
    env = {"HF_TOKEN": TOKEN, "NCCL_WEB": f"https://hooks.slack.com/services/T0/B0/{SECRET}"}
    sweep = ["sweep", "secret.toml", "--cluster", "local", "--no-check", "--logs", str(group)]
    report = ["report", str(place), "--out", str(out), "--write", "csv,json,html,sqlite,junit"]
    packed = ["archive", str(place), "--out", str(group / "secret.zip")]
    for argv in (sweep, [*packed, "--anyway"]):  # what they write holds what the program printed
        scene.run(Command(argv, umask=0o002, env=env))
    (group / "secret.zip").rename(group / "anyway.zip")
    return [
        Command(["status", "--why", "end3", str(place)], r"\*\*\*", [place / layout.LOCK]),
        Command(report, told="report.html", writes=[out], umask=0o002),
        Command(packed, told=r"my.sqlite:\d+: holds a secret(.*\n)+.*\.log:\d+: holds a secret"),
        Command([str(group)], "closed to others: .*manifest.json(.*\n)+.*read: [2-9]\\d",
                user=ATTACKER, program=(_PYTHON, "-c", _READS)),
    ]  # fmt: skip
