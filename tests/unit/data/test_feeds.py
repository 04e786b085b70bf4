"""Files of samples: readable by others, refused when damaged, and shared out among ranks."""

from __future__ import annotations

import shutil
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import bert_arrays, bert_layout, prepared, write_corpus

from dlperf_hpc.data import bert_files, opening, tfrecord
from dlperf_hpc.data.bert_files import Array, Arrays
from dlperf_hpc.errors import DataError
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.sweepfile.declarations import SampleLayout, WorkloadDeclaration
from dlperf_hpc.train import feeds
from dlperf_hpc.train.feeds import Feed, Share, batches, open_feed
from dlperf_hpc.train.ranks import World

BERT_LAYOUT = SampleLayout("bert", 100, 16, 3)
GPT2_LAYOUT = SampleLayout("gpt2", 100, 16)


def write_shards(directory: Path, counts: list[int], kind: str = "hdf5") -> Path:
    """A file for each count, as another program would leave them: without a manifest."""
    directory.mkdir()
    write = {"hdf5": bert_files.write_hdf5, "tfrecord": bert_files.write_records}[kind]
    for number, count in enumerate(counts):
        write(directory / f"{number}.{kind}", bert_arrays(count, sum(counts[:number])))
    return directory


def shards(directory: Path, layout: SampleLayout = BERT_LAYOUT) -> list[opening.Shard]:
    return [opening.open_shard(path, layout) for path in opening.find(str(directory))]


def numbers(batch: Arrays) -> list[int]:
    first = batch["input_ids"][:, :2]
    return [int(a) * 100 + int(b) for a, b in first]


def one_pass(share: Share) -> list[int]:
    return [n for shard, rows in share.one_pass(0) for n in numbers(shard.read(rows))]


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_bert_samples_come_back_as_they_went(tmp_path: Path, kind: str) -> None:
    directory = write_shards(tmp_path / "data", [30, 7], kind)
    batch = next(batches(Share(shards(directory), 0, 1, seed=1), 37))
    order = np.argsort(numbers(batch))
    expected = [bert_arrays(30), bert_arrays(7, 30)]
    for name, values in batch.items():
        assert np.array_equal(values[order], np.concatenate([e[name] for e in expected])), name
        assert values.dtype == (np.float32 if name == "masked_lm_weights" else np.int64)


class Rows:
    """A file of a new model's samples: an array that NumPy has saved."""

    def __init__(self, path: Path, layout: SampleLayout) -> None:
        self.path, self.rows = path, np.load(path)
        self.samples = len(self.rows)
        if self.rows.shape[1] != layout.seq_len:
            raise DataError(f"{path}: rows of {self.rows.shape[1]} values")

    def check(self) -> None: ...

    def release(self) -> None: ...

    def read(self, rows: Array) -> Arrays:
        return {"pixels": self.rows[rows]}


def test_a_new_models_samples_have_a_reader_of_their_own(tmp_path: Path) -> None:
    values = np.arange(30.0).reshape(10, 3)
    np.save(tmp_path / "rows.npy", values)
    layout = SampleLayout("picture", vocab=1, seq_len=3, reader=Rows)
    batch = next(batches(Share(shards(tmp_path, layout), 0, 1, seed=1), 10))
    assert np.array_equal(np.sort(batch["pixels"], axis=0), values)
    with pytest.raises(DataError, match="rows of 3 values"):
        shards(tmp_path, replace(layout, seq_len=4))


def test_hdf5_is_nvidias_layout(tmp_path: Path) -> None:
    import h5py

    made = prepared(write_corpus(tmp_path), tmp_path / "out", "--format", "hdf5")
    with h5py.File(made / "training_00000.hdf5") as file:
        found = {name: (data.dtype.str, data.shape[1:]) for name, data in file.items()}
        assert len({len(data) for data in file.values()}) == 1
    assert found == {
        "input_ids": ("<i4", (64,)),
        "input_mask": ("|i1", (64,)),
        "segment_ids": ("|i1", (64,)),
        "masked_lm_positions": ("<i4", (10,)),
        "masked_lm_ids": ("<i4", (10,)),
        "next_sentence_labels": ("|i1", ()),
    }


def read_megatron(path: Path) -> list[Array]:
    """The documents of an indexed binary, read as its description says and by nothing of ours."""
    data = path.with_suffix(".idx").read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    version, code = struct.unpack_from("<QB", data, 9)
    sequences, marks = struct.unpack_from("<QQ", data, 18)
    assert (version, marks, len(data)) == (1, sequences + 1, 34 + 12 * sequences + 8 * marks)
    sizes = struct.unpack_from(f"<{sequences}i", data, 34)
    pointers = struct.unpack_from(f"<{sequences}q", data, 34 + 4 * sequences)
    documents = struct.unpack_from(f"<{marks}q", data, 34 + 12 * sequences)
    assert list(documents) == list(range(marks))
    kind = {8: "<u2", 4: "<i4"}[code]
    tokens = path.read_bytes()
    return [np.frombuffer(tokens, kind, n, at) for n, at in zip(sizes, pointers)]


def test_the_indexed_binary_is_megatrons(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    from dlperf_hpc.data.corpus import documents

    corpus = write_corpus(tmp_path)
    made = prepared(corpus, tmp_path / "out", "--format", "megatron")
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    read = read_megatron(made / "training_00000.bin")
    assert all(ids[-1] == end and (ids[:-1] != end).all() for ids in read)
    texts = [d for path in sorted(corpus.iterdir()) for d in documents(path, False)]
    assert [tokenizer.decode(ids[:-1].tolist()) for ids in read] == texts


def test_samples_of_the_indexed_binary_follow_each_other(tmp_path: Path) -> None:
    stream = np.arange(16 * 6 + 1) % 100
    for vocab in (100, 70000):
        path = tmp_path / f"{vocab}.bin"
        opening.write_indexed(path, [stream[:5], stream[5:60], stream[60:]], vocab)
        shard = opening.IndexedShard(path, replace(GPT2_LAYOUT, vocab=vocab))
        arrays = shard.read(np.array([5, 0]))
        assert shard.samples == 6
        assert arrays["input_ids"].tolist() == [stream[80:96].tolist(), stream[:16].tolist()]
        assert arrays["labels"].tolist() == [stream[81:97].tolist(), stream[1:17].tolist()]


@pytest.mark.parametrize(("counts", "ranks"), [([20, 13, 8], 2), ([20, 13, 8], 3), ([9, 30], 4)])
def test_ranks_share_the_samples(tmp_path: Path, counts: list[int], ranks: int) -> None:
    directory = write_shards(tmp_path / "data", counts)
    shares = [Share(shards(directory), rank, ranks, seed=3) for rank in range(ranks)]
    seen = [one_pass(share) for share in shares]
    together = [number for own in seen for number in own]
    assert len(set(together)) == len(together)
    assert [len(own) for own in seen] == [share.samples for share in shares]
    assert shares[0].striped == (ranks > len(counts))
    left_out = sum(count % ranks for count in counts) if ranks > len(counts) else 0
    assert len(together) == sum(counts) - left_out


def test_every_pass_is_another_order_and_the_seed_repeats_it(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "data", [12, 12])
    passes: list[int] = []

    def first(seed: int) -> list[int]:
        source = batches(Share(shards(directory), 0, 1, seed), 8, passes.append)
        return [number for _, batch in zip(range(6), source) for number in numbers(batch)]

    order = first(1)
    assert sorted(order[:24]) == sorted(order[24:]) == list(range(24))
    assert order[:24] != order[24:] and order[:24] != sorted(order[:24])
    assert first(1) == order and first(2) != order
    assert passes == [1, 1, 1]


def test_a_batch_larger_than_the_data_wraps_around(tmp_path: Path) -> None:
    share = Share(shards(write_shards(tmp_path / "data", [5])), 0, 1, seed=1)
    assert sorted(numbers(next(batches(share, 10)))) == sorted([*range(5), *range(5)])


def test_a_feed_reads_ahead_and_measures_the_wait(tmp_path: Path) -> None:
    import time

    def slow(first: int) -> Any:
        for number in range(first, 3):
            time.sleep(0.1)
            yield {"input_ids": np.array([number])}
        raise DataError("gone")

    feed = Feed(slow, {}, lambda batch: int(batch["input_ids"][0]))
    assert feed.next_batch() == 0 and feed.waited_s > 0.05
    time.sleep(0.3)
    feed.open_window()
    assert [feed.next_batch(), feed.next_batch()] == [1, 2]
    assert feed.waited_s < 0.05
    with pytest.raises(DataError, match="gone"):
        feed.next_batch()
    feed.go_on(1)
    assert [feed.next_batch(), feed.next_batch()] == [1, 2]
    feed.close()


@pytest.mark.parametrize("first", [1, 3, 5, 19])
def test_batches_go_on_from_any_of_them(tmp_path: Path, first: int) -> None:
    """Within a file, behind one, and in a later pass; what is left out is not read."""
    share = Share(shards(write_shards(tmp_path / "data", [7, 4, 9])), 0, 1, seed=1)
    whole = [numbers(batch) for _, batch in zip(range(25), batches(share, 3))]
    read: list[int] = []
    for shard in share.shards:
        shard.read = lambda rows, own=shard.read: read.append(len(rows)) or own(rows)  # type: ignore
    rest = batches(share, 3, first=first)
    assert numbers(next(rest)) == whole[first] and sum(read) == 3
    assert [numbers(batch) for _, batch in zip(range(5), rest)] == whole[first + 1 : first + 6]


def rewritten(change: Callable[[Arrays], None], kind: str) -> Callable[[Path], None]:
    """Damage: the second file with other content."""

    def damage(directory: Path) -> None:
        arrays = bert_arrays(8)
        change(arrays)
        {"hdf5": _write_hdf5, "tfrecord": _write_records}[kind](directory / f"1.{kind}", arrays)

    return damage


def _write_hdf5(path: Path, arrays: Arrays) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values)


def _write_records(path: Path, arrays: Arrays) -> None:
    rows = range(len(arrays["input_ids"]))
    flat = {name: values.reshape(len(rows), -1) for name, values in arrays.items()}
    tfrecord.write(path, [tfrecord.encode({n: v[row] for n, v in flat.items()}) for row in rows])


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = directory / name
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    return damage


def flipped(name: str, share: float) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        data = bytearray((directory / name).read_bytes())
        data[int(len(data) * share)] ^= 0x40
        (directory / name).write_bytes(data)

    return damage


def put(name: str, value: Any) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name] = value(arrays[name])

    return change


def to(index: Any, value: int) -> Callable[[Array], Array]:
    def change(values: Array) -> Array:
        values[index] = value
        return values

    return change


def without(name: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.__delitem__(name)


DAMAGE = [
    ("hdf5", cut("1.hdf5", 0.6), "1.hdf5: not readable as HDF5"),
    ("hdf5", cut("1.hdf5", 0.0), "1.hdf5: neither HDF5"),
    ("hdf5", rewritten(without("masked_lm_ids"), "hdf5"), "masked_lm_ids: not there, found"),
    ("hdf5", rewritten(put("input_ids", to((3, 3), 100)), "hdf5"), "found 100, expected 0 to 99"),
    ("hdf5", rewritten(put("masked_lm_ids", to((0, 0), -1)), "hdf5"), "masked_lm_ids: found -1"),
    ("hdf5", rewritten(put("masked_lm_positions", to((0, 0), 16)), "hdf5"), "expected 0 to 15"),
    ("hdf5", rewritten(put("segment_ids", to((0, 0), 2)), "hdf5"), "segment_ids: found 2"),
    ("hdf5", rewritten(put("input_ids", lambda v: v[:, :9]), "hdf5"), "found 9 values a sample"),
    ("hdf5", rewritten(put("masked_lm_ids", lambda v: v[:, :2]), "hdf5"), "--max-predictions 3"),
    ("hdf5", rewritten(put("input_ids", lambda v: v[:3]), "hdf5"), "differ in their number"),
    ("hdf5", rewritten(put("input_ids", lambda v: v * 1.0), "hdf5"), "found float64, expected int"),
    ("hdf5", rewritten(put("input_ids", lambda v: v[0]), "hdf5"), "expected 2 dimensions"),
    ("tfrecord", cut("1.tfrecord", 0.55), "truncated or no TFRecord: record"),
    ("tfrecord", flipped("1.tfrecord", 0.3), "its checksum is wrong"),
    ("tfrecord", flipped("1.tfrecord", 0.0), "neither HDF5"),
    ("tfrecord", rewritten(without("input_mask"), "tfrecord"), "input_mask: not there, found"),
    ("tfrecord", rewritten(put("input_ids", to((7, 3), 250)), "tfrecord"), "record 7: input_ids"),
    ("tfrecord", rewritten(put("input_ids", lambda v: v[:, :9]), "tfrecord"), "expected 16"),
    ("tfrecord", rewritten(put("masked_lm_weights", lambda v: v / 2), "tfrecord"), "1 or 0 each"),
    (
        "tfrecord",
        rewritten(put("masked_lm_weights", lambda v: v.astype(int)), "tfrecord"),
        "masked_lm_weights: found int64",
    ),
]


@pytest.mark.parametrize(("kind", "damage", "message"), DAMAGE)
def test_damaged_data_is_refused(
    tmp_path: Path, kind: str, damage: Callable[[Path], None], message: str
) -> None:
    directory = write_shards(tmp_path / "data", [8, 8], kind)
    opening.check(shards(directory), BERT_LAYOUT)
    damage(directory)
    with pytest.raises(DataError) as caught:
        opening.check(shards(directory), BERT_LAYOUT)
    assert message in str(caught.value)
    assert str(directory / f"1.{kind}") in str(caught.value)


MEGATRON_DAMAGE = [
    (cut("a.bin", 0.7), "found 140 bytes, expected 200 (100 tokens of 2 bytes"),
    (cut("a.idx", 0.8), "truncated: found"),
    (flipped("a.idx", 0.0), "no Megatron index"),
    (lambda directory: (directory / "a.idx").unlink(), "neither HDF5"),
    (flipped("a.idx", 0.55), "are not contiguous"),
    (lambda d: opening.write_indexed(d / "a.bin", [np.array([1, 100])], 101), "tokens: found 100"),
]


@pytest.mark.parametrize(("damage", "message"), MEGATRON_DAMAGE)
def test_damaged_indexed_binaries_are_refused(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    opening.write_indexed(tmp_path / "a.bin", [np.arange(50), np.arange(50)], 100)
    opening.check(shards(tmp_path, GPT2_LAYOUT), GPT2_LAYOUT)
    damage(tmp_path)
    with pytest.raises(DataError) as caught:
        opening.check(shards(tmp_path, GPT2_LAYOUT), GPT2_LAYOUT)
    assert message in str(caught.value) and str(tmp_path / "a.") in str(caught.value)


def test_another_models_data_is_refused(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "data", [4])
    with pytest.raises(DataError, match="hdf5 holds bert samples, the model needs gpt2"):
        shards(directory, GPT2_LAYOUT)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("Plain text.", encoding="utf-8")
    with pytest.raises(DataError, match="no file of samples is there"):
        shards(tmp_path / "text")
    with pytest.raises(DataError, match="neither HDF5, TFRecord nor Megatron"):
        shards(tmp_path / "text" / "*.txt")


def test_patterns_and_variables_name_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_shards(tmp_path / "data", [1, 2, 3])
    monkeypatch.setenv("SCRATCH_OF_A_JOB", str(directory))
    assert len(opening.find("$SCRATCH_OF_A_JOB/[01].hdf5")) == 2
    assert len(opening.find("$SCRATCH_OF_A_JOB")) == 3
    (directory / opening.MANIFEST).write_text('{"manifest_version": 1, "files": {"9.hdf5": {}}}')
    with pytest.raises(DataError, match=r"9\.hdf5: cannot be read"):
        shards(directory)


def test_a_manifest_vouches_for_its_files_as_they_were(tmp_path: Path) -> None:
    made = prepared(write_corpus(tmp_path), tmp_path / "out", "--format", "hdf5")
    layout, content = bert_layout(made), opening.read_manifest(made)
    path = made / "training_00000.hdf5"
    assert opening.vouches(content, path, layout.vocab)
    assert not opening.vouches(content, path, 100)  # another model: every id is looked at
    with pytest.raises(DataError, match="expected 0 to 99"):
        opening.check(shards(made, replace(layout, vocab=100)), replace(layout, vocab=100))
    shutil.copy(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)  # younger than the manifest
    assert not opening.vouches(content, path, layout.vocab)
    opening.check(shards(made, layout), layout)


def test_a_file_cut_between_two_records_is_noticed(tmp_path: Path) -> None:
    made = prepared(write_corpus(tmp_path), tmp_path / "out", "--format", "tfrecord")
    path, layout = made / "training_00000.tfrecord", bert_layout(made)
    size, records = path.stat().st_size, tfrecord.TFRecordFile(path)
    tfrecord.write(path, [records[number] for number in range(len(records) - 1)])
    with pytest.raises(DataError, match=f"expected {size} by manifest.json"):
        opening.check(shards(made, layout), layout)


def test_weights_of_nvidias_files_end_at_position_0() -> None:
    positions = np.array([[3, 7, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0]])
    expected = [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert bert_files.weights_of(positions).tolist() == expected


def of_samples(directory: Path, kind: str, ranks: int = 1, padded: str = "") -> list[Any]:
    """The feed of each of so many ranks over two files, of which one may have a padded sample."""
    directory.mkdir()
    write = {"hdf5": bert_files.write_hdf5, "tfrecord": bert_files.write_records}[kind]
    for number in range(2):
        arrays = bert_arrays(9, 9 * number)
        if padded == str(number):
            arrays["input_mask"][8, 15] = 0
        write(directory / f"{number}.{kind}", arrays)
    case = Case(
        *("ddp", "bert-tiny", Topology(1, ranks), "fp32", 4, 16), data="real",
        data_path=str(directory),
    )  # fmt: skip
    made: list[Any] = [None] * ranks
    meeting = Meeting(ranks)

    def rank(number: int) -> None:
        world = World(number, ("a",) * ranks, meeting)
        made[number] = open_feed(case, world, SMALL_BERT)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


class Meeting:
    """An all-gather between threads."""

    def __init__(self, ranks: int) -> None:
        self.values: dict[int, Any] = {}
        self.barrier = threading.Barrier(ranks, timeout=20)

    def allgather(self, value: Any) -> list[Any]:
        self.values[threading.get_ident()] = value
        self.barrier.wait()
        found = [*self.values.values()]
        self.barrier.wait()
        return found


SMALL_BERT = WorkloadDeclaration(
    *("small", "", ("torch",)), build=dict, batch=dict, flops_per_sample=float,
    default_seq_len=16, max_seq_len=16, layout=lambda case: BERT_LAYOUT,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_a_mask_of_ones_is_left_out(tmp_path: Path, kind: str) -> None:
    (feed,) = of_samples(tmp_path / "whole", kind)
    assert feed.facts["data_masked"] is False and "input_mask" not in feed.next_batch()
    feed.close()
    (feed,) = of_samples(tmp_path / "padded", kind, padded="1")
    assert feed.facts["data_masked"] is True and "input_mask" in feed.next_batch()
    feed.close()


def test_one_rank_s_padding_keeps_the_mask_of_all(tmp_path: Path) -> None:
    both = of_samples(tmp_path / "data", "hdf5", ranks=2, padded="1")
    assert [feed.facts["data_masked"] for feed in both] == [True, True]
    for feed in both:
        assert "input_mask" in feed.next_batch()
        feed.close()


def test_a_manifest_tells_without_looking(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "data", [4])
    (path,) = directory.iterdir()
    entry = {"bytes": path.stat().st_size, "largest_id": 99}
    for tokens, whole in ((4 * 16, True), (4 * 16 - 1, False), (None, False)):
        opening.write_manifest(directory, {"files": {path.name: {**entry, "tokens": tokens}}})
        assert opening.unpadded(shards(directory), BERT_LAYOUT) is whole


def test_padding_that_comes_later_is_an_error() -> None:
    case = Case("ddp", "bert-tiny", Topology(1, 1), "fp32", 4, 16, data_path="/data")
    batch = {"input_mask": np.array([[1, 0]]), "input_ids": np.array([[1, 2]])}
    with pytest.raises(DataError, match="files were changed meanwhile"):
        next(feeds._without_masks(iter([batch]), case))
