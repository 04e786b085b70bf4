"""From text to samples: the same for any number of workers, masked as BERT's are, and refusals."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import bert_layout, prepared, write_corpus

from dlperf_hpc.data import bert_files, corpus, opening
from dlperf_hpc.data.bert_files import Arrays
from dlperf_hpc.data.bert_samples import pairs


def read_all(directory: Path, seq_len: int = 64) -> Arrays:
    """Every sample of prepared BERT data, in the order of the files."""
    layout = bert_layout(directory, seq_len)
    shards = [opening.open_shard(path, layout) for path in opening.find(str(directory))]
    parts = [shard.read(np.arange(shard.samples)) for shard in shards]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def special(directory: Path) -> dict[str, int]:
    words = (directory / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return {name: words.index(f"[{name}]") for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord", "megatron", "jsonl"])
def test_any_number_of_workers_makes_the_same_files(tmp_path: Path, kind: str) -> None:
    corpus = write_corpus(tmp_path)
    options = ("--format", kind, "--shards", "3")
    one = prepared(corpus, tmp_path / "one", *options, "--workers", "1")
    two = prepared(corpus, tmp_path / "two", *options, "--workers", "2")
    files = {path.name: path.read_bytes() for path in one.iterdir()}
    assert files == {path.name: path.read_bytes() for path in two.iterdir()}
    assert len([name for name in files if name.startswith("training_")]) >= 3


def test_another_seed_makes_other_samples(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    one = read_all(prepared(corpus, tmp_path / "one", "--format", "hdf5", "--seed", "1"))
    two = read_all(prepared(corpus, tmp_path / "two", "--format", "hdf5", "--seed", "2"))
    assert not np.array_equal(one["input_ids"][:50], two["input_ids"][:50])


def test_both_bert_formats_hold_the_same_samples(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    first = read_all(prepared(corpus, tmp_path / "one", "--format", "hdf5"))
    second = read_all(prepared(corpus, tmp_path / "two", "--format", "tfrecord"))
    assert first.keys() == second.keys()
    for name, values in first.items():
        assert np.array_equal(values, second[name]), name


def test_masking_is_berts(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    made = prepared(corpus, tmp_path / "out", "--format", "tfrecord", "--duplicates", "4")
    arrays, marks = read_all(made), special(made)
    lengths = arrays["input_mask"].sum(axis=1)
    used = arrays["masked_lm_weights"] == 1
    counts = used.sum(axis=1)
    assert np.array_equal(counts, np.clip(np.floor(lengths * 0.15 + 0.5), 1, 10))
    positions = np.where(used, arrays["masked_lm_positions"], 10**6)
    assert (np.diff(positions, axis=1)[used[:, 1:]] > 0).all()
    ids = np.take_along_axis(arrays["input_ids"], arrays["masked_lm_positions"], axis=1)[used]
    labels = arrays["masked_lm_ids"][used]
    assert not np.isin(labels, [marks[name] for name in ("PAD", "CLS", "SEP", "MASK")]).any()
    total = len(labels)
    # Three standard deviations of a binomial; a random token is the old one once in a vocabulary.
    for share, hits in ((0.8, ids == marks["MASK"]), (0.1, ids == labels)):
        assert abs(hits.mean() - share) < 3 * (share * (1 - share) / total) ** 0.5 + 0.002
    unused = arrays["masked_lm_ids"][~used], arrays["masked_lm_positions"][~used]
    assert not any(values.any() for values in unused)


def test_samples_are_laid_out_as_berts(tmp_path: Path) -> None:
    made = prepared(write_corpus(tmp_path), tmp_path / "out", "--format", "hdf5")
    arrays, marks = read_all(made), special(made)
    ids, mask, segments = (arrays[name] for name in bert_files.PER_TOKEN)
    lengths = mask.sum(axis=1)
    assert (ids[:, 0] == marks["CLS"]).all()
    assert ((ids == marks["SEP"]).sum(axis=1) == 2).all()
    assert (ids[np.arange(len(ids)), lengths - 1] == marks["SEP"]).all()
    assert (ids[mask == 0] == marks["PAD"]).all() and not segments[mask == 0].any()
    assert (np.diff(mask, axis=1) <= 0).all()
    # Segment 1 begins behind the first [SEP].
    first_sep = (ids == marks["SEP"]).argmax(axis=1)
    assert np.array_equal((segments == 0).argmin(axis=1), first_sep + 1)
    share = arrays["next_sentence_labels"].mean()
    assert abs(share - 0.5) < 3 * 0.5 / len(ids) ** 0.5


def test_a_tenth_of_the_sequences_is_cut_short() -> None:
    documents = [[[1] * 8] * 400 for _ in range(10)]

    def shares(short: float) -> float:
        made = list(pairs(documents, 64, short, random.Random("1")))
        return sum(len(pair.a) + len(pair.b) < 45 for pair in made) / len(made)

    assert shares(0.0) < 0.02
    assert shares(1.0) > 0.5


def test_a_random_next_sentence_is_another_documents() -> None:
    documents = [[[number] * 5 for _ in range(30)] for number in range(6)]
    for pair in pairs(documents, 64, 0.1, random.Random("1")):
        assert len(set(pair.a)) == len(set(pair.b)) == 1
        assert pair.is_random == (pair.a[0] != pair.b[0])
        assert len(pair.a) > 0 and len(pair.b) > 0 and len(pair.a) + len(pair.b) <= 61


def test_documents_of_text_and_of_json_lines(tmp_path: Path) -> None:
    plain = tmp_path / "a.txt"
    plain.write_text("One. Two\nlines.\n\n\n  \nThree.\n", encoding="utf-8")
    lines = tmp_path / "b.json"
    rows = [{"id": 1, "text": "One.\n\nTwo."}, {"text": " "}, {"text": "Three."}]
    lines.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert list(corpus.documents(plain, whole_files=False)) == ["One. Two\nlines.\n", "Three.\n"]
    assert len(list(corpus.documents(plain, whole_files=True))) == 1
    assert list(corpus.documents(lines, whole_files=False)) == ["One.\n\nTwo.", "Three."]


def test_sentences_end_at_stops() -> None:
    found = corpus.sentences('See e.g. the manual. "Why?" Because\nit (says) so. 3 times.', False)
    assert found == ["See e.g. the manual.", '"Why?"', "Because it (says) so.", "3 times."]
    assert corpus.sentences("a b\n\nc. D\n", one_per_line=True) == ["a b", "c. D"]


@pytest.mark.processes
def test_a_vocabulary_of_the_users_own(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    learnt = prepared(corpus, tmp_path / "learnt", "--format", "megatron")
    options = ["--vocab", str(learnt / "vocab.json"), "--merges", str(learnt / "merges.txt")]
    again = tmp_path / "again"
    assert run([str(corpus), "--format", "megatron", "--out", str(again), *options])[0] == 0
    assert (again / "training_00000.bin").read_bytes() == (
        learnt / "training_00000.bin"
    ).read_bytes()


def run(arguments: list[str]) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "dlperf_hpc", "data", "prepare", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.processes
def test_json_tells_what_the_manifest_says(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--train-tokenizer", "--vocab-size", "400", "--seq-len", "64", "--json"]
    code, output, errors = run(
        [str(write_corpus(tmp_path)), "--format", "hdf5", "--out", str(out), *arguments]
    )
    assert (code, errors) == (0, "")
    told = json.loads(output)
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert told["seconds"] > 0 and told["out"] == str(out)
    assert {key: told[key] for key in told if key not in ("seconds", "out")} == {
        key: value for key, value in manifest.items() if key != "manifest_version"
    }
    assert manifest["settings"]["seed"] == 1 and manifest["settings"]["predictions"] == 10
    assert manifest["tokenizer"]["vocab_size"] == 400 and len(manifest["tokenizer"]["sha256"]) == 64
    (file,) = manifest["files"].values()
    assert file["samples"] == manifest["samples"] > 0 and file["largest_id"] < 400


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (" \n\n", "--format jsonl", "no text in 1 file(s)"),
        (b"caf\xe9 au lait", "--format jsonl", "not UTF-8 text"),
        (b"a\0b", "--format jsonl", "line 1: a NUL byte"),
        ('{"text": "A."}\n{"title": "B."}', "--format jsonl", "line 2: not a JSON object"),
        ('{"text": 3}', "--format jsonl", '"text" is int, not a string'),
        ("One.\n\nTwo.", "--format hdf5 --train-tokenizer --vocab-size 50", "has two sentences"),
        ("Only one.", "--format hdf5 --train-tokenizer --vocab-size 50", "1 document(s)"),
        ("A.\n\nB.", "--format jsonl --shards 9", "2 documents do not fill 9 shards"),
        ("A.\n\nB.", "--format hdf5", "needs a vocabulary: --vocab vocab.txt"),
        ("A.\n\nB.", "--format megatron --vocab x", "--vocab vocab.json --merges"),
        ("A.\n\nB.", "--format hdf5 --train-tokenizer --vocab-size 3", "alone are"),
        ("A.\n\nB.", "--format hdf5 --vocab /no/such", "cannot be read as a vocabulary"),
        ("A.\n\nB.", "--format hdf5 --train-tokenizer --seq-len 4", "not within 5 to 512"),
        ("A.\n\nB.", "--format hdf5 --vocab v --max-predictions 126", "do not fit 128"),
        ("A.\n\nB.", "--format hdf5 --vocab-size 9", "no meaning without --train-tokenizer"),
    ],
)
def test_refusals_leave_nothing_behind(
    tmp_path: Path, content: str | bytes, options: str, message: str, capsys: Any
) -> None:
    from dlperf_hpc.cli.prepare import main

    source = write(tmp_path / "text.txt", content)
    assert main([str(source), "--out", str(tmp_path / "out"), *options.split()]) in (1, 2)
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_an_output_that_is_there_is_left_alone(tmp_path: Path, capsys: Any) -> None:
    from dlperf_hpc.cli.prepare import main

    source = write(tmp_path / "text.txt", "A.\n\nB.")
    write(tmp_path / "kept", "mine")
    for out in (tmp_path, tmp_path / "kept"):
        assert main([str(source), "--out", str(out), "--format", "jsonl"]) == 1
        assert "exists and is not empty" in capsys.readouterr().err
    assert main(["/no/such/text", "--out", str(tmp_path / "out"), "--format", "jsonl"]) == 1
    assert "no such file" in capsys.readouterr().err
    assert (tmp_path / "kept").read_text(encoding="utf-8") == "mine"
    lines = tmp_path / "lines"
    assert main([str(source), "--out", str(lines), "--format", "jsonl"]) == 0
    texts = (lines / "training_00000.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"].strip() for line in texts] == ["A.", "B."]
