"""TFRecord files: TensorFlow reads ours, and we read what TensorFlow writes."""

from __future__ import annotations

from typing import Any

import pytest
from data_samples import bert_arrays
from frameworks import run_checks
from places import SUPPORT

from dlperf_hpc.data import bert_files, tfrecord


@pytest.fixture(scope="module")
def by_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What TensorFlow reads of our records, and writes for us to read."""
    directory = tmp_path_factory.mktemp("tensorflow")
    bert_files.write_records(directory / "ours.tfrecord", bert_arrays(5))
    script = SUPPORT / "tensorflow_records_checks.py"
    found = run_checks("tensorflow", script, directory, ranks=1)
    return {**found, "directory": directory}


def test_tensorflow_reads_our_records(by_tensorflow: dict[str, Any]) -> None:
    for name, values in bert_arrays(5).items():
        wanted = values.reshape(5, -1).tolist()
        assert by_tensorflow["ours"][name] == wanted, name


def test_we_read_tensorflows_records(by_tensorflow: dict[str, Any]) -> None:
    file = tfrecord.TFRecordFile(by_tensorflow["directory"] / "theirs.tfrecord")
    file.check()
    assert len(file) == 3
    decoded = tfrecord.decode([file[number] for number in range(3)])
    found = [{name: values.tolist() for name, values in one.items()} for one in decoded]
    assert found == by_tensorflow["theirs"]
