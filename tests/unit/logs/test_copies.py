"""A log that lies there twice is one run: a copy, another name, compressed, a rank's and all's."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
import zstandard

from dlperf_hpc.logs.gather import Gathered, gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache

STATED = {"nodes": 1, "gpus_per_node": 8}


def megatron(hour: int = 10, stamped: bool = True, ms: float = 500.0, last: int = 130) -> list[str]:
    """Lines as Megatron-LM prints them; the milliseconds vary as real ones do."""
    lines = []
    for n in range(1, last + 1):
        minute, second = divmod(n * ms / 1000, 60)
        stamp = f" [2026-01-05 {hour:02d}:{int(minute):02d}:{second:09.6f}]" if stamped else ""
        lines.append(
            f"{stamp} iteration {n:8d}/     500 | consumed samples: {64 * n:12d} | elapsed time per"
            f" iteration (ms): {ms + n % 7 / 10:.1f} | learning rate: 1.500E-04 | global batch"
            f" size:    64 | lm loss: {10 / n:.6E} | loss scale: 1.0 |"
        )
    return lines


def horovod(rate: float = 100.0) -> list[str]:
    """Figures that are all the same: other runs may print them too."""
    lines = [f"Iter #{n}: {rate} img/sec per GPU" for n in range(10)]
    return [*lines, f"Total img/sec on 8 GPU(s): {8 * rate} +-0.0"]


def write(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def read(root: Path) -> Gathered:
    return gather([root], rule(), {**STATED, "batch_size": 8}, ScanCache(None))


@pytest.mark.parametrize("how", ["copied", "gzip", "zstd"])
@pytest.mark.parametrize("lines", [megatron(), megatron(stamped=False), horovod()])
def test_a_copy_is_no_second_repeat(tmp_path: Path, how: str, lines: list[str]) -> None:
    log = write(tmp_path / "bert_first.log", lines)
    copy = tmp_path / {"copied": "old/bert_final.txt", "gzip": "z.gz", "zstd": "z.zst"}[how]
    if how == "copied":
        copy.parent.mkdir()
        shutil.copy(log, copy)
    elif how == "gzip":
        copy.write_bytes(gzip.compress(log.read_bytes()))
    else:
        copy.write_bytes(zstandard.compress(log.read_bytes()))
    found = read(tmp_path)
    (result,) = found.results
    assert result.run.repeat == 1
    assert found.unread == (f"{copy}: is a copy of {log}, whose run is the same",)


def test_tee_of_a_rank_and_the_launcher_s_own_log_are_one_run(tmp_path: Path) -> None:
    """The launcher's has the lines of all ranks, labelled, and its own before them."""
    lines = megatron()
    log = write(tmp_path / "rank0.txt", lines)
    labelled = [f"{rank}: {line}" for line in lines for rank in (0, 1)]
    of_all = write(tmp_path / "slurm-4711.out", ["srun: job 4711 starts", *labelled])
    found = read(tmp_path)
    assert len(found.results) == 1
    assert found.unread == (f"{log}: is a copy of {of_all}, whose run is the same",)


def test_a_copy_made_while_it_ran_and_the_log_in_which_it_broke(tmp_path: Path) -> None:
    write(tmp_path / "a.log", megatron(last=125))
    write(tmp_path / "b.log", [*megatron(), "torch.OutOfMemoryError: CUDA out of memory."])
    (result,) = read(tmp_path).results
    assert result.log.endswith("b.log") and result.status.value == "out_of_memory"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (megatron(), megatron(hour=11)),
        (megatron(stamped=False), megatron(stamped=False, ms=500.1)),
        (horovod(), ["mpirun: a line more", *horovod()]),
    ],
)
def test_other_runs_are_repeats(tmp_path: Path, one: list[str], other: list[str]) -> None:
    """Constant figures without a date may be of any run: only the same bytes are a copy."""
    write(tmp_path / "a.log", one)
    write(tmp_path / "b.log", other)
    found = read(tmp_path)
    assert sorted(result.run.repeat for result in found.results) == [1, 2]
    assert not found.unread


def test_names_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    write(tmp_path / "1n8g_fp16.log", megatron())
    other = write(tmp_path / "1n8g_fp32.log", megatron())
    first, second = read(tmp_path).results
    assert not any("its lines are those of" in warning for warning in first.warnings)
    assert any("its lines are those of" in warning for warning in second.warnings)
    assert second.log == str(other)
