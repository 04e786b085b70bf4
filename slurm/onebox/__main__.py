#!/usr/bin/env python3
"""A real Slurm of several nodes on one machine, in one directory.

No root, no system service, no system file: `down` removes the directory, and
nothing remains.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import cluster
import plan as planning
import pods
import processes
from errors import Trouble, Usage
from plan import Plan
from sites import SITES, USUAL

VERBS = """verbs:
  up DIR                    bring a cluster up in DIR (new or empty)
  down DIR                  end the cluster in DIR and remove DIR
  run -- COMMAND...         bring one up, run a command in it, take it down
  status DIR                which daemons live; exit code 1 when one does not
  node DIR kill|start NAME  a node's sudden death, and its return

sites for `up` and `run`; slurm/NAME.toml is the site profile for each:
""" + "".join(f"  --like {name}\n    {site.what}\n" for name, site in SITES.items())
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raise_exit(number: int, frame: FrameType | None) -> None:
    """A signal leaves through the `finally` and `except` clauses; later ones must not disturb."""
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def make_plan(args: argparse.Namespace, directory: Path) -> Plan:
    """The site's settings, and in their place whatever an option says."""
    limits = (("nodes", 1, planning.MOST_NODES), ("gpus", 0, 99), ("cpus", 1, 9999))
    for name, least, most in limits:
        if not least <= getattr(args, name) <= most:
            raise Usage(f"--{name} {getattr(args, name)}: expected {least} to {most}")
    port = args.port or Plan.port
    if not 1024 <= port <= 65000:
        raise Usage(f"--port {port}: expected 1024 to 65000")
    site = SITES.get(args.like, USUAL)
    accounting = args.accounting or site.accounting
    return Plan(
        directory=directory,
        nodes=args.nodes,
        gpus=args.gpus,
        cpus=args.cpus,
        accounting=accounting,
        port=port,
        conf=(*site.conf, *args.conf),
        gpu_type=site.gpu_type,
        job_submit=site.job_submit,
        sacctmgr=site.sacctmgr if accounting == "slurmdbd" else (),
    )


def bring_up(args: argparse.Namespace, directory: Path, owner: int | None) -> tuple[Plan, str]:
    begin = time.monotonic()
    plan = make_plan(args, directory)
    plan = cluster.up(plan, args.isolation, search_port=args.port is None, owner=owner)
    took = time.monotonic() - begin
    like = f", like {args.like}" if args.like else ""
    return plan, (
        f"{plan.nodes} nodes ({plan.isolation}), {plan.gpus} pretend GPUs each, accounting "
        f"{plan.accounting}{like}, port {plan.port}, up in {took:.1f} s"
    )


def up(args: argparse.Namespace) -> int:
    plan, summary = bring_up(args, args.directory, args.owner)
    facts = {
        "dir": str(plan.directory),
        "slurm_conf": str(plan.slurm_conf),
        "nodes": plan.names,
        "accounting": plan.accounting,
        "isolation": plan.isolation,
        "port": plan.port,
    }
    advice = (
        f"{summary}\nNow type\n  source {plan.directory}/env.sh; sinfo\nand at the end\n"
        f"  python3 {Path(__file__).parent} down {plan.directory}"
    )
    print(json.dumps(facts) if args.json else advice)
    return 0


def down(args: argparse.Namespace) -> int:
    done = cluster.down(args.directory)
    print(f"{args.directory}: " + ("down, and removed" if done else "nothing to do"))
    return 0


def end(child: subprocess.Popen[bytes]) -> None:
    """Let the command stop by itself (it got the terminal's Ctrl-C too), ask it to, then insist."""
    for insist in (child.terminate, child.kill):
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(3)
            return
        insist()


def run(args: argparse.Namespace) -> int:
    """One cluster around one command; whatever ends the command ends the cluster."""
    argv = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not argv:
        raise Usage("run: no command; e.g. `run -- srun -N4 hostname`")
    processes.adopt_orphans()
    directory = Path(tempfile.mkdtemp(prefix="onebox-", dir=scratch()))
    try:
        plan, summary = bring_up(args, directory, os.getpid())
        processes.say(f"onebox: {summary}")
        return run_command(argv, planning.client_env(plan, os.environ))
    finally:
        if (directory / planning.MARKER).exists():
            cluster.down(directory)
        elif directory.exists():
            directory.rmdir()
        processes.kill_trees(processes.descendants([self_process()]))


def scratch() -> str:
    """$TMPDIR, unless it is too long for the sockets in it."""
    usual = tempfile.gettempdir()
    return usual if len(usual) + 20 <= planning.LONGEST_DIR else "/tmp"


def self_process() -> processes.Process:
    stat = processes.read_stat("self")
    assert stat is not None
    return processes.Process(stat.pid, stat.started)


def run_command(argv: list[str], env: dict[str, str]) -> int:
    try:
        child = subprocess.Popen(argv, env=env)
    except OSError as error:
        raise Usage(f"run: cannot start {argv[0]!r}: {error.strerror}") from None
    try:
        code = child.wait()
    except BaseException:
        end(child)
        raise
    return code if code >= 0 else 128 - code


def status(args: argparse.Namespace) -> int:
    planning.load(args.directory)
    found = processes.recorded(args.directory)
    rows = {name: {"pid": p.pid, "alive": processes.alive(p)} for name, p in found.items()}
    if args.json:
        print(json.dumps(rows))
    else:
        for name, row in rows.items():
            print(f"{name:10} {'alive' if row['alive'] else 'dead':6} pid {row['pid']}")
    return 0 if all(row["alive"] for row in rows.values()) else 1


def node(args: argparse.Namespace) -> int:
    planning.load(args.directory)
    if args.action == "kill":
        cluster.kill_one(args.directory, args.name)
        print(
            f"{args.name}: killed. Slurm notices after half a minute; at once with\n"
            f"  scontrol update nodename={args.name} state=down reason=test"
        )
    else:
        cluster.start_one(args.directory, args.name)
        print(f"{args.name}: started")
    return 0


def guard(args: argparse.Namespace) -> int:
    """Take the cluster down once its owner is gone, even by SIGKILL."""
    processes.wait_for_end(args.pid)
    cluster.down(args.directory)
    return 0


def keep(args: argparse.Namespace) -> int:
    return processes.keep(args.command)


def directory(text: str) -> Path:
    return Path(os.path.abspath(text))


def cluster_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--like", choices=SITES, help="a site with habits of its own; other options win")
    add("--nodes", type=int, default=Plan.nodes, help="how many (default %(default)s)")
    add("--gpus", type=int, default=Plan.gpus, help="pretend GPUs per node (default %(default)s)")
    add("--cpus", type=int, default=Plan.cpus, help="pretend CPUs per node (default %(default)s)")
    add("--accounting", choices=("none", "slurmdbd"), help="slurmdbd: sacct works (default none)")
    add("--port", type=int, metavar="BASE", help=f"first port (default: free from {Plan.port} on)")
    add(
        "--isolation",
        choices=("auto", *pods.LEVELS),
        default="auto",
        help="how nodes are kept apart",
    )
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="change slurm.conf")


def parser() -> argparse.ArgumentParser:
    shape = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="onebox", description=__doc__, epilog=VERBS, formatter_class=shape
    )
    verbs = top.add_subparsers(
        dest="verb", required=True, metavar="VERB", help="one of these; VERB --help says more"
    )

    def verb(
        name: str, text: str, function: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, description=text)
        sub.set_defaults(function=function)
        return sub

    sub = verb("up", "bring a cluster up in DIR (new or empty)", up)
    sub.add_argument("directory", type=directory, metavar="DIR")
    cluster_options(sub)
    sub.add_argument("--owner", type=int, metavar="PID", help="take it down when this process ends")
    sub.add_argument("--json", action="store_true", help="facts for programs")
    sub = verb("down", "end the cluster in DIR and remove DIR", down)
    sub.add_argument("directory", type=directory, metavar="DIR")
    sub = verb("run", "bring one up, run a command in it, take it down", run)
    cluster_options(sub)
    sub.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...")
    sub = verb("status", "which daemons live; exit code 1 when one does not", status)
    sub.add_argument("directory", type=directory, metavar="DIR")
    sub.add_argument("--json", action="store_true", help="facts for programs")
    sub = verb("node", "a node's sudden death, and its return", node)
    sub.add_argument("directory", type=directory, metavar="DIR")
    sub.add_argument("action", choices=("kill", "start"))
    sub.add_argument("name", metavar="NAME", help="n1, n2...; or a daemon as `status` shows it")
    sub = verb("_guard", "take the cluster in DIR down once a process has ended", guard)
    sub.add_argument("directory", type=directory)
    sub.add_argument("pid", type=int)
    sub = verb("_keep", "run a command and collect all that comes to be below it", keep)
    sub.add_argument("command", nargs=argparse.REMAINDER)
    return top


def main() -> int:
    args = parser().parse_args()
    os.umask(os.umask(0o077) | 0o002)
    for number in SIGNALS:
        signal.signal(number, raise_exit)
    try:
        return int(args.function(args))
    except Trouble as trouble:
        processes.say(f"onebox: {trouble}")
        return trouble.code
    except OSError as error:
        processes.say(f"onebox: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
