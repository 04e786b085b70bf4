"""What a back end or a workload says of itself without importing its framework.

A file in ``train/backends`` or ``train/workloads`` makes one of these at its top; the sweep reader
checks a sweep against them on the login node, and the wrapper calls the functions they carry on
the compute node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from dlperf_hpc.model.case import Case, Option
from dlperf_hpc.sweepfile.programs import UserProgram


@dataclass(frozen=True)
class ModelSize:
    """A model and one micro-batch of a rank, as memory sees them: ``parameters`` in all, and in one
    ``layer`` of its ``layers``. A layer keeps for the backward pass twice ``entry``, the numbers of
    its input, of the residual stream, and ``computed`` in the precision of products. ``scores`` of
    the vocabulary are kept, and as many as ``widened`` are in float32 besides, for a moment."""

    parameters: int
    layer: int
    layers: int
    entry: int
    computed: int
    scores: int
    widened: int


@dataclass(frozen=True)
class Memory:
    """Bytes on the device of the rank that holds most: ``certain`` in an optimizer step, with
    parameters, gradients, copies, optimizer state; ``about`` at the peak, an estimate."""

    certain: int
    about: int


@dataclass(frozen=True)
class BackendDeclaration:
    """A framework as the wrapper drives it.

    ``library`` is the form of its models (``torch``, ``tensorflow``); ``open_session(case, world,
    workload)`` returns a :class:`~dlperf_hpc.train.session.Session`. ``modules`` are what it
    imports beside ``library``; the log has the version of the first, or of ``library``, under
    ``framework_name`` (``library`` where it is empty). ``modes`` are those of
    :data:`~dlperf_hpc.model.case.MODES` that it can run; ``one_per_node``: one process may drive
    all GPUs of a node. ``refused`` says of precisions and optimizers that it lacks why, by their
    names. ``check(case)`` gives (key, message) for what the back end cannot do of a
    case whose values hold one by one; ``memory(case, size)`` its :class:`Memory`, or None."""

    name: str
    doc: str
    library: str
    precisions: tuple[str, ...]
    optimizers: tuple[str, ...]
    open_session: Callable[..., Any]
    options: tuple[Option, ...] = ()
    data_sources: tuple[str, ...] = ("synthetic",)
    modules: tuple[str, ...] = ()
    framework_name: str = ""
    one_per_node: bool = False
    modes: tuple[str, ...] = ("eager",)
    refused: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Case], Iterable[tuple[str, str]]] | None = None
    memory: Callable[[Case, ModelSize], Memory | None] | None = None


@dataclass(frozen=True)
class SampleLayout:
    """What a sample of real data must be for a case. ``kind`` is the family of models ("bert",
    "gpt2"); token ids are below ``vocab``; a sample has ``seq_len`` tokens and, for BERT, room for
    ``predictions`` masked positions. Another family brings its own ``reader(path, layout)``: it
    opens one file as a :class:`dlperf_hpc.data.opening.Shard`; DataError for an invalid one.
    ``folder``: it opens the whole ``data_path``, a folder, as one. ``seq_len`` is 0 where samples
    are no sequences, and ``vocab`` the number of classes then. ``facts`` are said in the log."""

    kind: str
    vocab: int
    seq_len: int
    predictions: int = 0
    reader: Callable[..., Any] | None = None
    folder: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkloadDeclaration:
    """A model with its data. ``build(library, case)`` returns the model in that library's form;
    ``batch(case, rank)`` the rank's batch of synthetic data, a dict of arrays that are the model's
    arguments by name; ``flops_per_sample(case)`` model FLOPs of one sample, forward and backward;
    ``layout(case)`` what its real data is like, None where it has none. ``check(case)`` is as a
    :class:`BackendDeclaration` has it; ``size(case)`` is its :class:`ModelSize`. Where samples are
    no sequences, ``max_seq_len`` is 0, and so is every case's ``seq_len``."""

    name: str
    doc: str
    libraries: tuple[str, ...]
    build: Callable[..., Any]
    batch: Callable[..., Any]
    flops_per_sample: Callable[..., float]
    options: tuple[Option, ...] = ()
    default_seq_len: int = 0
    max_seq_len: int = 0
    min_seq_len: int = 1
    layout: Callable[..., SampleLayout] | None = None
    check: Callable[[Case], Iterable[tuple[str, str]]] | None = None
    size: Callable[[Case], ModelSize] | None = None


@dataclass(frozen=True, eq=False)
class Registry:
    """Everything declared in this installation, by name, and a sweep's own ``programs``."""

    backends: Mapping[str, BackendDeclaration]
    workloads: Mapping[str, WorkloadDeclaration]
    programs: Mapping[str, UserProgram] = field(default_factory=dict)

    def options(self, framework: str, model: str) -> tuple[Option, ...]:
        """The options a case of this back end and workload, or of this program, may set."""
        if framework in self.programs:
            return self.programs[framework].options
        return self.backends[framework].options + self.workloads[model].options

    def memory(self, case: Case) -> Memory | None:
        """What a rank of a back end's case needs; None where back end or workload does not say."""
        backend, workload = self.backends[case.framework], self.workloads[case.model]
        if backend.memory and workload.size:
            return backend.memory(case, workload.size(case))
        return None

    def declared(self) -> Iterator[Option]:
        """The options of every program, back end and workload: of one name, ours come last."""
        for kind in (self.programs, self.backends, self.workloads):
            for each in kind.values():
                yield from each.options
