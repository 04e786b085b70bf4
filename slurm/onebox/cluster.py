"""The daemons of a one-machine Slurm: up, down, and single nodes in between."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import plan as planning
import pods
import processes
from errors import Trouble, Usage
from plan import Plan

SBIN = "/usr/sbin:/usr/local/sbin:/sbin"  # absent from an ordinary user's PATH
BASE_TOOLS = ("slurmctld", "slurmd", "sinfo", "srun", "sbatch", "munged", "unshare")
DB_TOOLS = ("slurmdbd", "sacctmgr", "mariadbd", "mysql_install_db")
INSTALL = "apt-get install -y --no-install-recommends "
BASE_PACKAGES = "slurmctld slurmd slurm-client munge"
DB_PACKAGES = "slurmdbd mariadb-server"
USABLE = {"idle", "mixed", "allocated", "completing"}
PORT_STEP = 100


def daemon_env() -> dict[str, str]:
    """What daemons and our own commands get to see: little, and in English."""
    path = os.environ.get("PATH", "/usr/bin:/bin") + ":" + SBIN
    home = os.environ.get("HOME", "/")
    return {"PATH": path, "HOME": home, "LC_ALL": "C"}


def check_tools(accounting: str) -> None:
    wanted = BASE_TOOLS + (DB_TOOLS if accounting == "slurmdbd" else ())
    path = daemon_env()["PATH"]
    missing = [tool for tool in wanted if shutil.which(tool, path=path) is None]
    if missing:
        packages = BASE_PACKAGES + (f" {DB_PACKAGES}" if accounting == "slurmdbd" else "")
        raise Usage(f"not installed: {', '.join(missing)}; as root type\n  {INSTALL}{packages}")


def check_directory(directory: Path) -> None:
    planning.check_place(directory)
    if os.path.lexists(directory):
        planning.check_owner(directory)
    if (directory / planning.MARKER).exists():
        raise Usage(f"{directory}: a cluster is here already; `onebox down {directory}` removes it")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Usage(f"{directory}: exists and is not an empty directory; name another")
    if len(str(directory)) > planning.LONGEST_DIR or set(str(directory)) & set(" \t\n\"'#%\\,"):
        raise Usage(
            f"{directory}: too long for socket names (at most {planning.LONGEST_DIR} characters), "
            "or holds a character that Slurm's files cannot; name another, e.g. below /tmp"
        )


def bindable(ports: list[int]) -> bool:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                return False
    return True


@contextlib.contextmanager
def free_ports(plan: Plan, search: bool) -> Iterator[Plan]:
    """The plan on free ports, which no other `up` takes while our daemons are starting.

    The claim is an abstract socket: it has no file and ends with us.
    """
    bases = range(plan.port, 32000 if search else plan.port + 1, PORT_STEP)
    for base in bases:
        candidate = dataclasses.replace(plan, port=base)
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0dlperf-onebox-{base}")
            except OSError:
                continue
            if bindable(candidate.ports()):
                yield candidate
                return
    raise Usage(f"no free ports from {plan.port} on; choose others with --port")


def daemon_argv(plan: Plan, name: str) -> list[str]:
    """The command line of a daemon, by the name under which `status` shows it."""
    d, hosts = plan.directory, plan.directory / "etc" / "hosts"
    if name == "munged":
        return [
            *("munged", "--foreground", "--force", "--num-threads=2"),
            *(f"--key-file={d}/munge/key", f"--socket={plan.socket('munge')}"),
            *(f"--pid-file={d}/munge/pid", f"--seed-file={d}/munge/seed"),
            f"--log-file={d}/munge/log",
        ]
    if name == "mariadbd":
        return ["mariadbd", *database_options(plan), "--skip-networking", "--skip-grant-tables"]
    if name == "slurmdbd":
        return pods.named(plan.isolation, plan.head, hosts, ["slurmdbd", "-D"])
    if name == "slurmctld":
        argv = ["slurmctld", "-D", "-f", str(plan.daemon_conf)]
        return pods.named(plan.isolation, plan.head, hosts, argv)
    argv = ["slurmd", "-D", "-N", name, "-f", str(plan.daemon_conf)]
    return pods.node(plan.isolation, name, hosts, argv)


def database_options(plan: Plan) -> list[str]:
    """MariaDB, small and careless: its data need not outlive a power cut."""
    return [
        *("--no-defaults", f"--datadir={plan.directory}/mysql", f"--user={planning.user()}"),
        *(f"--socket={plan.socket('mysql')}", f"--pid-file={plan.directory}/run/mysql.pid"),
        *(f"--tmpdir={plan.directory}/tmp", "--innodb-buffer-pool-size=32M"),
        "--innodb-log-file-size=16M",
        *("--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync"),
    ]


def start(plan: Plan, name: str) -> None:
    env = daemon_env()
    if name == "slurmdbd":  # it takes its directory from slurm.conf, its database from the library
        env |= {"SLURM_CONF": str(plan.slurm_conf), "MYSQL_UNIX_PORT": str(plan.socket("mysql"))}
    processes.spawn(plan.directory, name, daemon_argv(plan, name), env)


def log_tail(plan: Plan, name: str, lines: int = 15) -> str:
    path = plan.directory / "log" / f"{name}.err"
    text = path.read_text(errors="replace") if path.exists() else ""
    return f"last lines of {name}'s log:\n" + "\n".join(text.splitlines()[-lines:])


def await_daemon(plan: Plan, name: str, ready: Callable[[], bool], seconds: float) -> None:
    """Wait until a daemon serves; fail at once when it died, and show why."""

    def still_there() -> None:
        process = processes.recorded(plan.directory).get(name)
        if process is None or not processes.alive(process):
            raise Trouble(f"{name} ended while starting; {log_tail(plan, name)}")

    if not processes.wait_until(ready, seconds, still_there):
        raise Trouble(f"{name} does not answer after {seconds:.0f} s; {log_tail(plan, name)}")


def connects(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family) as probe:
        return probe.connect_ex(address) == 0


def listens(plan: Plan, offset: int) -> Callable[[], bool]:
    return lambda: connects(socket.AF_INET, ("127.0.0.1", plan.port + offset))


def node_states(plan: Plan) -> dict[str, str]:
    """Name -> state, as sinfo says; a trailing `*` (does not respond) is kept."""
    env = planning.client_env(plan, daemon_env())
    code, output = processes.command(["sinfo", "-h", "-N", "-p", "main", "-o", "%N %T"], env)
    rows = [line.split() for line in output.splitlines()] if code == 0 else []
    return {row[0]: row[1] for row in rows if len(row) == 2}


def node_is(plan: Plan, name: str, wanted: set[str]) -> bool:
    return node_states(plan).get(name) in wanted


def start_database(plan: Plan) -> None:
    """MariaDB, slurmdbd on top of it, and in it the cluster's name, which slurmctld needs."""
    env = daemon_env()
    install = ["mysql_install_db", *database_options(plan)]
    install += ["--auth-root-authentication-method=normal", "--skip-test-db"]
    if processes.task(plan.directory, "mysql_install_db", install, env, 120) != 0:
        raise Trouble(f"mysql_install_db failed; {log_tail(plan, 'mysql_install_db')}")
    start(plan, "mariadbd")
    mysql = str(plan.socket("mysql"))
    await_daemon(plan, "mariadbd", lambda: connects(socket.AF_UNIX, mysql), 60)
    start(plan, "slurmdbd")
    await_daemon(plan, "slurmdbd", listens(plan, planning.DATABASE_PORT), 60)
    for words in ("add cluster onebox", *plan.sacctmgr):
        argv = ["sacctmgr", "-i", *words.format(user=planning.user()).split()]
        code, output = processes.command(argv, planning.client_env(plan, env))
        if code != 0:
            raise Trouble(f"`{' '.join(argv)}` failed: {output}\n{log_tail(plan, 'slurmdbd')}")


def start_all(plan: Plan) -> None:
    start(plan, "munged")
    await_daemon(plan, "munged", plan.socket("munge").exists, 15)
    if plan.accounting == "slurmdbd":
        start_database(plan)
    start(plan, "slurmctld")
    for name in plan.names:
        start(plan, name)
    await_daemon(plan, "slurmctld", listens(plan, planning.CONTROLLER_PORT), 30)
    for name in plan.names:
        await_daemon(plan, name, functools.partial(node_is, plan, name, {"idle"}), 60)


def up(plan: Plan, isolation: str, search_port: bool, owner: int | None) -> Plan:
    """Bring a cluster up; when anything fails or interrupts, nothing of it remains."""
    check_directory(plan.directory)
    check_tools(plan.accounting)
    planning.override([], plan.conf)
    plan = dataclasses.replace(plan, isolation=pods.choose(isolation, daemon_env()))
    with free_ports(plan, search_port) as plan:
        plan.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        plan.directory.chmod(0o700)
        check_directory(plan.directory)  # once more: nobody can have put anything there from now on
        try:
            plan.store()
            planning.write_files(plan)
            if owner is not None:
                guard = [sys.executable, str(Path(__file__).parent), "_guard", str(plan.directory)]
                processes.spawn(plan.directory, "guard", [*guard, str(owner)], daemon_env())
            start_all(plan)
        except BaseException:
            down(plan.directory)
            raise
    return plan


def down(directory: Path) -> bool:
    """End every process recorded in the directory, then remove it; False when there was nothing."""
    if not os.path.lexists(directory):
        return False
    planning.load(directory)
    booted = json.loads((directory / planning.MARKER).read_text())["boot"]
    for _ in range(5):  # again, in case an `up` was still at work in there
        if booted == planning.boot_id():
            processes.kill_trees(processes.recorded(directory).values())
        remove(directory)
        if not directory.exists():
            return True
        time.sleep(0.1)
    shutil.rmtree(directory)  # once more, for its error
    return True


def remove(directory: Path) -> None:
    """Delete the directory, its marker last: an interrupted `down` can be repeated."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != planning.MARKER:
            entry.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def kill_one(directory: Path, name: str) -> None:
    """A node's sudden death (or a daemon's)."""
    found = processes.recorded(directory)
    if name not in found:
        raise Usage(f"{name}: no such node or daemon in {directory}; there are {', '.join(found)}")
    processes.kill_trees([found[name]])


def start_one(directory: Path, name: str) -> None:
    """Start a dead node (or daemon) again and wait until Slurm has it back."""
    plan, found = planning.load(directory), processes.recorded(directory)
    if name not in found or name == "guard":
        raise Usage(f"{name}: no such node or daemon in {directory}; there are {', '.join(found)}")
    if processes.alive(found[name]):
        raise Usage(f"{name} in {directory} is alive (pid {found[name].pid}); kill it first")
    start(plan, name)
    if name in plan.names:
        await_daemon(plan, name, functools.partial(node_is, plan, name, USABLE), 30)
