"""What a one-machine Slurm is to be: its settings, and the configuration files they lead to.

Pure text: nothing here starts a process. slurm/README.md says with which Slurms.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import secrets
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from errors import Usage

MARKER = "onebox.json"
LONGEST_DIR = 70  # a Unix socket's path holds 107 characters; slurmstepd's needs the rest
CONTROLLER_PORT, DATABASE_PORT, NODE_PORT = 0, 1, 2  # offsets from the port base
MOST_NODES = 90
FOREIGN = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "PMI_", "PMIX_")  # of a job around us
REPEATABLE = {"nodename", "partitionname", "nodeset", "downnodes"}
# Short timeouts: a dead node or a requeue shall not cost minutes.
FIXED = (
    ("AuthType", "auth/munge"),
    ("CredType", "cred/munge"),
    ("MailProg", "/bin/true"),
    ("ProctrackType", "proctrack/linuxproc"),
    ("TaskPlugin", "task/none"),
    ("SwitchType", "switch/none"),
    ("MpiDefault", "none"),
    ("SelectType", "select/cons_tres"),
    ("SelectTypeParameters", "CR_Core"),
    ("SlurmdParameters", "config_overrides"),  # more CPUs than the machine has
    ("SchedulerType", "sched/backfill"),
    (
        "SchedulerParameters",
        "batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=10000",
    ),
    ("JobAcctGatherType", "jobacct_gather/none"),
    ("JobCompType", "jobcomp/none"),
    ("ReturnToService", "2"),
    ("SlurmdTimeout", "10"),
    ("SlurmctldTimeout", "10"),
    ("MessageTimeout", "10"),
    ("BatchStartTimeout", "10"),
    ("KillWait", "3"),
    ("WaitTime", "0"),
    ("OverTimeLimit", "0"),
    ("UnkillableStepTimeout", "20"),
    ("MinJobAge", "600"),
    ("JobRequeue", "1"),
    ("MaxArraySize", "10001"),
    # A timed run asks for it where all nodes share one machine's cores: --licenses=machine:1
    ("Licenses", "machine:1"),
    ("MaxJobCount", "50000"),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that `up` was asked for; stored in the directory, so that later commands know it."""

    directory: Path
    nodes: int = 4
    gpus: int = 8
    cpus: int = 64
    accounting: str = "none"
    isolation: str = "plain"
    port: int = 17100
    conf: tuple[str, ...] = ()
    gpu_type: str = ""
    job_submit: str = ""  # of the plug-in job_submit/lua
    sacctmgr: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def head(self) -> str:
        """Where slurmctld believes to be: a name of its own wherever we can give it one."""
        return os.uname().nodename.split(".")[0] if self.isolation == "plain" else "head"

    @property
    def slurm_conf(self) -> Path:
        return self.directory / "etc" / "slurm.conf"

    @property
    def daemon_conf(self) -> Path:
        return self.directory / "etc" / "daemons.conf"

    def socket(self, name: str) -> Path:
        return self.directory / "sock" / name

    def ports(self) -> list[int]:
        return [self.port + offset for offset in range(NODE_PORT + self.nodes)]

    def store(self) -> None:
        fields = dataclasses.asdict(self) | {"directory": str(self.directory), "boot": boot_id()}
        new = self.directory / f"{MARKER}.new"
        new.write_text(json.dumps(fields, indent=1) + "\n")
        new.replace(self.directory / MARKER)  # never half a marker: `down` goes by it


def load(directory: Path) -> Plan:
    """The plan of the cluster in this directory; an error for one that `up` did not make."""
    try:
        check_owner(directory)
        fields = json.loads((directory / MARKER).read_text())
        fields.pop("boot")
        lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
        return Plan(**fields | lists | {"directory": directory})
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = getattr(error, "strerror", None) or error
        raise Usage(
            f"{directory}: not made by `onebox up` ({MARKER} in it: {why}); nothing was touched"
        ) from None


def check_owner(directory: Path) -> None:
    """An error for a directory of another user's, and for another user's link: what is in it, the
    daemons run."""
    for found in (directory.lstat(), directory.stat()):
        if found.st_uid != os.getuid():
            raise Usage(
                f"{directory}: belongs to {owner(found)}; do this as that user, or name a directory"
                " of your own"
            )


def check_place(directory: Path) -> None:
    """An error for a place where another user can rename the directory, and put one there."""
    for path in {*directory.parents, *Path(os.path.realpath(directory)).parents}:
        if path.exists():
            found = path.stat()
            safe = found.st_mode & stat.S_ISVTX and found.st_uid in (0, os.getuid())
            if found.st_mode & stat.S_IWOTH and not safe:
                raise Usage(
                    f"{path}: others can rename what is in it (it belongs to"
                    f" {owner(found)}, mode {stat.S_IMODE(found.st_mode):04o}), and the"
                    " daemons run what is there; name a directory elsewhere, e.g. below /tmp"
                )


def owner(found: os.stat_result) -> str:
    try:
        return f"uid {found.st_uid} ({pwd.getpwuid(found.st_uid).pw_name})"
    except KeyError:
        return f"uid {found.st_uid}"


def boot_id() -> str:
    """Changes at each start of the machine: recorded processes of an earlier one are gone."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise Usage(f"uid {os.getuid()} has no entry in /etc/passwd, which Slurm demands") from None


def slurm_settings(plan: Plan) -> list[tuple[str, str]]:
    """The lines of slurm.conf, as keys and values."""
    d, me, munge = plan.directory, user(), plan.socket("munge")
    return [
        ("ClusterName", "onebox"),
        ("SlurmctldHost", f"{plan.head}(127.0.0.1)"),
        ("SlurmctldPort", str(plan.port + CONTROLLER_PORT)),
        ("SlurmUser", me),
        ("SlurmdUser", me),
        ("AuthInfo", f"socket={munge},cred_expire=5"),  # a requeue takes 6 s instead of 120
        ("StateSaveLocation", f"{d}/state"),
        ("SlurmdSpoolDir", f"{d}/spool/%n"),
        ("TmpFS", f"{d}/tmp/%n"),  # keeps the PMIx directories of the nodes apart
        ("SlurmctldPidFile", f"{d}/run/slurmctld.pid"),
        ("SlurmdPidFile", f"{d}/run/slurmd.%n.pid"),
        ("SlurmctldLogFile", f"{d}/log/slurmctld.log"),
        ("SlurmdLogFile", f"{d}/log/%n.log"),
        ("PlugStackConfig", f"{d}/etc/plugstack.conf"),
        *FIXED,
        *([("JobSubmitPlugins", "lua")] if plan.job_submit else []),
        *accounting_settings(plan),
        *node_settings(plan),
    ]


def accounting_settings(plan: Plan) -> list[tuple[str, str]]:
    if plan.accounting == "none":
        return [("AccountingStorageType", "accounting_storage/none")]
    settings = [
        ("AccountingStorageType", "accounting_storage/slurmdbd"),
        ("AccountingStorageHost", "127.0.0.1"),
        ("AccountingStoragePort", str(plan.port + DATABASE_PORT)),
        ("AccountingStoragePass", str(plan.socket("munge"))),  # this connection ignores AuthInfo
    ]
    return settings + ([("AccountingStorageTRES", "gres/gpu")] if plan.gpus else [])


def node_settings(plan: Plan) -> list[tuple[str, str]]:
    """The nodes and two partitions: `main` with all of them, and `small` with the first only."""
    typed = f"{plan.gpu_type}:" if plan.gpu_type else ""
    gres = f" Gres=gpu:{typed}{plan.gpus}" if plan.gpus else ""
    nodes = [
        (
            "NodeName",
            f"{name} NodeHostname={name} NodeAddr=127.0.0.1 Port={plan.port + NODE_PORT + index}"
            f" CPUs={plan.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={plan.cpus}"
            f" ThreadsPerCore=1 RealMemory=64000{gres} State=UNKNOWN",
        )
        for index, name in enumerate(plan.names)
    ]
    unlimited = "MaxTime=INFINITE State=UP"
    partitions = [
        ("PartitionName", f"main Nodes={','.join(plan.names)} Default=YES {unlimited}"),
        ("PartitionName", f"small Nodes=n1 {unlimited}"),
    ]
    return ([("GresTypes", "gpu")] if plan.gpus else []) + nodes + partitions


def override(settings: list[tuple[str, str]], wishes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Put KEY=VALUE wishes in place of the settings they name; further partitions are added."""
    for wish in wishes:
        key, equals, value = wish.partition("=")
        if not equals or not key.strip().isidentifier() or "\n" in wish:
            raise Usage(f"--conf {wish!r}: expected KEY=VALUE, e.g. --conf MaxArraySize=1001")
        if key.lower() not in REPEATABLE:
            settings = [old for old in settings if old[0].lower() != key.lower()]
        settings = [*settings, (key, value)]
    return settings


def config_files(plan: Plan) -> dict[str, str]:
    """Name below the directory -> content of every file the daemons read.

    The daemons read daemons.conf: it makes them listen on the address of their host's name only,
    which the hosts file they see makes 127.0.0.1. Commands must not: theirs may be a network's.
    """
    settings = override(slurm_settings(plan), plan.conf)
    loopback = "" if plan.isolation == "plain" else "NoInAddrAny,NoCtldInAddrAny"
    files = {
        "etc/slurm.conf": "".join(f"{key}={value}\n" for key, value in settings),
        "etc/daemons.conf": f"Include {plan.slurm_conf}\n"
        + (f"CommunicationParameters={loopback}\n" if loopback else ""),
        "etc/plugstack.conf": "",
        "etc/mpi.conf": "PMIxCollFence=ring\n",  # Open MPI sometimes crashed under the other one
        "etc/hosts": hosts(plan),
        "env.sh": env_script(plan),
    }
    if plan.gpus:
        name = "Name=gpu" + (f" Type={plan.gpu_type}" if plan.gpu_type else "")
        files["etc/gres.conf"] = f"{name} File={plan.directory}/dev/nvidia[0-{plan.gpus - 1}]\n"
    if plan.job_submit:
        files["etc/job_submit.lua"] = plan.job_submit
    if plan.accounting == "slurmdbd":
        files["etc/slurmdbd.conf"] = database_conf(plan, loopback)
    return files


def database_conf(plan: Plan, loopback: str) -> str:
    d, port = plan.directory, plan.port + DATABASE_PORT
    return (
        f"AuthType=auth/munge\nAuthInfo=socket={plan.socket('munge')}\nSlurmUser={user()}\n"
        f"DbdHost={plan.head}\nDbdAddr=127.0.0.1\nDbdPort={port}\n"
        f"PidFile={d}/run/slurmdbd.pid\nLogFile={d}/log/slurmdbd.log\n"
        f"StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser={user()}\n"
        "StorageLoc=slurm_acct\n" + (f"CommunicationParameters={loopback}\n" if loopback else "")
    )


def hosts(plan: Plan) -> str:
    """What the nodes know of names: the machine's own file, and each other on loopback."""
    own = Path("/etc/hosts")
    lines = own.read_text(errors="replace").splitlines() if own.exists() else []
    ours = {*plan.names, plan.head}
    kept = [line for line in lines if not ours & set(line.split("#")[0].split()[1:])]
    return "\n".join([*(f"127.0.0.1 {name}" for name in [*plan.names, plan.head]), *kept]) + "\n"


def client_env(plan: Plan, base: Mapping[str, str]) -> dict[str, str]:
    """The environment in which sinfo, sbatch and srun talk to this cluster and to no other."""
    env = {key: value for key, value in base.items() if not key.startswith(FOREIGN)}
    return env | {"SLURM_CONF": str(plan.slurm_conf), "ONEBOX_DIR": str(plan.directory)}


def env_script(plan: Plan) -> str:
    """Lines for a shell to source, which set what `client_env` sets."""
    prefixes = "\\|".join(FOREIGN)
    return (
        "# source this file; the commands of Slurm then talk to the cluster in this directory\n"
        f"for _name in $(env | sed -n 's/^\\(\\({prefixes}\\)[A-Za-z0-9_]*\\)=.*/\\1/p'); do\n"
        "    unset $_name\ndone\nunset _name\n"
        f"export SLURM_CONF={shlex.quote(str(plan.slurm_conf))}\n"
        f"export ONEBOX_DIR={shlex.quote(str(plan.directory))}\n"
    )


def write_files(plan: Plan) -> None:
    """Lay out the directory. Pretend GPUs are links to /dev/null: Slurm refuses plain files."""
    d = plan.directory
    for name in ("etc", "sock", "pid", "run", "log", "state", "dev", "munge"):
        (d / name).mkdir(mode=0o700)
    for node in plan.names:
        (d / "spool" / node).mkdir(parents=True)
        (d / "tmp" / node).mkdir(parents=True)
    for gpu in range(plan.gpus):
        (d / "dev" / f"nvidia{gpu}").symlink_to("/dev/null")
    for name, text in config_files(plan).items():
        (d / name).write_text(text)
        (d / name).chmod(0o600)
    key = d / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
