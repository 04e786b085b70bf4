"""Real data on its way to a rank: checked, shared out, shuffled, and read ahead of the loop. For
every framework alike: a feed gives numpy arrays that are the model's arguments by name."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dlperf_hpc.data import bert_files, opening
from dlperf_hpc.data.bert_files import Array, Arrays
from dlperf_hpc.data.opening import Shard
from dlperf_hpc.errors import DataError
from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.declarations import SampleLayout, WorkloadDeclaration
from dlperf_hpc.train.ranks import World

_AHEAD = 4  # batches ready before they are asked for


class Share:
    """The part of the data that one rank trains on, in an endless order that is shuffled anew in
    every pass. A rank has files of its own where there are enough; else all ranks go through all
    files together, and each takes every ``size``-th sample: no two see the same one."""

    def __init__(self, shards: list[Shard], rank: int, size: int, seed: int) -> None:
        self.striped = len(shards) < size
        self.shards = shards if self.striped else shards[rank::size]
        self._rank, self._size = (rank, size) if self.striped else (0, 1)
        self._seed = (seed, 0 if self.striped else 1 + rank)

    @property
    def samples(self) -> int:
        """Samples of this rank in one pass."""
        return sum(shard.samples // self._size for shard in self.shards)

    def one_pass(self, number: int) -> Iterator[tuple[Shard, Array]]:
        """Files, each with the rows that are this rank's, in the order of this pass."""
        for index in self._random(number, 0).permutation(len(self.shards)):
            shard = self.shards[index]
            rows = self._random(number, 1 + int(index)).permutation(shard.samples)
            # Cut to a multiple of the ranks: all of them see equally many.
            whole = shard.samples // self._size * self._size
            yield shard, rows[:whole][self._rank :: self._size]

    def _random(self, *key: int) -> np.random.RandomState:
        # RandomState's stream is frozen over numpy versions, unlike Generator's.
        sequence = np.random.SeedSequence([*self._seed, *key])
        return np.random.RandomState(np.random.MT19937(sequence))


def batches(
    share: Share, batch_size: int, again: Callable[[int], None] | None = None, first: int = 0
) -> Iterator[Arrays]:
    """Batches without end, from the ``first`` on; ``again(n)`` is called as pass n > 0 begins."""
    if not share.samples:
        raise DataError("there is no sample for this rank")
    parts: list[Arrays] = []
    number, left_out = divmod(first * batch_size, share.samples)
    missing = batch_size
    while True:
        for shard, rows in share.one_pass(number):
            rows, left_out = rows[left_out:], max(0, left_out - len(rows))
            while len(rows):
                parts.append(shard.read(rows[:missing]))
                taken = len(rows[:missing])
                rows, missing = rows[taken:], missing - taken
                if not missing:
                    yield _joined(parts)
                    parts, missing = [], batch_size
            shard.release()
        number += 1
        if again:
            again(number)


def _joined(parts: list[Arrays]) -> Arrays:
    """One batch of its parts; int64 and float32, as the synthetic ones."""
    made = {}
    for name in parts[0]:
        values = np.concatenate([part[name] for part in parts]) if parts[1:] else parts[0][name]
        kind = np.float32 if values.dtype.kind == "f" else np.int64
        made[name] = np.ascontiguousarray(values, dtype=kind)
    return made


class Feed:
    """Batches of one rank, read by a thread of its own and ready when they are asked for.
    ``source(n)`` gives all of them from the n-th on, counted from 0. ``convert`` makes of a batch
    what the framework wants, in that thread."""

    def __init__(
        self,
        source: Callable[[int], Iterator[Arrays]],
        facts: dict[str, Any],
        convert: Callable[[Arrays], Any] | None = None,
    ) -> None:
        self.facts = facts
        self.waited_s = 0.0
        self._source = source
        self._convert = convert or (lambda batch: batch)
        self._begin(0)
        # A thread that reads while the interpreter goes down may crash it.
        atexit.register(self.close)

    def _begin(self, first: int) -> None:
        self._ready: queue.Queue[Any] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        source = self._source(first)
        self._thread = threading.Thread(target=self._fill, args=(source,), daemon=True)
        self._thread.start()

    def go_on(self, first: int) -> None:
        """Give the batch with this number next, counted from 0, and those behind it."""
        self.close()
        self._begin(first)

    def next_batch(self) -> Any:
        """The next batch; the time until it is there is added to ``waited_s``."""
        start = time.perf_counter_ns()
        batch = self._ready.get()
        self.waited_s += (time.perf_counter_ns() - start) / 1e9
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def open_window(self) -> None:
        """Begin to count the wait anew."""
        self.waited_s = 0.0

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _fill(self, source: Iterator[Arrays]) -> None:
        try:
            for batch in source:
                if not self._put(self._convert(batch)):
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the batch is taken
            self._put(error)

    def _put(self, item: Any) -> bool:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


def open_feed(
    case: Case,
    world: World,
    workload: WorkloadDeclaration,
    convert: Callable[[Arrays], Any] | None = None,
    devices: int = 1,
) -> Feed | None:
    """This rank's feed of the case's real data, checked; None if its data is synthetic. ``devices``
    of this process share the batches: each is so many times ``case.batch_size``. All ranks take
    part. DataError, on all of them, if any found something wrong with the data."""
    if case.data != "real":
        return None
    if workload.layout is None:
        raise DataError(f"{workload.name} has no real data: set data = 'synthetic'")
    layout = workload.layout(case)
    share, unpadded, problem = None, True, None
    try:
        paths = opening.find(case.data_path, layout.folder)
        shards = [opening.open_shard(path, layout) for path in paths]
        share = Share(shards, world.rank, world.size, case.seed)
        mine = shards[world.rank :: world.size]
        opening.check(mine, layout)
        unpadded = opening.unpadded(mine, layout)
    except DataError as error:
        problem = str(error)
    answers = world.gather((problem, getattr(share, "samples", 0), unpadded))
    problems, found, whole = map(list, zip(*answers))
    failed = next(filter(None, problems), None)
    if failed or share is None:
        raise DataError(failed)
    if not all(found):
        raise DataError(
            f"data_path {case.data_path!r}: {sum(found)} samples for {world.size} ranks leave some"
            " rank none: prepare more text, or use fewer ranks"
        )
    with_masks = not all(whole)

    def source(first: int) -> Iterator[Arrays]:
        batches = _checked(share, case, layout, world, devices, first)
        return batches if with_masks else _without_masks(batches, case)

    facts = {
        "data_sharing": "samples of each file" if share.striped else "whole files",
        "data_samples_per_rank": min(found),
        "data_masked": with_masks,
        **layout.facts,
    }
    return Feed(source, facts, convert)


def _without_masks(batches: Iterator[Arrays], case: Case) -> Iterator[Arrays]:
    """Batches of data in which no file of any rank pads anything (else one batch could be computed
    otherwise than the last): a mask of ones rules out a GPU's fastest attention kernels."""
    for batch in batches:
        mask = batch.pop("input_mask", None)
        if mask is not None and not mask.all():
            raise DataError(
                f"data_path {case.data_path!r}: a sample is padded, and none was as the run began:"
                " the files were changed meanwhile"
            )
        yield batch


def _checked(
    share: Share, case: Case, layout: SampleLayout, world: World, devices: int, first: int
) -> Iterator[Arrays]:
    """The batches, each looked at once more: files may change after they were checked."""

    def again(number: int) -> None:
        if number == 1 and world.rank == 0:
            used = f"data: all {share.samples} samples of rank 0 were used"
            print(f"{used}: they come again, in another order", flush=True)

    for batch in batches(share, case.batch_size * devices, again, first):
        for name in ("input_ids", "masked_lm_ids"):
            if name in batch:
                bert_files.check_values(case.data_path, name, batch[name], layout)
        yield bert_files.arguments(batch)
