"""Write a file for ``initial_weights``: ``python -m dlperf_hpc.train.make_weights --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlperf_hpc import leave_current_directory
from dlperf_hpc.model.case import Case, Option, Topology
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train import workloads
from dlperf_hpc.train.registry import registry


def _value(option: Option, text: str) -> Any:
    """A choice as it is declared; ValueError for any other text."""
    for choice in option.choices or ((False, True) if option.default in (False, True) else ()):
        if str(choice).lower() == text.lower():
            return choice
    if option.choices:
        raise ValueError(f"{option.name} is one of {', '.join(map(str, option.choices))}")
    return type(option.default)(text)


def _case(workload: WorkloadDeclaration, settings: Sequence[str], seed: int) -> Case:
    """The smallest case of a model; ValueError for an option that it lacks, or a bad value."""
    declared = {option.name: option for option in workload.options}
    reads = workloads.INITIAL_WEIGHTS.name
    if reads not in declared:
        raise ValueError(f"{workload.name} has no option {reads}, which would read the file")
    values = {name: option.default for name, option in declared.items()}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in declared or name == reads:
            raise ValueError(f"{workload.name} has no option {name!r} that shapes its weights")
        values[name] = _value(declared[name], text)
    return Case(
        framework="",
        model=workload.name,
        topology=Topology(1, 1),
        precision="fp32",
        batch_size=1,
        seq_len=workload.min_seq_len + 4,  # room for a masked token
        seed=seed,
        options=tuple(sorted(values.items())),
    )


def _build(library: str, case: Case) -> Any:
    if library == "torch":
        import torch

        torch.manual_seed(case.seed)
    return registry().workloads[case.model].build(library, case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; exit code 2 for arguments that cannot be."""
    declared = registry().workloads
    parser = argparse.ArgumentParser(prog="python -m dlperf_hpc.train.make_weights")
    parser.add_argument("model", choices=sorted(declared))
    parser.add_argument("file", type=Path, help="where to write it (.npz); replaced if it exists")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default 1)")
    parser.add_argument("--library", choices=("torch", "tensorflow"), default="torch")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the model as in a sweep, such as layer_norm=pre; repeatable",
    )
    given = parser.parse_args(arguments)
    try:
        if given.library not in declared[given.model].libraries:
            raise ValueError(f"{given.model} is not written for {given.library}")
        case = _case(declared[given.model], given.option, given.seed)
        if not given.file.parent.is_dir():
            raise ValueError(f"{given.file.parent} is not a directory")
    except ValueError as error:
        print(f"make_weights: {error}", file=sys.stderr)
        return 2
    workloads.save(_build(given.library, case), given.file)
    print(f"{given.file}: {given.model}, seed {given.seed}, {given.file.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    leave_current_directory()
    sys.exit(main())
