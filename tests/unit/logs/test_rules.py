"""Window rules: by name or form, and the figure that each makes of a run's lines."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading_samples import reading, steps

from dlperf_hpc.errors import SpecError
from dlperf_hpc.logs.interpret.figures import figure
from dlperf_hpc.logs.interpret.linefigures import ClockError, elapsed
from dlperf_hpc.logs.interpret.rules import RULES, Basis, WindowRule, rule
from dlperf_hpc.logs.interpret.segments import DAY_S, YEAR_S, NoFigure, WindowFigure, segments_of
from dlperf_hpc.logs.scanned import Averaging, Printed, Reading, Scope, Stamps, Total, Unit


def apply(text: str | WindowRule, of: Reading, run: int = 0) -> WindowFigure:
    return figure(rule(text) if isinstance(text, str) else text, of, segments_of(of)[run])


def half_second(n: int) -> float:
    """A clock that starts with 30 s of set-up, then gives 2 iterations/s."""
    return 1e9 + 30 + n / 2


# --- names and forms


@pytest.mark.parametrize("name", [name for name in RULES if "[" not in name])
def test_every_named_rule_is_a_rule(name: str) -> None:
    made = rule(name)
    assert made.name and len(RULES[name]) > 20
    assert made.last is None or made.last > (made.first or 0)


@pytest.mark.parametrize(
    ("text", "first", "last", "name"),
    [
        ("clock[20:120]", 20, 120, "clock[20:120]"),
        ("clock", 20, 120, "clock[20:120]"),
        ("lines[5:]", 5, None, "lines[5:]"),
        ("lines[:7]", None, 7, "lines[:7]"),
        ("lines", None, None, "lines"),
        ("deepspeed-logs", 18, 120, "deepspeed-logs[20:120]"),
        ("deepspeed-logs[30:80]", 28, 80, "deepspeed-logs[30:80]"),
        ("tf2-resnet-logs", 1, 6, "tf2-resnet-logs[100:600]"),
        ("mxnet-bert", 100, 200, "mxnet-bert[100:200]"),
        ("default", 20, 120, "clock[20:120]"),
    ],
)
def test_windows_of_rules(text: str, first: int | None, last: int | None, name: str) -> None:
    made = rule(text)
    assert (made.first, made.last, made.name) == (first, last, name)
    assert rule(made.name).first == first


def test_windows_are_set_by_the_user() -> None:
    assert rule("deepspeed-time", warmup=5, iterations=10).name == "deepspeed-time[5:15]"
    assert [r.name for r in rule(warmup=5, iterations=10).tries] == [
        "clock[5:15]",
        "printed[5:15]",
        "total",
        "",  # what a log without a whole window holds
        "",
    ]
    assert rule("total:images/sec").total == "images/sec"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("deepspeed-log", "did you mean 'deepspeed-logs'?"),
        ("qwertz", "`dlperf extract --rules` lists"),
        ("clock[120:20]", "the window is empty"),
        ("clock[20:]", "both ends"),
        ("lines[1:2", "is no rule"),
        ("total[1:2]", "no window"),
        ("clock:x", "takes no name"),
        ("", "is no rule"),
    ],
)
def test_what_is_no_rule_is_refused_with_a_hint(text: str, says: str) -> None:
    with pytest.raises(SpecError, match="--rule") as refused:
        rule(text)
    assert says in str(refused.value)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError):
        rule("clock", warmup=-1)
    with pytest.raises(SpecError):
        rule("clock", iterations=0)
    with pytest.raises(SpecError, match="no line"):
        rule("tf2-resnet-logs", warmup=20, iterations=100)


# --- the clock


def test_the_clock_counts_iterations_between_two_stamps() -> None:
    found = apply("clock[20:120]", reading(steps(range(1, 131), stamp=half_second)))
    assert found.value == pytest.approx(2.0)
    assert (found.first, found.last, found.elapsed_s, found.lacking) == (20, 120, 50.0, "")
    assert (len(found.times()), found.end_line) == (100, 120)


@pytest.mark.parametrize(("every", "ends"), [(1, (20, 120)), (10, (20, 120)), (50, (50, 100))])
def test_the_window_is_by_number_whatever_is_printed(every: int, ends: tuple[int, int]) -> None:
    found = apply("clock[20:120]", reading(steps(range(every, 301, every), stamp=half_second)))
    assert (found.first, found.last) == ends
    assert found.value == pytest.approx(2.0)
    assert bool(found.warnings) == (every == 50)


def test_lines_far_apart_have_no_such_window_but_the_default_takes_the_next() -> None:
    sparse = reading(steps(range(100, 601, 100), stamp=half_second))
    with pytest.raises(NoFigure, match="span half"):
        apply("clock[20:120]", sparse)
    found = apply("default", sparse)
    assert (found.first, found.last) == (100, 200)
    assert "100 to 200 are used" in found.warnings[0]


def test_a_resumed_run_is_warmed_up_anew_by_default() -> None:
    resumed = reading(steps(range(5001, 5301), stamp=half_second))
    found = apply("default", resumed)
    assert (found.first, found.last) == (5020, 5120)


@pytest.mark.parametrize("last", [63, 119])
def test_a_log_that_ends_inside_the_window_is_lacking(last: int) -> None:
    found = apply("clock[20:120]", reading(steps(range(1, last + 1), stamp=half_second)))
    assert found.lacking == f"the log ends at iteration {last}, the window lies between 20 and 120"
    assert (found.first, found.last) == (20, last)


def test_a_log_that_ends_before_the_window_has_no_figure() -> None:
    with pytest.raises(NoFigure, match="ends at iteration 15") as missing:
        apply("clock[20:120]", reading(steps(range(1, 16), stamp=half_second)))
    assert missing.value.short


def test_midnight_and_new_year_are_no_way_back() -> None:
    def before_midnight(n: int) -> float:
        return (86_370 + n / 2) % DAY_S

    found = apply(
        "clock[20:120]",
        reading(steps(range(1, 131), stamp=before_midnight), stamps=Stamps.TIME_ONLY),
    )
    assert found.elapsed_s == pytest.approx(50.0)
    assert list(elapsed([YEAR_S - 1, 2.0], Stamps.NO_YEAR)) == [0.0, 3.0]
    leap = 59 * DAY_S  # 29 February and 1 March are one day of a year of 365
    assert list(elapsed([leap + DAY_S - 1, leap + 1], Stamps.NO_YEAR)) == [0.0, 2.0]


@pytest.mark.parametrize("kind", [Stamps.ABSOLUTE, Stamps.NO_YEAR, Stamps.TIME_ONLY])
def test_a_clock_that_goes_back_gives_no_number(kind: Stamps) -> None:
    with pytest.raises(ClockError, match="backward by 5 s"):
        elapsed([100.0, 200.0, 195.0], kind)

    def set_back(n: int) -> float:
        return half_second(n) - (3600 if n > 60 else 0)

    with pytest.raises(NoFigure, match="line 61: the clock goes backward"):
        apply("clock[20:120]", reading(steps(range(1, 131), stamp=set_back), stamps=kind))


def test_a_step_back_before_the_window_does_not_matter() -> None:
    set_back = reading(steps(range(1, 131), stamp=lambda n: half_second(n) - 9 * (n > 10)))
    assert apply("clock[20:120]", set_back).value == pytest.approx(2.0)


@pytest.mark.parametrize("kind", [Stamps.ABSOLUTE, Stamps.TIME_ONLY, Stamps.ELAPSED])
def test_coarse_stamps_are_said_and_short_windows_by_them_give_nothing(kind: Stamps) -> None:
    """A window of fewer than 20 of the clock's seconds is off by more than 5 %."""

    def whole(per_s: float) -> Reading:
        return reading(
            steps(range(1, 131), stamp=lambda n: float(int(1000 + n / per_s))), stamps=kind
        )

    assert "off by 4 %" in apply("clock[20:120]", whole(4.0)).warnings[0]
    with pytest.raises(NoFigure, match=r"is 2 s.* off by 50 %.* of 1000 iterations or more"):
        apply("clock[20:120]", whole(50.0))
    with pytest.raises(NoFigure, match="same time stamp"):
        apply("clock[20:120]", reading(steps(range(1, 131), stamp=lambda n: 1e9)))


def test_the_clock_by_lines_counts_iterations_by_number() -> None:
    tens = reading(steps(range(10, 1300, 10), stamp=half_second))
    found = apply("ngc-pytorch-resnet-time", tens)
    assert (found.first, found.last) == (200, 1200)
    assert found.value == pytest.approx(2.0), "the script took 100 iterations for 1000"


# --- printed figures


def test_rates_are_weighted_by_the_time_they_stand_for() -> None:
    """50 iterations at 100 samples/s and 50 at 300 are 150 samples/s, not 200."""
    tens = reading(steps(range(10, 131, 10), printed=lambda n: 100.0 if n <= 70 else 300.0))
    found = apply("printed[20:120]", tens)
    assert found.value == pytest.approx(150.0)
    assert (found.first, found.last) == (20, 120)
    assert apply("mean[20:120]", tens).value == pytest.approx(200.0)


def test_a_line_stands_for_the_iterations_since_the_line_before() -> None:
    uneven = reading(steps([20, 30, 120, 130], printed=lambda n: 100.0 if n == 30 else 200.0))
    assert apply("printed[20:120]", uneven).value == pytest.approx(100 / (10 / 100 + 90 / 200))


def test_the_first_line_stands_for_what_came_before_it() -> None:
    found = apply(rule("printed", warmup=0, iterations=200), reading(
        steps(range(100, 601, 100), printed=lambda n: float(n))
    ))  # fmt: skip
    assert (found.first, found.last) == (0, 200)
    assert found.value == pytest.approx(200 / (100 / 100 + 100 / 200))


def test_running_averages_are_taken_apart() -> None:
    """Steps 3 to 20 at 10 samples/s, all later ones at 100: only the latter are in the window."""

    def average(n: int) -> float:
        slow, fast = min(n, 20) - 2, max(n - 20, 0)
        return (slow + fast) / (slow / 10 + fast / 100)

    averaged = Printed(averaging=Averaging.RUNNING, origin=2)
    log = reading(steps(range(3, 131), printed=average), printed=averaged)
    assert apply("printed[20:120]", log).value == pytest.approx(100.0)
    assert apply("deepspeed-logs", log).value == pytest.approx(
        fmean(average(n) for n in range(21, 123))
    )
    resumed = reading(steps(range(5001, 5200), printed=average), printed=averaged)
    with pytest.raises(NoFigure, match="goes on after iteration 5000"):
        apply("printed[5020:5120]", resumed)


def test_times_become_rates_by_their_sum() -> None:
    ms = Printed(Unit.MS_PER_ITERATION)
    log = reading(steps(range(1, 131), printed=lambda n: 100.0 if n % 2 else 300.0), printed=ms)
    for text in ("printed[20:120]", "lines[20:120]"):
        found = apply(text, log)
        assert found.value == pytest.approx(5.0), "200 ms on average"
        assert (found.unit, found.printed) == (Unit.ITERATIONS_PER_S, ms)
    assert apply("paddle-resnet-logs", log).value == pytest.approx((10 + 10 / 3) / 2)


def test_lines_are_taken_as_they_stand() -> None:
    repeated = reading(steps([1, 1, 1, 10, 20, 30], printed=lambda n: float(n + 1)))
    assert apply("lines", repeated).value == pytest.approx((2 + 2 + 2 + 11 + 21 + 31) / 6)
    found = apply("lines[3:5]", repeated)
    assert found.value == pytest.approx(16.0)
    assert (found.first, found.last) == (1, 20)
    assert apply("lines[5:]", repeated).lacking == ""


@pytest.mark.parametrize(
    ("count", "lacking"), [(118, ""), (117, "117 lines count, the window needs 118")]
)
def test_a_rule_by_lines_needs_its_lines(count: int, lacking: str) -> None:
    log = reading(steps(range(3, 3 + count), printed=lambda n: 100.0))
    assert apply("deepspeed-logs", log).lacking == lacking


def test_too_few_lines_give_no_figure_and_no_nan() -> None:
    short = reading(steps([100], printed=lambda n: 100.0))
    with pytest.raises(NoFigure, match="1 lines count, the window needs 6"):
        apply("tf2-resnet-logs", short)


def test_a_tail_without_the_windows_beginning_is_lacking() -> None:
    tail = reading(steps(range(100, 131), printed=lambda n: 100.0))
    assert "begins after iteration 99" in apply("mean[20:120]", tail).lacking


def test_the_median_over_ranks_needs_no_full_matrix() -> None:
    lines = [
        step._replace(printed=10.0 * rank + 10)
        for rank in range(3)
        for step in steps(range(1, 121), rank=rank)
        if (rank, step.iteration) != (2, 50)
    ]
    ordered = sorted(lines, key=lambda s: s.iteration)
    log = reading([s._replace(line=i) for i, s in enumerate(ordered, 1)])
    assert apply("mxnet-ngc-logs", log).value == pytest.approx((99 * 20 + 15) / 100)


def test_missing_figures_are_left_out_and_said() -> None:
    gaps = reading(steps(range(1, 131), printed=lambda n: 0.0 if n % 4 == 0 else 50.0))
    found = apply("printed[20:120]", gaps)
    assert found.value == pytest.approx(50.0)
    assert found.warnings == ("25 iterations of the window have no printed speed",)
    with pytest.raises(NoFigure, match="print no speed"):
        apply("printed[20:120]", reading(steps(range(1, 131))))


# --- totals


def test_a_total_over_all_devices_comes_before_others() -> None:
    log = reading([], [
        Total(1, "img/sec", 11.5, scope=Scope.DEVICE),
        Total(2, "total img/sec", 92.0),
        Total(3, "tokens/s", 9000.0, Unit.TOKENS_PER_S),
    ])  # fmt: skip
    found = apply("total", log)
    assert (found.value, found.end_line, found.rule.basis) == (92.0, 2, Basis.TOTAL)
    assert apply("total:img/sec", log).printed.scope is Scope.DEVICE
    with pytest.raises(NoFigure, match="no total 'x', but img/sec, total img/sec"):
        apply("total:x", log)


# --- damage

_ODD = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.01, 100)


@given(
    st.lists(st.tuples(st.integers(0, 10**18), _ODD, _ODD), max_size=40),
    st.sampled_from([*Averaging]),
    st.sampled_from([*Unit]),
    st.sampled_from([*Stamps]),
    st.sampled_from([name for name in RULES if "[" not in name]),
)
def test_no_damage_makes_a_number_that_is_none(
    lines: list[tuple[int, float, float]],
    averaging: Averaging,
    unit: Unit,
    stamps: Stamps,
    name: str,
) -> None:
    log = reading(
        [
            step._replace(stamp=stamp, printed=value)
            for step, (_, stamp, value) in zip(steps(n for n, _, _ in lines), lines)
        ],
        printed=Printed(unit, averaging=averaging),
        stamps=stamps,
    )
    for segment in segments_of(log):
        for each in rule(name).tries:
            try:
                found = figure(each, log, segment)
            except NoFigure as reason:
                assert str(reason)
            else:
                assert 0 < found.value < float("inf")
                assert found.first is None or found.last is None or found.first <= found.last
