"""Does a back end learn? The tiny models on real text, 200 steps, against the text's own entropy.

``python benchmarks/train_real_text.py --framework ddp [--model bert-tiny] [--ranks 2]``

The text is what this machine carries: Debian's licences, or else some of Python's manual. It is
prepared by our own tool, and trained on by the back end's own session under mpiexec. A model that
learns no more than how frequent each token is ends at the unigram entropy of the tokens; the loss
has to end below it (for BERT the sum of both its losses has to). Prints the curve, one line a
model; exit code 1 if a loss ended above.

``--kill-at STEP`` trains so many steps, saves, kills every rank with SIGKILL, and trains the rest
in new processes that load; the curve is the two joined. ``--against-unbroken`` trains once more
without a break, prints the greatest relative difference, and exits with 1 if it is above 1e-6.

``--python`` is the Python that has the framework, if it is not this one.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LICENCES = Path("/usr/share/common-licenses")
LAST = 20  # steps the end of the curve is a mean of
SAME = 1e-6  # relative difference of two losses that are the same


@dataclass(frozen=True)
class Recipe:
    """How a tiny model is trained here: chosen so that 200 steps are enough, on any back end."""

    format: str
    vocab: int
    seq_len: int
    batch_size: int
    lr: float
    options: dict[str, Any]


RECIPES = {
    "bert-tiny": Recipe("hdf5", 200, 32, 64, 5e-3, {"dropout": 0.0, "layer_norm": "pre"}),
    "gpt2-tiny": Recipe("megatron", 1000, 64, 4, 2e-3, {"dropout": 0.0}),
}


def write_text(directory: Path) -> list[Path]:
    """The licences; where this is no Debian, parts of Python's manual, one file a topic."""
    licences = [LICENCES / name for name in ("GPL-2", "GPL-3", "LGPL-2.1")]
    if all(path.is_file() for path in licences):
        return licences
    from pydoc_data.topics import topics

    manual = directory / "manual"
    manual.mkdir(parents=True)
    for name in ("assert", "assignment", "class", "compound", "exceptions", "import"):
        (manual / f"{name}.txt").write_text(topics[name], encoding="utf-8")
    return [manual]


def prepare(model: str, text: list[Path], out: Path, seed: int = 1) -> None:
    """The model's samples, with a vocabulary learnt from the text."""
    from dlperf_hpc.cli.prepare import main

    recipe = RECIPES[model]
    arguments = [*map(str, text), "--out", str(out), "--format", recipe.format, "--seed", str(seed)]
    arguments += ["--train-tokenizer", "--vocab-size", str(recipe.vocab), "--documents", "files"]
    arguments += ["--seq-len", str(recipe.seq_len), "--workers", "1"]
    # What it prints of itself belongs to the user, not into our JSON.
    with contextlib.redirect_stdout(sys.stderr):
        code = main(arguments)
    if code:
        raise SystemExit(f"{model}: the text could not be prepared")


def entropy(model: str, data: Path) -> float:
    """Unigram entropy in nats of what is predicted: all tokens, or BERT's masked ones."""
    import numpy as np

    from dlperf_hpc.data import opening
    from dlperf_hpc.train.feeds import Share, batches

    layout = _layout(model, data)
    shards = [opening.open_shard(path, layout) for path in opening.find(str(data))]
    share = Share(shards, 0, 1, seed=1)
    batch = next(batches(share, share.samples))
    tokens = batch["labels"] if "labels" in batch else batch["masked_lm_ids"]
    weights = batch.get("masked_lm_weights", np.ones(tokens.shape))
    counts = np.bincount(tokens[weights > 0])
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _layout(model: str, data: Path) -> Any:
    from dlperf_hpc.train.registry import registry

    layout = registry().workloads[model].layout
    assert layout is not None
    return layout(case_of("ddp", model, 1, data))


def case_of(framework: str, model: str, ranks: int, data: Path, **changes: Any) -> Any:
    """The case that is trained."""
    from dlperf_hpc.model.case import Case, Optimizer, Topology
    from dlperf_hpc.train.registry import registry

    recipe = RECIPES[model]
    options = {o.name: o.default for o in registry().options(framework, model)}
    return Case(
        framework=framework,
        model=model,
        topology=Topology(1, ranks),
        precision="fp32",
        batch_size=recipe.batch_size // ranks,
        seq_len=recipe.seq_len,
        optimizer=Optimizer(lr=recipe.lr, beta2=0.98),
        data="real",
        data_path=str(data),
        device="cpu",
        options=tuple(sorted({**options, **recipe.options, **changes}.items())),
    )


def train(arguments: argparse.Namespace) -> None:
    """One rank of the training; rank 0 writes the losses, means over the ranks, as JSON."""
    from dlperf_hpc.train import ranks
    from dlperf_hpc.train.registry import registry

    pairs = (setting.partition("=") for setting in arguments.set)
    changes = {key: json.loads(value) for key, _, value in pairs}
    (model,), framework, steps = arguments.model, arguments.framework, arguments.steps
    world = ranks.discover()
    declared = registry()
    case = case_of(framework, model, world.size, arguments.train, **changes)
    session = declared.backends[framework].open_session(case, world, declared.workloads[model])
    if arguments.load:
        session.load(arguments.load)
    session.open_window(steps)
    session.mark()
    for _ in range(steps):
        session.iterate()
        session.mark()
    session.synchronize()
    every = world.gather((session.losses(), session.data_wait_s()))
    if world.rank == 0:
        losses = [sum(values) / len(values) for values in zip(*(own for own, _ in every))]
        waits = max(wait for _, wait in every)
        result_of(arguments.train).write_text(json.dumps({"losses": losses, "data_wait_s": waits}))
    if arguments.save:
        session.save(arguments.save)
        world.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()
    session.close()


def result_of(data: Path) -> Path:
    """Where the last training on this data wrote its losses."""
    return data.with_name(f"{data.name}.json")


def launch(
    arguments: argparse.Namespace, model: str, data: Path, steps: int, *checkpoint: str
) -> dict[str, Any]:
    """The training under mpiexec, in the framework's Python; ``--save`` or ``--load`` and where."""
    from dlperf_hpc.engines.base import clean_environment
    from dlperf_hpc.engines.local import find_mpiexec

    mpiexec = find_mpiexec()
    if not mpiexec:
        raise SystemExit("no mpiexec: install the mpich wheel")
    argv = [mpiexec, "-n", str(arguments.ranks), arguments.python, "-m", "mpi4py"]
    argv += [__file__, "--framework", arguments.framework, "--model", model]
    argv += ["--steps", str(steps), "--train", str(data), *checkpoint]
    for setting in arguments.set:
        argv += ["--set", setting]
    env = {"OMP_NUM_THREADS": "1", **clean_environment()}
    result_of(data).unlink(missing_ok=True)
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if bool(done.returncode) != ("--save" in checkpoint) or not result_of(data).exists():
        raise SystemExit(f"{model}: training ended with exit code {done.returncode}\n{done.stdout}")
    found: dict[str, Any] = json.loads(result_of(data).read_text())
    return found


def curve(arguments: argparse.Namespace, model: str, data: Path) -> dict[str, Any]:
    """Of one training, or of one that was killed and of the one that went on from there."""
    steps, kill_at = arguments.steps, arguments.kill_at
    if not kill_at:
        return launch(arguments, model, data, steps)
    saved = str(data.with_name(f"{model}-checkpoint"))
    first = launch(arguments, model, data, kill_at, "--save", saved)
    rest = launch(arguments, model, data, steps - kill_at, "--load", saved)
    joined = {name: first[name] + rest[name] for name in first}
    if arguments.against_unbroken:
        unbroken = launch(arguments, model, data, steps)["losses"]
        pairs = zip(joined["losses"], unbroken)
        joined["apart"] = max(abs(loss - other) / other for loss, other in pairs)
    return joined


def judged(model: str, bound: float, found: dict[str, Any]) -> dict[str, Any]:
    """The curve's ends beside the entropy; ``last`` is the mean of the last steps."""
    end = found["losses"][-LAST:]
    last = sum(end) / len(end)
    return {"model": model, "last": last, "entropy": bound, "below": last < bound, **found}


def show(framework: str, found: dict[str, Any]) -> None:
    """One line: the curve and what it comes to."""
    losses: list[float] = found["losses"]
    step = max(1, len(losses) // 8)
    points = " ".join(f"{loss:.2f}" for loss in [*losses[::step], losses[-1]])
    verdict = "below" if found["below"] else "NOT below"
    apart = f"; {found['apart']:.1e} from the unbroken curve" if "apart" in found else ""
    print(
        f"{framework} {found['model']}: loss {losses[0]:.3f} -> {found['last']:.3f} (mean of the"
        f" last {min(LAST, len(losses))} of {len(losses)} steps), {verdict} the unigram entropy"
        f" {found['entropy']:.3f} nats; waited {found['data_wait_s']:.3f} s for data; every {step}"
        f" steps: {points}{apart}",
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--framework", default="ddp")
    made.add_argument("--model", action="append", choices=sorted(RECIPES), help="default: all")
    made.add_argument("--steps", type=int, default=200)
    made.add_argument("--ranks", type=int, default=2)
    made.add_argument("--python", default=sys.executable, help="the framework's Python")
    made.add_argument("--set", action="append", default=[], metavar="OPTION=JSON")
    made.add_argument(
        "--kill-at", type=int, metavar="STEP", help="save, kill, and go on from there"
    )
    made.add_argument("--against-unbroken", action="store_true", help="of --kill-at: train again")
    made.add_argument("--json", action="store_true", help="every loss, as JSON")
    for inner in ("--train", "--save", "--load"):
        made.add_argument(inner, type=Path, help=argparse.SUPPRESS)
    return made


def main() -> int:
    """Exit code 1 if a loss ended above the entropy, or a curve went on elsewhere."""
    parser = _parser()
    arguments = parser.parse_args()
    models = arguments.model or sorted(RECIPES)
    if arguments.train:
        train(arguments)
        return 0
    if arguments.kill_at is not None and not 0 < arguments.kill_at < arguments.steps:
        parser.error("--kill-at has to lie between 0 and --steps")
    if arguments.against_unbroken and not arguments.kill_at:
        parser.error("--against-unbroken goes with --kill-at")
    with tempfile.TemporaryDirectory() as scratch:
        text = write_text(Path(scratch, "text"))
        results = []
        for model in models:
            data = Path(scratch, model)
            prepare(model, text, data)
            found = curve(arguments, model, data)
            results.append(judged(model, entropy(model, data), found))
            if not arguments.json:
                show(arguments.framework, results[-1])
    if arguments.json:
        print(json.dumps(results))
    same = all(result.get("apart", 0.0) <= SAME for result in results)
    return 0 if same and all(result["below"] for result in results) else 1


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
