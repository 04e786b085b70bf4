"""DeepSpeed, ZeRO stages 0 to 3: NCCL on GPUs, gloo on CPUs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import Issue, SpecError
from dlperf_hpc.files import read_regular
from dlperf_hpc.model.case import MODES, Case, Optimizer, Option
from dlperf_hpc.sweepfile.declarations import BackendDeclaration, Memory, ModelSize
from dlperf_hpc.train.backends import ALIKE, BIND, activations, state_bytes, width
from dlperf_hpc.train.session import TORCH_CURE, opener

Config = dict[str, Any]

# What a file may leave to others, as files written for the transformers library do.
_AUTO = "auto"

# Which key of a sweep stands behind a key of DeepSpeed's.
_SWEEP_KEYS = {
    "train_batch_size": "batch_size x devices x accumulation",
    "train_micro_batch_size_per_gpu": "batch_size",
    "gradient_accumulation_steps": "accumulation",
    "gradient_clipping": "optimizer.grad_clip",
    "zero_optimization.stage": "zero_stage",
    "fp16.enabled": "precision",
    "fp16.loss_scale": "precision fp16: 0 is dynamic",
    "bf16.enabled": "precision",
    "steps_per_print": "steps_per_print",
    "timers.throughput.enabled": "steps_per_print",
}

BUCKET, _LIVE = 5 * 10**8, 10**9
"""ZeRO's defaults: numbers in its bucket of gradients, parameters that stage 3 gathers at most."""

# Keys of a user's file that would change what is measured behind the sweep's back.
_REFUSED = {
    "scheduler": "the learning rate's schedule is the sweep's",
    "amp": "precision is the sweep's, and apex is not used",
    "torch_autocast": "precision is the sweep's, by DeepSpeed's own fp16 and bf16",
    "data_types": "precision is the sweep's",
    "elasticity": "batch sizes and ranks are the sweep's",
    "autotuning": "batch sizes and the ZeRO stage are the sweep's",
    "curriculum_learning": "it would change the samples' length",
    "data_efficiency": "it would change the samples",
    "progressive_layer_drop": "it would leave layers out",
    "tensor_parallel": "the models here are data-parallel",
    "sequence_parallel_size": "the models here are data-parallel",
}


def check(case: Case) -> Iterator[tuple[str, str]]:
    """What a case asks of DeepSpeed in vain, in its configuration file too."""
    for issue in refusals(case):
        yield issue.where, issue.message
    path = Path(case.option("deepspeed_config"))
    try:
        issues = merge(_read(path), case)[1] if path.is_file() else []
    except SpecError as error:
        issues = list(error.issues)
    for issue in issues:
        yield "deepspeed_config", f"{path}: {issue}"


def configuration(case: Case) -> Config:
    """DeepSpeed's configuration of a case, its user's own file merged in. SpecError with all that
    :func:`refusals` finds, where the file contradicts the sweep, or is unreadable."""
    path = case.option("deepspeed_config")
    config, issues = merge(_read(Path(path)) if path else {}, case)
    if issues:
        raise SpecError(path, issues)
    refused = refusals(case)
    if refused:
        raise SpecError(case.id, refused)
    return config


def refusals(case: Case) -> list[Issue]:
    """What a case asks of DeepSpeed in vain, whatever its device turns out to be."""
    issues = []
    stage, name = case.option("zero_stage"), case.optimizer.name
    if stage and name.startswith("lamb"):
        why = "needs whole tensors, and ZeRO cuts them: take adam or adamw, or zero_stage = 0"
        issues.append(Issue("zero_stage", f"{stage} is invalid for {name}, which {why}"))
    if stage == 3 and case.mode != MODES[0]:
        why = "embeddings are used outside their modules, which it collects in eager mode only"
        issues.append(Issue("zero_stage", f"3 is invalid with compile: {why}"))
    return issues


def memory(case: Case, size: ModelSize) -> Memory | None:
    """As DeepSpeed 0.19 was seen to hold it; None with a user's own file, which may offload. ZeRO
    updates fp32 copies, also in fp32; stage 0 does in half precision. Stage 1 keeps whole gradients
    through an accumulation, stage 3 its bucket always."""
    if case.option("deepspeed_config"):
        return None
    stage, number, own = case.option("zero_stage"), size.parameters, width(case)
    ranks = case.ranks if stage else 1
    low = own * number // (ranks if stage == 3 else 1)
    copies = 4 * number // ranks * (stage > 0 or own == 2)
    held = low + copies + state_bytes(case.optimizer) * number // ranks
    gradients = copies + low * (stage in (0, 3))
    whole = low * (stage == 1 and case.accumulation > 1)
    bucket = own * BUCKET * (stage > 0)
    gathered = (low + own * min(number, _LIVE)) * (stage == 3)
    certain = held + max(gradients, whole) + bucket * (stage == 3)
    peak = held + whole + bucket + gathered + activations(case, size, own)
    return Memory(certain, max(certain, peak))


def generate(case: Case) -> Config:
    """What a case says, in DeepSpeed's keys. The optimizer is handed over as an object."""
    fp16 = case.precision == "fp16"
    prints = case.option("steps_per_print")
    return {
        "train_batch_size": case.global_batch,
        "train_micro_batch_size_per_gpu": case.batch_size,
        "gradient_accumulation_steps": case.accumulation,
        "managed_gradient_accumulation": True,  # the engine counts, and steps at every k-th
        "gradient_clipping": case.optimizer.grad_clip,
        "zero_optimization": {"stage": case.option("zero_stage")},
        # An optimizer that works element by element may be cut into parts, known to it or not.
        "zero_allow_untested_optimizer": True,
        "fp16": {"enabled": True, "loss_scale": 0} if fp16 else {"enabled": False},
        "bf16": {"enabled": case.precision == "bf16"},
        "steps_per_print": prints or None,
        # On by default, whether it prints or not, and it waits for the device in every iteration.
        "timers": {"throughput": {"enabled": prints > 0}},
        **({"log_level": "info"} if prints else {}),  # else what it prints is dropped
    }


def merge(given: Mapping[str, Any], case: Case) -> tuple[Config, list[Issue]]:
    """A user's configuration with what the sweep says in place, and where they contradict.
    ``given`` may say the same as the sweep, leave it out or say "auto"; in everything else it is
    followed. Its optimizer must be the sweep's, and is left out: the sweep's is in its place."""
    ours, theirs = generate(case), dict(given)
    if "bfloat16" in theirs:  # an older name
        theirs.setdefault("bf16", theirs.pop("bfloat16"))
    refused = [key for key in theirs if key in _REFUSED and _says_something(theirs[key])]
    issues = [Issue(key, f"is refused: {_REFUSED[key]}") for key in refused]
    issues += _optimizer_issues(theirs.pop("optimizer", {}), case.optimizer)
    issues += _contradictions(theirs, ours, "")
    kept = {key: value for key, value in theirs.items() if key not in _REFUSED}
    return _merged(ours, kept), issues


def _says_something(value: Any) -> bool:
    return bool(value.get("enabled", value) if isinstance(value, Mapping) else value)


def _contradictions(given: Mapping[str, Any], ours: Mapping[str, Any], at: str) -> Iterator[Issue]:
    for key, wanted in ours.items():
        value, where = given.get(key, wanted), at + key
        if isinstance(wanted, dict) and isinstance(value, Mapping):
            yield from _contradictions(value, wanted, f"{where}.")
        elif value not in (wanted, _AUTO):
            yield _apart(where, value, wanted, _SWEEP_KEYS.get(where))


def _apart(where: str, value: Any, wanted: Any, key: str | None) -> Issue:
    by = f" ({key})" if key else ""
    return Issue(
        where, f"is {json.dumps(value)} in this file, {json.dumps(wanted)} by the sweep{by}"
    )


def _optimizer_issues(block: Mapping[str, Any], settings: Optimizer) -> list[Issue]:
    """Where a file's ``optimizer`` is not the sweep's."""
    given = {key: value for key, value in block.get("params", {}).items() if value != _AUTO}
    kind = str(block.get("type", _AUTO)).lower()
    # DeepSpeed's "Adam" decays weights as AdamW does, unless it is told not to.
    adam = "adamw" if given.pop("adam_w_mode", True) else "adam"
    name = {"adam": adam, "lamb": "lamb-deepspeed", _AUTO: settings.name}.get(kind, kind)
    given.pop("torch_adam", None)  # says how it is computed: not DeepSpeed's to say here
    wanted = _optimizer_values(settings)
    issues = [
        _apart(f"optimizer.params.{key}", value, wanted.get(key), f"optimizer.{key}")
        for key, value in given.items()
        if value != wanted.get(key)
    ]
    if name != settings.name:
        kinds = f"is {block['type']!r} in this file, which is {name}; {settings.name} by the sweep"
        issues.append(Issue("optimizer.type", f"{kinds} (optimizer.name)"))
    return issues


def _optimizer_values(settings: Optimizer) -> dict[str, Any]:
    values: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    values["max_grad_norm"] = settings.grad_clip  # of older files, beside gradient_clipping
    if settings.name == "sgd":
        return {**values, "momentum": settings.beta1}
    values["betas"] = [settings.beta1, settings.beta2]
    values.update(eps=settings.eps, bias_correction=settings.bias_correction)
    if settings.name == "lamb-deepspeed":
        values.update(max_coeff=settings.max_coeff, min_coeff=settings.min_coeff)
    return values


def _merged(ours: Mapping[str, Any], given: Mapping[str, Any]) -> Config:
    """Both, with what is in ``ours`` as it is there."""
    both = {**given, **ours}
    for key, value in ours.items():
        if isinstance(value, dict) and isinstance(given.get(key), Mapping):
            both[key] = _merged(value, given[key])
    return both


_MOST_BYTES = 1 << 20  # of a configuration


def _read(path: Path) -> Config:
    try:
        given = json.loads(read_regular(path, _MOST_BYTES), object_pairs_hook=_without_doubles)
    except (OSError, ValueError, RecursionError) as error:
        issue = Issue("deepspeed_config", f"cannot be read: {error}")
        raise SpecError(str(path), [issue]) from None
    if not isinstance(given, dict):
        raise SpecError(str(path), [Issue("deepspeed_config", "must hold one JSON object")])
    return given


def _without_doubles(pairs: list[tuple[str, Any]]) -> Config:
    keys = Counter(key for key, _ in pairs)
    doubled = sorted(key for key, number in keys.items() if number > 1)
    if doubled:
        raise ValueError(f"{', '.join(doubled)} is there twice")
    return dict(pairs)


BACKENDS = (
    BackendDeclaration(
        name="deepspeed",
        doc=__doc__,
        framework_name="DeepSpeed",
        library="torch",
        **ALIKE,
        open_session=opener("torch.deepspeed", "DeepSpeedSession", "PyTorch", TORCH_CURE),
        modes=MODES[:2],
        check=check,
        memory=memory,
        modules=("deepspeed",),
        options=(
            Option(
                "zero_stage",
                0,
                "spread over ranks: 1 optimizer states, 2 gradients too, 3 parameters too",
                maximum=3,
            ),
            Option(
                "deepspeed_config",
                "",
                "the user's own DeepSpeed configuration (JSON), as the compute nodes see it",
            ),
            BIND,
            Option(
                "steps_per_print",
                0,
                "DeepSpeed prints its own throughput every so many optimizer steps, for which it"
                " waits for the device twice in each iteration; 0 is off",
            ),
        ),
    ),
)
