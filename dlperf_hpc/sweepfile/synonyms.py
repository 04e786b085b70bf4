"""What other programs call the keys and values of a sweep file, and what they are called here.

A name that is spelt almost right is :func:`dlperf_hpc.errors.nearest`'s; this module is for
names that are spelt right, elsewhere. It is loaded when a file has a name that nobody declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dlperf_hpc.model.case import OPTIMIZERS, SCHEDULES
from dlperf_hpc.sweepfile.declarations import BackendDeclaration, Registry

_TABLES = {"optimizer": OPTIMIZERS, "schedule": tuple(SCHEDULES)}
_TOPOLOGY = 'write topologies = ["2n4g"] at the top of the file, for 2 nodes with 4 GPUs each'
_SITE = "it is a key of the site profile, a file of its own that --site names"
_MEASURE = "at the end of the file, under [measure]"

_ELSEWHERE: Mapping[str, Iterable[str]] = {
    _TOPOLOGY: (
        *("nodes", "num_nodes", "nnodes", "gpus", "num_gpus", "ngpus", "gpus_per_node", "devices"),
        *("ntasks", "nproc_per_node", "world_size", "ranks"),
    ),
    _SITE: (
        *("partition", "account", "qos", "constraint", "reservation", "gpu_type", "cpus_per_task"),
        *("mem", "exclusive", "modules", "venv", "conda", "container", "image", "mpi", "setup"),
    ),
    'the time limit stands at the top of the file: time_limit = "00:30:00"': (
        *("time", "walltime", "timeout", "wall_time"),
    ),
    f"how long to measure stands {_MEASURE}: iterations = 100, or min_seconds = 30": (
        *("epochs", "num_epochs", "steps", "max_steps", "num_steps", "train_steps", "iterations"),
        *("train_iters", "min_seconds"),
    ),
    f"iterations before the measured ones stand {_MEASURE}: warmup = 20; those of the learning"
    " rate are schedule.warmup": ("warmup", "warmup_steps", "warmup_iters"),
    f"it stands {_MEASURE}": (
        *("min_optimizer_steps", "communication_steps", "checkpoint", "keep_checkpoint"),
    ),
    "at the end of the file, under [limits]": ("startup_s", "iteration_s", "shutdown_s"),
}
_CALLED = {
    "learning_rate": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "clip_grad": "optimizer.grad_clip",
    "max_grad_norm": "optimizer.grad_clip",
    "momentum": "optimizer.beta1",
    "lr_scheduler": "schedule.name",
    "scheduler": "schedule.name",
    "gradient_accumulation": "accumulation",
    "gradient_accumulation_steps": "accumulation",
    "batch": "batch_size",
    "micro_batch": "batch_size",
    "micro_batch_size": "batch_size",
    "per_device_train_batch_size": "batch_size",
    "global_batch_size": "global_batch",
    "sequence_length": "seq_len",
    "max_seq_length": "seq_len",
    "dtype": "precision",
    "amp": "precision",
    "mixed_precision": "precision",
    "fp16": "precision",
    "bf16": "precision",
    "backend": "framework",
    "network": "model",
    "dataset": "data_path",
    "env": "environment",
}
_VALUES: Mapping[str, Mapping[str, str]] = {
    "precision": {
        **dict.fromkeys(("float32", "float", "single", "32", "fp32-true"), "fp32"),
        **dict.fromkeys(("float16", "half", "16", "fp16-mixed", "16-mixed"), "fp16"),
        **dict.fromkeys(("bfloat16", "bfloat", "bf16-mixed"), "bf16"),
        "tensorfloat32": "tf32",
    },
    "framework": {
        **dict.fromkeys(("torch", "pytorch", "pt", "torchrun", "distributed"), "ddp"),
        **dict.fromkeys(("tf", "tf2", "tensorflow2", "keras", "mirrored"), "tensorflow"),
        **dict.fromkeys(("hvd", "horovodrun"), "horovod"),
        **dict.fromkeys(("ds", "zero"), "deepspeed"),
    },
}


def key_hint(name: str, known: Iterable[str]) -> str | None:
    """What to write in place of a key that nobody declares, one of ``known`` perhaps; None for a
    name that means nothing here."""
    if name in _TABLES:
        names, settings = ", ".join(_TABLES[name]), [k for k in known if k.startswith(f"{name}.")]
        example = f'write {name}.name = "{_TABLES[name][0]}" under [case]; the names are {names}'
        return f"{example}; the settings are {', '.join(settings[1:4])}, ..."
    for hint, names_elsewhere in _ELSEWHERE.items():
        if name in names_elsewhere:
            return hint
    within = [key for key in known if key.endswith(f".{name}") and name != "name"]
    called = [_CALLED[name]] if name in _CALLED else within
    return f"it is called {' or '.join(called)}, under [case] or [matrix]" if called else None


def name_hint(kind: str, value: str, registry: Registry) -> str | None:
    """What a framework, a model or a precision of another name is called here: one name, or all
    that belong to a family; None if nothing is known of it."""
    plain = value.lower().replace("_", "-")
    meant = _VALUES.get(kind, {}).get(plain)
    if kind == "precision":
        return f"write {meant!r}" if meant else None
    if kind == "framework" and meant and meant in registry.backends:
        return _of_backends(meant, registry.backends)
    every = registry.backends if kind == "framework" else registry.workloads
    wanted = (meant or plain).replace("-", "")
    family = [each for each in every if wanted and _first(each) == wanted]
    return f"write one of {', '.join(map(repr, family))}" if family else None


def _of_backends(name: str, every: Mapping[str, BackendDeclaration]) -> str:
    library = every[name].library
    others = [each for each in every if every[each].library == library and each != name]
    return f"write {name!r}; with {library} train also: {', '.join(others)}"


def _first(name: str) -> str:
    """``gpt2`` of ``gpt2-tiny``."""
    return name.rpartition("-")[0].replace("-", "")
