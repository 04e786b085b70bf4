"""Which environment variables a run writes into its log and record, and which it never does."""

from __future__ import annotations

import itertools

import pytest

from dlperf_hpc.records.lines import read_line, write_line
from dlperf_hpc.train import provenance
from dlperf_hpc.train.provenance import telling

WORDS = ("KEY", "TOKEN", "SECRET", "PASS", "PWD", "CRED", "AUTH", "JWT", "COOKIE", "PRECONDITION")
FORMS = ("{}", "API_{}", "{}_FILE", "my{}s", "X_{}WORD_2", "MCA_orte_{}_transports")


def test_settings_of_every_family_are_recorded() -> None:
    names = sorted(f"{family}_ALGO" for family in provenance._FAMILIES)
    assert list(telling(dict.fromkeys(names, "1"))) == names


@pytest.mark.parametrize("family", provenance._FAMILIES)
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


def test_what_a_process_records_is_chosen_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "mpi_library", lambda: "MPI")
    monkeypatch.setenv("NVIDIA_API_KEY", "hush")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert provenance.provenance()["env"]["NCCL_DEBUG"] == "INFO"
    assert "hush" not in str(provenance.provenance())
