"""What verbs rely on holds of every engine: here under real mpiexec, there on a real Slurm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures_slurm import Onebox
from spec_samples import load, write
from sweeping import local_environment, wait_until

from dlperf_hpc.engines import NAMES, get_engine
from dlperf_hpc.engines.base import Engine, TaskProgram, run_program
from dlperf_hpc.engines.plan import make_directory, make_manifest, open_sweep
from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.engines.states import current
from dlperf_hpc.engines.submit import (
    adopt,
    missing_arrays,
    submit,
    submit_lock,
)
from dlperf_hpc.errors import LedgerError, SpecError
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import Ledger, Task, read_ledger
from dlperf_hpc.records.manifest import Array, Manifest, Submission, add_submission

# Ranks that do nothing until they are ended.
SLEEP = "#!/bin/sh\nexec sleep 120\n"


@dataclass
class Place:
    """An engine, a site whose Python sleeps, and a directory for sweeps."""

    engine: Engine
    site: Site
    path: Path

    @property
    def root(self) -> Path:
        return self.path / "logs" / "sample"

    def plan(self, topology: str = "1n1g", repeats: int = 2) -> tuple[Manifest, str]:
        top = f'topologies = ["{topology}"]\nrepeats = {repeats}\ntime_limit = "00:20:00"'
        sweep = load(write(self.path, top=top))
        bound = self.engine.array_bound(self.site)
        return make_manifest(sweep, self.site, self.engine.name, bound), sweep.text

    def tasks(self, ledger: Ledger) -> list[Task]:
        return [ledger.tasks()[run.id] for run in ledger.manifest.runs]

    def live_jobs(self) -> list[str]:
        return self.engine.live_jobs(self.root, read_ledger(self.root).noted())

    def statuses(self, ledger: Ledger) -> list[Status | None]:
        states = self.engine.states(ledger.root, self.tasks(ledger)).states
        found = (states.get(task.name) for task in self.tasks(ledger))
        return [state.status if state else None for state in found]


@pytest.fixture(params=NAMES)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    engine = get_engine(request.param)
    env = local_environment()
    if engine.name == "slurm":
        onebox: Onebox = request.getfixturevalue("onebox")
        env = onebox.env
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    python = tmp_path / "python"
    python.write_text(SLEEP)
    python.chmod(0o755)
    site = Site(
        partition="main",
        exclusive=False,
        array_parallelism=1,
        poll_s=1.0,
        environment={"default": Environment(python=str(python))},
    )
    made = Place(engine, site, tmp_path)
    yield made
    with contextlib.suppress(LedgerError):  # nothing is queued in this process
        if jobs := made.live_jobs():
            engine.cancel(jobs)


def test_from_a_plan_to_its_end(place: Place) -> None:
    """Two tasks, one at a time: one runs and one waits until both are cancelled."""
    engine, root = place.engine, place.root
    manifest, text = place.plan()
    engine.check(manifest, place.site, root)
    assert not root.exists()  # whatever is wrong is known before anything is written
    make_directory(root)
    with submit_lock(root, engine.lock_patience_s):
        ledger, new = open_sweep(root, manifest, text)
        outcome = submit(ledger, place.site, missing_arrays(ledger, new))
        assert new and not outcome.refused and not outcome.waiting
        again = submit(read_ledger(root), place.site, read_ledger(root).arrays)
        assert not again.submitted  # a job stands for it already
    ledger = read_ledger(root)
    (job,) = {row.job_id for row in ledger.submissions if row.job_id}
    assert [task.name for task in place.tasks(ledger)] == [f"{job}_0", f"{job}_1"]
    running, waiting = Status.RUNNING, Status.PENDING
    wait_until(lambda: place.statuses(ledger) == [running, waiting], 30, "the first task")
    assert place.live_jobs() == [job] and not engine.idle()

    output = root / layout.JOBS / f"{job}_0.out"
    wait_until(output.exists, 10, "its output")
    engine.cancel([job])
    wait_until(lambda: place.live_jobs() == [], 30, "the end of both")
    ended = [state for state in place.statuses(ledger) if state is not None]
    assert not {Status.PENDING, Status.RUNNING} & set(ended)

    def cancelled() -> bool:
        return current(root).results[0].status is Status.CANCELLED

    wait_until(cancelled, 10, "its record", lambda: (current(root).results, output.read_text()))


def test_a_job_whose_answer_was_lost_is_found_once(place: Place) -> None:
    """Where jobs outlive who submitted them, theirs is found; elsewhere there is none."""
    manifest, text = place.plan(repeats=1)
    make_directory(place.root)
    ledger, _ = open_sweep(place.root, manifest, text)
    (array,) = ledger.arrays
    add_submission(place.root, Submission(array.name, array.token))
    program = run_program(place.root, array)
    response = place.engine.submit(place.root, array, place.site, program)
    assert response.job_id and not (response.error or response.limit or response.silence)
    with submit_lock(place.root, place.engine.lock_patience_s):
        ledger, adopted = adopt(read_ledger(place.root))
        assert [row.job_id for row in adopted] == [response.job_id] * place.engine.detached
        _, twice = adopt(ledger) if adopted else (ledger, ())
        assert twice == ()
    place.engine.cancel([response.job_id])


def test_what_cannot_be_had_is_refused_by_check_or_as_it_is_submitted(place: Place) -> None:
    """Before anything is written where the engine knows, else in the scheduler's words."""
    manifest, text = place.plan("9n1g" if place.engine.max_nodes else "1n99g")
    try:
        place.engine.check(manifest, place.site, place.root)
    except SpecError as error:
        assert "9n1g" in str(error) and not place.root.exists()
        make_directory(place.root)
        open_sweep(place.root, manifest, text)
        return
    make_directory(place.root)
    ledger, _ = open_sweep(place.root, manifest, text)
    outcome = submit(ledger, place.site, ledger.arrays)
    assert [row.array for row in outcome.refused] == [array.name for array in ledger.arrays]
    assert place.live_jobs() == []
    assert {result.status for result in current(place.root).results} == {Status.REJECTED}


def test_a_program_and_its_epilogue(place: Place) -> None:
    """As doctor's: every rank has the arguments, the epilogue has the ranks' exit code."""
    (place.path / "python").write_text("#!/bin/sh\necho ranks $1\nexit 3\n")
    manifest, text = place.plan("1n2g", repeats=1)
    make_directory(place.root)
    ledger, _ = open_sweep(place.root, manifest, text)
    array: Array = ledger.arrays[0]
    program = TaskProgram(("hello",), ("echo", "the ranks ended with"))
    job = place.engine.submit(place.root, array, place.site, program).job_id
    output = place.root / layout.JOBS / f"{job}_0.out"

    def read() -> str:
        return output.read_text() if output.exists() else ""

    wait_until(lambda: "ended with 3\n" in read(), 30, "its end", read)
    assert output.read_text().count("ranks hello") == 2


def test_who_is_not_asked_says_nothing(place: Place) -> None:
    """Of a task that no engine knows there is no state; nobody cancels by guess."""
    manifest, text = place.plan(repeats=1)
    make_directory(place.root)
    ledger, _ = open_sweep(place.root, manifest, text)
    (array,) = ledger.arrays
    answer = place.engine.states(place.root, [Task(array, 0, "999999")])
    assert answer.states == {} and answer.silence == ""
    if place.engine.detached:
        assert place.live_jobs() == []
    else:
        with pytest.raises(LedgerError, match="Ctrl-C"):
            place.live_jobs()
