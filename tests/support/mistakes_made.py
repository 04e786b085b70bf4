"""What a newcomer types wrong: the mistakes whose messages ``docs/mistakes.md`` shows.

Each is typed in a directory that :mod:`mistakes` fills: ``my.toml`` is a sweep file, ``logs/first``
a sweep that has run, ``logs/waiting`` one whose first run has not begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SWEEP = """\
topologies = ["1n1g", "1n2g"]
repeats = 3
time_limit = "00:10:00"

[case]
framework = "ddp"
model = "gpt2-tiny"
batch_size = 2
"""
DRY = "dlperf sweep my.toml --dry-run"


@dataclass(frozen=True)
class Mistake:
    """One command, and what is wrong with it or with the file that it reads.

    ``written`` takes the place of the line of my.toml that begins with the same key; where it has
    none, it is added at the end. ``files`` are more files that the command finds. ``path``:
    programs on the PATH, with the script of each. ``shown`` are the lines of the answer that the
    page shows. ``must`` are the words that a good answer has.
    """

    what: str
    typed: str
    written: str = ""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    path: Mapping[str, str] = field(default_factory=dict)
    code: int = 2
    shown: tuple[int | None, int | None] = (None, None)
    must: tuple[str, ...] = ()


def _in_the_file(*rows: tuple[str, str]) -> list[Mistake]:
    return [Mistake(what, DRY, written) for what, written in rows]


def _read(
    what: str, text: str | bytes, code: int = 2, shown: tuple[int | None, int | None] = (None, None)
) -> Mistake:
    return Mistake(what, DRY, files={"my.toml": text}, code=code, shown=shown)


_YAML = "topologies: [1n1g]\ncase:\n  framework: ddp\n"
_JSON = '{"topologies": ["1n1g"], "case": {"framework": "ddp"}}\n'
_SILENT = "echo 'sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host' >&2\n"
_SILENT += "echo 'sbatch: error: fetch_config: DNS SRV lookup failed' >&2\n"
_SILENT += "echo 'sbatch: fatal: Could not establish a configuration source' >&2\nexit 1\n"

MISTAKES: Mapping[str, Sequence[Mistake]] = {
    "Keys of the sweep file": _in_the_file(
        ("a key is misspelt", "batchsize = 2"),
        ("the optimizer is given as a word", 'optimizer = "adam"'),
        ("the optimizer's setting stands without its table", "lr = 0.001"),
        ("nodes are asked for in `[case]`", "nodes = 2"),
        ("the partition is asked for in the sweep file", 'partition = "gpu"'),
        ("the number of steps stands in `[case]`", "steps = 100"),
        ("a key of the file's top stands in `[case]`", "repeats = 5"),
        ("a key stands in `[case]` and in `[matrix]`", "[matrix]\nbatch_size = [2, 4]"),
        ("a rule is written with single brackets", '[exclude]\nprecision = "fp16"'),
        ("the measure's key is misspelt", "[measure]\niteration = 20"),
    ),
    "Values of the sweep file": [
        *_in_the_file(
            ("a number is in quotes", 'batch_size = "2"'),
            ("the batch size is 0", "batch_size = 0"),
            ("the batch size is huge", "batch_size = 1000000000000"),
            ("a list of values stands in `[case]`", "batch_size = [2, 4]"),
            ("a single value stands in `[matrix]`", "[matrix]\nseed = 2"),
            ("the matrix has a value twice", "[matrix]\nseed = [2, 2]"),
            ("repeats are negative", "repeats = -3"),
            ("the framework is called by its library", 'framework = "pytorch"'),
            ("the framework is abbreviated", 'framework = "tf"'),
            ("Horovod is abbreviated", 'framework = "hvd"'),
            ("a family of models is named", 'model = "gpt2"'),
            ("another family of models", 'model = "bert"'),
            ("the precision is misspelt", 'precision = "float16"'),
            ("fp16 on CPUs", 'precision = "fp16"\ndevice = "cpu"'),
            ("a topology is written as 1x1", 'topologies = ["1x1"]'),
            ("a topology is there twice", 'topologies = ["1n1g", "1n1g"]'),
            ("the base is no topology of the sweep", 'base = "2n8g"'),
            ("the time limit is in words", 'time_limit = "1 hour"'),
            ("the time limit is a number", "time_limit = 30"),
            ("the environment has no entry in the site profile", 'environment = "tf2"'),
        ),
    ],
    "The file itself": [
        *_in_the_file(
            ("a text has no quotes", "framework = ddp"),
            ("`True` as in Python", "compile = True"),
            ("a key is there twice", "batch_size = 2\nbatch_size = 4"),
            ("a bracket is not closed", 'topologies = ["1n1g"'),
        ),
        _read("YAML in a file called .toml", _YAML),
        _read("JSON in a file called .toml", _JSON),
        _read("the file is empty", ""),
        _read("the file is in UTF-16, as Notepad may save it", SWEEP.encode("utf-16")),
        _read(
            "Windows line ends and a byte order mark, which are no mistake",
            b"\xef\xbb\xbf" + SWEEP.replace("\n", "\r\n").encode(),
            code=0,
            shown=(None, 1),
        ),
        Mistake("the file is not there", "dlperf sweep mine.toml"),
        Mistake("a directory in place of the file", "dlperf sweep logs"),
        Mistake("the name of a ready sweep is misspelt", "dlperf sweep quickstrat"),
    ],
    "The command line": [
        Mistake("a verb is misspelt", "dlperf stauts logs/first"),
        Mistake("no verb", "dlperf", shown=(None, 1)),
        Mistake("an option is misspelt", "dlperf sweep my.toml --dryrun"),
        Mistake("an option has no value", "dlperf sweep my.toml --dry-run --site"),
        Mistake("an option's value is none of its values", f"{DRY} --cluster pbs"),
        Mistake("the sweep file is forgotten", "dlperf sweep --dry-run"),
        Mistake("`--set` without `=`", f"{DRY} --set repeats 3"),
        Mistake("`--set` of a key that nobody has", f"{DRY} --set epochs=3"),
        Mistake("`--only` a topology that the sweep lacks", f"{DRY} --only 4n8g"),
        Mistake("`--only` a value that no case has", f"{DRY} --only precision=fp16"),
        Mistake("`--only` leaves out the base", f"{DRY} --only 1n2g", code=0, shown=(None, 1)),
        Mistake("a name with a blank and a slash", f'{DRY} --name "my sweep/1"'),
    ],
    "The site, and where runs go": [
        Mistake("no site profile has the name", f"{DRY} --site mycluster"),
        Mistake(
            "a key of the site profile is misspelt",
            f"{DRY} --site ./site.toml",
            files={"site.toml": 'partion = "gpu"\n'},
        ),
        Mistake("`--logs` is a file", "dlperf sweep my.toml --logs notes.txt --cluster local"),
        Mistake("`--cluster slurm` where no Slurm is", "dlperf sweep my.toml --cluster slurm"),
        Mistake(
            "sbatch is there, but Slurm's controller does not answer",
            "dlperf sweep my.toml",
            path=dict.fromkeys(("sbatch", "scontrol", "squeue"), _SILENT),
            code=1,
        ),
        Mistake(
            "several nodes on this machine alone",
            "dlperf sweep my.toml --cluster local",
            written='topologies = ["2n1g"]',
        ),
        Mistake("no such environment to make", "dlperf env make pytorch"),
        Mistake(
            "the sweep of this name was begun with another measure",
            "dlperf sweep my.toml --name first --cluster local",
            written="[measure]\nwarmup = 30",
        ),
    ],
    "After the sweep": [
        Mistake("the status of a sweep file", "dlperf status my.toml"),
        Mistake("the status of a sweep that was never begun", "dlperf status logs/frist"),
        Mistake("the log of a run that is not in the sweep", "dlperf logs logs/first bert"),
        Mistake("the log of a run that has not begun", "dlperf logs logs/waiting", code=1),
        Mistake("rerun of what is no sweep", "dlperf rerun results"),
        Mistake("cancel what ran on this machine", "dlperf cancel logs/first"),
        Mistake("a report on an empty directory", "dlperf report empty"),
        Mistake("a report on what is not there", "dlperf report log/first"),
        Mistake("a report on files that are no logs", "dlperf report results"),
        Mistake("a report on a binary file", "dlperf report core.1234"),
        Mistake("a report on a tar archive", "dlperf report logs.tar.gz"),
        Mistake("a base that is no topology", "dlperf report logs/first --base 1x1"),
        Mistake(
            "a kind of file that report does not write", "dlperf report logs/first --write xlsx"
        ),
        Mistake("compare with nothing", "dlperf compare logs/first"),
        Mistake(
            "compare two sweeps that have no case in common",
            "dlperf compare logs/first logs/bert",
            shown=(-2, None),
        ),
        Mistake("extract from no directory", "dlperf extract logs/first"),
        Mistake(
            "extract by a rule that is not there",
            "dlperf extract --log_dir logs/first --rule speed",
        ),
        Mistake("prepare without a text", "dlperf prepare --format hdf5 --out data"),
        Mistake(
            "prepare from a file that is not there",
            "dlperf prepare wiki.txt --format hdf5 --train-tokenizer --out data",
            code=1,
        ),
        Mistake(
            "prepare in a format that is not there",
            "dlperf prepare notes.txt --format csv --out data",
        ),
        Mistake("archive of what is no sweep", "dlperf archive results"),
    ],
}


def _by_hand(rows: str, typed: str = DRY, file: str = "") -> list[Mistake]:
    """A mistake for each row: what is typed, or stands in the file, and the words of a good answer.
    ``typed``: the command, to which what begins with no ``dlperf`` is added; ``file``: the name of
    the file that has the row instead."""
    found = []
    for row in rows.strip().splitlines():
        wrong, _, words = row.rpartition(" | ")
        wrong, must = wrong.strip(), tuple(word.strip() for word in words.split(","))
        code = 2 * (not wrong.startswith(("dlperf help", "dlperf version")))
        text = wrong.replace(" / ", "\n")
        if file == "my.toml":
            found.append(Mistake("", typed, text, must=must))
        elif file:
            found.append(Mistake("", typed, files={file: f"{text}\n"}, must=must))
        else:
            command = wrong if wrong.startswith("dlperf ") else f"{typed} {wrong}"
            first = (None, None if code else 1)
            found.append(Mistake("", command, must=must, code=code, shown=first))
    return found


_OPTIONS = """
--partition gpu             | partition, site profile
-p gpu                      | partition, site profile
--account proj              | account, site profile
-A proj                     | account, site profile
--qos high                  | qos, site profile
--time 01:00:00             | --set time_limit=
-t 30                       | --set time_limit=
--nodes 2                   | --set topologies=
-N 2                        | --set topologies=
--ntasks 8                  | --set topologies=
-n 8                        | --set topologies=
--ntasks-per-node 4         | --set topologies=
--gres gpu:4                | --set topologies=
--gpus-per-node 8           | --set topologies=
-G 8                        | --set topologies=
--cpus-per-task 8           | cpus_per_task, site profile
-c 8                        | cpus_per_task, site profile
--mem 64G                   | mem, site profile
--constraint a100           | constraint, site profile
-C a100                     | constraint, site profile
--nodelist n1               | sbatch, nodelist, site profile
-w n1                       | sbatch, nodelist, site profile
--exclude n3                | exclude, site profile
--exclusive                 | exclusive, site profile
--array 1-10                | repeats
--job-name bert             | --name
-J bert                     | --name
--output out.txt            | --logs
-o out.txt                  | --logs
--dependency afterok:12     | --after
-d afterok:12               | --after
--begin now+1hour           | sbatch, begin, site profile
--mail-type END             | sbatch, mail-type, site profile
--export ALL                | export, site profile
--wrap "python train.py"    | [program.NAME]
--test-only                 | --dry-run
--parsable                  | --json
--mpi pmix                  | mpi, [environment.NAME], site profile
--nnodes 2                  | --set topologies=
--nproc-per-node 8          | --set topologies=
--nproc_per_node=8          | --set topologies=
--master-addr n1            | leave it out
--master_port 29500         | leave it out
--rdzv-backend c10d         | leave it out
--node_rank 0               | leave it out
--standalone                | --cluster local
--max-restarts 3            | dlperf rerun
-np 4                       | --set topologies=
--hostfile hosts            | sbatch, nodelist, site profile
--bind-to core              | srun, --cpu-bind, site profile
--env NCCL_DEBUG=INFO       | env, [environment.NAME], site profile
-k 1n1g                     | --only
--collect-only              | --dry-run
--lf                        | dlperf rerun
-v                          | dlperf logs
--junitxml out.xml          | dlperf report, --write junit
-m batch_size=2,4           | [matrix], --set
--multirun batch_size=2,4   | [matrix], --set
case.batch_size=4           | --set case.batch_size=4
+seed=2                     | --set seed=2
--config-name my            | dlperf sweep FILE
--cfg job                   | --dry-run
hydra/launcher=slurm        | --cluster slurm
--repeats 5                 | --set repeats=
--runs 5                    | --set repeats=
--seed 2                    | --set seed=
--batch-size 4              | --set batch_size=
--model bert-base           | --set model=
--precision bf16            | --set precision=
--fp16                      | --set precision=fp16
--steps 100                 | --set measure.iterations=
--epochs 1                  | --set measure.iterations=
--warmup 5                  | --set measure.warmup=
--lr 0.1                    | --set optimizer.lr=
--gpus 4                    | --set topologies=
--topology 1n2g             | --only
--force                     | --name
--resume                    | same command
--verbose                   | dlperf logs
--output-dir out            | --logs
--local                     | --cluster local
--timeout 30m               | --set time_limit=
--conda pt                  | conda, [environment.NAME], site profile
--container img.sif         | apptainer, [environment.NAME], site profile
"""
_VERBS = """
dlperf run my.toml                               | dlperf sweep
dlperf submit my.toml                            | dlperf sweep
dlperf my.toml                                   | dlperf sweep my.toml
dlperf squeue logs/first                         | dlperf status
dlperf watch logs/first                          | dlperf status, --watch
dlperf scancel logs/first                        | dlperf cancel
dlperf kill logs/first                           | dlperf cancel
dlperf retry logs/first                          | dlperf rerun
dlperf tail logs/first                           | dlperf logs
dlperf plot logs/first                           | dlperf report
dlperf diff logs/first logs/bert                 | dlperf compare
dlperf check my.toml                             | dlperf doctor
dlperf install tensorflow                        | dlperf env make
dlperf help sweep                                | usage: dlperf sweep
dlperf version                                   | dlperf_hpc
dlperf status logs/first --follow                | --watch
dlperf logs logs/first --tail                    | tail
dlperf rerun logs/first --failed                 | --status failed
dlperf rerun logs/first --time-limit 02:00:00    | --time
dlperf report logs/first --csv                   | --write csv
dlperf report logs/first --output out            | --out
dlperf report logs/first --baseline 1n2g         | --base
dlperf compare logs/first logs/bert --alpha 0.05 | --risk
dlperf cancel logs/first --force                 | leave it out
"""
_KEYS = """
framework = "torch"                       | 'ddp'
framework = "fsdp2"                       | 'fsdp'
cpu_offload = true                        | deepspeed_config
framework = "jax"                         | [program.NAME]
model = "resnet101"                       | [program.NAME]
model = "bert-large-uncased"              | 'bert-large'
model = "gpt2-124m"                       | 'gpt2-small'
precision = "fp8"                         | bf16, fp16
precision = "mixed"                       | bf16, fp16
device = "gpu"                            | cuda
[env] / NCCL_DEBUG = "INFO"               | [environment.NAME], site profile
[slurm] / partition = "gpu"               | site profile
[training] / steps = 100                  | [measure]
[program] / run = ["train.py"]            | [program.NAME]
time_limit = "1h"                         | 01:00:00
topologies = ["2x8"]                      | 2n8g
topologies = "1n1g"                       | ["1n1g"]
output_dir = "out"                        | --logs
max_length = 512                          | seq_len
[program.mine] / launch = "rank" / run = ["train.py && echo"] | &&, "bash", "-c"
[program.mine] / launch = "rank" / run = "python train.py"    | list of words
[program.mine] / launch = "mpirun" / run = ["train.py"]       | rank
"""
_SITE = """
time = "01:00:00"              | time_limit, sweep file
nodes = 2                      | topologies, sweep file
gres = "gpu:4"                 | gpus
nodelist = "n1"                | sbatch = { nodelist =
[env] / NCCL_DEBUG = "INFO"    | [environment.default.env]
"""
BY_HAND = "What hands type that know other tools"
"""The chapter of mistakes whose answers must have certain words; they were written before them."""
MISTAKES = {
    **MISTAKES,
    BY_HAND: [
        *_by_hand(_OPTIONS),
        *_by_hand(_VERBS),
        *_by_hand(_KEYS, file="my.toml"),
        *_by_hand(_SITE, f"{DRY} --site ./site.toml", "site.toml"),
    ],
}
