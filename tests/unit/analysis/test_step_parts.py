"""Where the time of a step goes: made runs whose loss is known, put together independently."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from report_samples import case, external, ok

from dlperf_hpc.analysis.step_parts import PARTS, loss_of
from dlperf_hpc.model.result import Checkpoint, RankTime, RunResult
from dlperf_hpc.reporting.contents import Report, json_text
from dlperf_hpc.reporting.page.report_page import page
from dlperf_hpc.reporting.report_tables import speedup_table
from dlperf_hpc.reporting.step_tables import loss_sentence, step_table
from dlperf_hpc.reporting.writers.markdown import markdown

COMPUTE_MS = 100.0


def runs(
    topology: str, computing: Sequence[float], waiting: Sequence[float], exchange: float,
    unexplained: float = 0.0, repeats: int = 3, **changes: object,
) -> list[RunResult]:  # fmt: skip
    """Runs whose ranks compute and wait for so many ms in a step, then exchange; each step ends
    with its slowest rank. The runs differ by 0.1 % of all."""
    of = case(topology, framework="ddp", model="bert-base")
    devices, per_node = of.topology.devices, of.topology.gpus_per_node
    own = [a + b for a, b in zip(computing, waiting)]
    step = max(own) + exchange + unexplained
    made = []
    for repeat in range(1, repeats + 1):
        stretch = 1 + 0.001 * (repeat - 2)
        speed = of.micro_batch / (step * stretch / 1000)
        times = tuple(
            RankTime(f"n{1 + rank // per_node}", rank % per_node, own[rank] * stretch, True,
                     wait_ms=waiting[rank] * stretch)
            for rank in range(devices)
        )  # fmt: skip
        exposed = exchange / step if devices > 1 else None
        wait_s = max(waiting) / step * of.micro_batch * 100 / speed
        run = ok(of, repeat, speed, data_wait_s=wait_s, exposed_comm=exposed, **changes)
        made.append(replace(run, rank_times=times if devices > 1 else ()))
    return made


def report(*groups: Sequence[RunResult]) -> Report:
    return Report("made", [run for group in groups for run in group])


def parts_of(made: Report, topology: str) -> dict[str, float]:
    ((_, cases),) = made.step_parts.items()
    (found,) = [each for each in cases if str(each.summary.case.topology) == topology]
    assert math.fsum(found.parts.values()) == pytest.approx(found.ms, rel=1e-12)
    assert list(found.parts) == [name for name in PARTS if name in found.parts]
    return dict(found.parts)


def sentence_of(made: Report) -> str:
    return "".join(map(loss_sentence, made.step_parts.values()))


ALONE = runs("1n1g", [COMPUTE_MS], [0.0], 0.0)


def test_a_rank_that_computes_ten_per_cent_longer_is_named() -> None:
    slow = [COMPUTE_MS] * 8
    slow[5] *= 1.10
    made = report(ALONE, runs("2n4g", slow, [0.0] * 8, 4.0, unexplained=1.0))
    assert parts_of(made, "2n4g") == pytest.approx(
        {"device": 100, "exchange": 4, "slowest_rank": 10, "input": 0, "rest": 1}, abs=1e-9
    )
    told = sentence_of(made)
    assert "the largest loss is waiting for the slowest rank (10.00 ms, 8.7 % of the step)" in told
    assert "at n2 GPU 1 (slowest in 3 of 3 runs), which computes longer and does not wait" in told
    assert "15.00 ms more than that of 1n1g" in told and "efficiency 87.0 %" in told


def test_a_feed_that_waits_is_told_from_computing() -> None:
    waiting = [0.0] * 8
    waiting[3] = 12.0
    made = report(ALONE, runs("2n4g", [COMPUTE_MS] * 8, waiting, 3.0))
    assert parts_of(made, "2n4g") == pytest.approx(
        {"device": 100, "exchange": 3, "slowest_rank": 0, "input": 12, "rest": 0}, abs=1e-9
    )
    told = sentence_of(made)
    assert "the largest loss is waiting for input (12.00 ms" in told
    assert "at n1 GPU 3 (slowest in 3 of 3 runs), which waits for input" in told
    alike = report(ALONE, runs("2n4g", [COMPUTE_MS] * 8, [9.0] * 8, 3.0))
    assert "waiting for input (9.00 ms, 8.0 % of the step), on all ranks alike" in sentence_of(
        alike
    )


def test_a_slow_exchange_explains_the_efficiency_over_node_counts() -> None:
    """By hand: 100 ms on one device; 141 ms on four nodes, an efficiency of 71 %."""
    groups = [runs(f"{n}n1g", [COMPUTE_MS] * n, [0.0] * n, more)
              for n, more in ((2, 17.0), (4, 39.0))]  # fmt: skip
    four = runs("4n1g", [COMPUTE_MS] * 4, [0.0] * 4, 39.0, unexplained=2.0)
    made = report(ALONE, groups[0], four)
    told = sentence_of(made)
    assert "4n1g: a step takes 141.00 ms, 41.00 ms more than that of 1n1g" in told
    assert "(efficiency 70.9 %): exposed exchange +39.00, not explained +2.00" in told
    assert "the largest loss is exposed exchange (39.00 ms, 27.7 % of the step)" in told
    ((_, cases),) = made.step_parts.items()
    loss = loss_of(cases)
    assert loss is not None and math.fsum(loss.parts.values()) == pytest.approx(41.0, abs=1e-9)


def test_a_device_that_is_slower_beside_others_is_a_loss_of_its_own() -> None:
    made = report(ALONE, runs("1n4g", [1.2 * COMPUTE_MS] * 4, [0.0] * 4, 5.0))
    assert "the largest loss is a longer step of each device (20.00 ms" in sentence_of(made)


def test_what_was_not_measured_is_absent() -> None:
    """No exchange and no ranks: the step of one device is that of 1n1g, the rest unexplained."""
    bare = [
        replace(run, rank_times=(), window=replace(run.window, exposed_comm=None, data_wait_s=None))
        for run in runs("1n4g", [COMPUTE_MS] * 4, [0.0] * 4, 25.0)
        if run.window is not None
    ]
    made = report(ALONE, bare)
    assert parts_of(made, "1n4g") == pytest.approx({"device": 100, "rest": 25}, abs=1e-9)
    assert "the largest loss is a time that is not explained (25.00 ms" in sentence_of(made)
    # Without that device nothing at all is known of the step.
    assert report(bare).step_parts == {}


def test_a_log_that_does_not_tell_which_rank_waited_does_not_say_where() -> None:
    """An earlier version's log: the rank that waited most waited 12 ms, but which is not known."""
    waiting = [0.0, 0.0, 12.0, 0.0]
    earlier = [
        replace(run, rank_times=tuple(replace(time, wait_ms=None) for time in run.rank_times))
        for run in runs("1n4g", [COMPUTE_MS] * 4, waiting, 3.0)
    ]
    found = parts_of(report(ALONE, earlier), "1n4g")
    assert found == pytest.approx({"device": 100, "exchange": 3, "input": 12, "rest": 0}, abs=1e-9)
    assert "GPU" not in sentence_of(report(ALONE, earlier))


def test_a_rest_far_below_0_says_why() -> None:
    """As on a machine that other work came to when the window was over."""
    made = report(ALONE, runs("1n2g", [130.0, 130.0], [0.0, 0.0], 5.0, unexplained=-20.0))
    told = sentence_of(made)
    assert "not explained -20.00 (the steps timed later took longer)" in told
    assert "took longer" not in sentence_of(report(ALONE, runs("1n2g", [99.0] * 2, [0.0] * 2, 5.0)))


def test_other_programs_have_a_step_too() -> None:
    speeds = {"1n1g": 320.0, "1n4g": 1024.0}  # samples/s, of 32 samples a device
    groups = [external(name, {"samples/s": speed}, batch_size=32) for name, speed in speeds.items()]
    found = parts_of(report(*groups), "1n4g")
    assert found == pytest.approx({"device": 100, "rest": 25})


def test_all_places_tell_it() -> None:
    slow = [COMPUTE_MS, 1.1 * COMPUTE_MS]
    saved = [
        replace(run, checkpoint=Checkpoint(1.14, 1.0, 10**6, 2))
        for run in runs("2n1g", slow, [0.0] * 2, 4.0)
    ]
    made = report(ALONE, saved)
    base, row = step_table(made.step_parts).rows
    assert base.parts == {"device": pytest.approx(100), "input": 0, "rest": pytest.approx(0)}
    assert row.checkpoint_steps == pytest.approx(1140 / 114)
    from rich.console import Console

    console = Console(width=80, record=True, file=io.StringIO())
    console.print(speedup_table(made, 80, 40))
    text = " ".join(console.export_text().split())
    assert "the largest loss is waiting for the slowest rank" in text
    assert "## Where the time goes" in markdown(made)
    (section,) = [each for each in page(made).sections if each.name == "time"]
    assert section.draws == "parts" and section.table is not None and section.table.items == [0, 1]
    (values,) = json.loads(json_text(made))["step_parts"]
    _, found = values["cases"]
    assert found["step_ms"] == pytest.approx(sum(found["parts_ms"].values()))
    assert found["slowest_device"] == "n2 GPU 0"
