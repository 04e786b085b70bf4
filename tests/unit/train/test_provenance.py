"""Which environment variables a run writes into its log and record, and which it never does."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from dlperf_hpc.records.lines import read_line, write_line
from dlperf_hpc.train import joblog
from dlperf_hpc.train.joblog import telling

WORDS = ("KEY", "TOKEN", "SECRET", "PASS", "PWD", "CRED", "AUTH", "JWT", "COOKIE", "PRECONDITION")
FORMS = ("{}", "API_{}", "{}_FILE", "my{}s", "X_{}WORD_2", "MCA_orte_{}_transports")


def test_settings_of_every_family_are_recorded() -> None:
    names = sorted(f"{family}_ALGO" for family in joblog._FAMILIES)
    assert list(telling(dict.fromkeys(names, "1"))) == names


@pytest.mark.parametrize("family", joblog._FAMILIES)
def test_no_name_that_may_mean_a_secret_is_recorded(family: str) -> None:
    names = {
        f"{family}_{change(form.format(word))}"
        for word, form, change in itertools.product(WORDS, FORMS, (str.upper, str.lower, str.title))
    }
    assert len(names) > 100
    assert telling(dict.fromkeys(names, "hush")) == {}


def test_secrets_that_were_recorded_once_are_not() -> None:
    names = ("NVIDIA_API_KEY", "CUDA_TOKEN", "OMPI_MCA_orte_precondition_transports", "HOME")
    kept = {"NCCL_DEBUG": "INFO", "OMPI_MCA_btl": "^openib", "SLURM_JOB_ID": "7"}
    assert telling({**dict.fromkeys(names, "hush"), **kept}) == kept


def test_values_are_bounded_and_on_one_line() -> None:
    found = telling({"NCCL_A": "x" * 10**6, "NCCL_B": "a\nb\x1b[2J\u202e\udcff", "NCCL_É": "1"})
    assert found["NCCL_A"] == "x" * 4096
    assert found["NCCL_B"] == r"a / b\x1b[2J\u202e\udcff"
    assert len(found) == 2
    assert read_line(write_line("provenance", {"env": found})) is not None


@pytest.mark.processes
def test_what_a_process_records_is_chosen_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblog, "mpi_library", lambda: "MPI")
    monkeypatch.setenv("NVIDIA_API_KEY", "hush")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert joblog.provenance()["env"]["NCCL_DEBUG"] == "INFO"
    assert "hush" not in str(joblog.provenance())


@pytest.mark.parametrize(
    "name",
    [
        *("HOROVOD_CYCLE_TIME", "CUBLAS_WORKSPACE_CONFIG", "CUDNN_LOGLEVEL_DBG", "LD_PRELOAD"),
        *("TRITON_CACHE_DIR", "TORCHDYNAMO_DISABLE", "NVTE_FUSED_ATTN", "SHARP_COLL_LOG_LEVEL"),
        *("MLX5_SINGLE_THREADED", "SLURM_CPU_BIND", "SLURM_GPU_BIND", "DLPERF_MPI"),
        *("MALLOC_TRIM_THRESHOLD_", "MALLOC_CONF", "GLIBC_TUNABLES"),
    ],
)
def test_what_changes_speed_is_recorded(name: str) -> None:
    assert telling({name: "1"}) == {name: "1"}


def test_what_nccl_reads_from_files_is_recorded_as_its_variables_are(tmp_path: Path) -> None:
    system, own = tmp_path / "nccl.conf", tmp_path / ".nccl.conf"
    system.write_text("# of the site\nNCCL_DEBUG=WARN\nNCCL_IB_HCA = mlx5_0\nNCCL_API_KEY=hush\n")
    own.write_text("NCCL_DEBUG=INFO\nHOME=/hush\nno pair\n")
    found = joblog.nccl_files(system, {"HOME": str(tmp_path)})
    assert found == {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5_0"}
    assert joblog.nccl_files(tmp_path / "none", {"HOME": str(tmp_path / "x")}) is None
    named = {"HOME": str(tmp_path), "NCCL_CONF_FILE": str(system)}
    assert joblog.nccl_files(tmp_path / "none", named) == {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_HCA": "mlx5_0",
    }


def test_a_pipe_or_a_large_file_in_place_of_nccls_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / ".nccl.conf").write_bytes(b"NCCL_DEBUG=INFO\n" * 10_000)
    assert joblog.nccl_files(tmp_path / "pipe", {"HOME": str(tmp_path)}) is None


def test_ranks_with_other_settings_have_another_digest() -> None:
    first = {"NCCL_DEBUG": "INFO", "PMI_RANK": "0", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/a"}
    same = {**first, "PMI_RANK": "1", "CUDA_VISIBLE_DEVICES": "1", "HOME": "/b"}
    other = {**same, "NCCL_ALGO": "Ring"}
    digests = [joblog.environment_digest(each) for each in (first, same, other)]
    assert digests[0] == digests[1] != digests[2]
