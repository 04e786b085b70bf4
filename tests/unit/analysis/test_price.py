"""What a node-hour costs: from a site profile by the manifest to what a unit of currency buys."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_samples import case, oks

from dlperf_hpc.analysis.costs import Price, price_of
from dlperf_hpc.engines.plan import _site_with, differing_keys
from dlperf_hpc.engines.site import Site, load_site
from dlperf_hpc.errors import SpecError
from dlperf_hpc.reporting.contents import Report, json_text
from dlperf_hpc.reporting.report_tables import cost_text, narrow_table

EUROS = Price(4.0, "EUR")


def profile(tmp_path: Path, text: str) -> Site:
    path = tmp_path / "site.toml"
    path.write_text(f"node_hour = {text}\n")
    return load_site(str(path))


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ('{ price = 0, currency = "EUR" }', "price"),
        ('{ price = -1.5, currency = "EUR" }', "price"),
        ('{ price = nan, currency = "EUR" }', "price"),
        ('{ price = inf, currency = "EUR" }', "price"),
        ('{ price = "3", currency = "EUR" }', "price"),
        ('{ price = 3.2, currency = "euros" }', "three letters"),
        ("{ price = 3.2 }", "currency"),
        ("3.2", "node_hour"),
    ],
)
def test_a_price_that_is_none_is_refused(tmp_path: Path, row: str, word: str) -> None:
    with pytest.raises(SpecError) as caught:
        profile(tmp_path, row)
    assert word in str(caught.value) and "node_hour" in str(caught.value)


def test_a_sweep_without_a_price_takes_it_when_it_grows_and_keeps_the_one_it_has() -> None:
    given = {"node_hour": {"price": 3.0, "currency": "EUR"}, "partition": "main"}
    assert price_of(_site_with({"partition": "main"}, given, set())) == Price(3.0, "EUR")
    dearer = {**given, "node_hour": {"price": 9.0, "currency": "EUR"}}
    assert price_of(_site_with(given, dearer, set())) == Price(3.0, "EUR")


def test_a_price_travels_with_the_manifest(tmp_path: Path) -> None:
    site = profile(tmp_path, '{ price = 3, currency = "EUR" }').to_dict()
    assert price_of(json.loads(json.dumps(site))) == Price(3.0, "EUR")
    assert differing_keys(Site().to_dict(), site) == []  # it does not decide what a job is
    assert price_of(Site().to_dict()) is None


@pytest.mark.parametrize(
    "row",
    [
        3, None, [], {}, {"price": True, "currency": "EUR"}, {"price": 10**400, "currency": "EUR"},
        {"price": -1, "currency": "EUR"}, {"price": 1, "currency": "\x1b[1m"}, {"price": 1},
    ],
)  # fmt: skip
def test_a_manifest_without_a_whole_price_has_none(row: Any) -> None:
    assert price_of({"node_hour": row}) is None


def test_what_a_unit_of_the_currency_buys() -> None:
    """Two nodes at 4 EUR an hour: 100 samples/s are 360 000 in an hour, for 8 EUR."""
    runs = oks(case("2n8g", seq_len=128), 100.0)
    report = Report("a", runs, price=EUROS)
    (row,) = json.loads(json_text(report))["cases"]
    assert row["samples_per_currency"] == pytest.approx(45_000)
    assert row["tokens_per_currency"] == pytest.approx(45_000 * 128)
    assert row["currency"] == "EUR"
    names = [column.name for column in narrow_table("x", report.cases).columns]
    assert {"samples/EUR", "tokens/EUR"} <= set(names)
    plain = Report("a", runs)
    assert json.loads(json_text(plain))["cases"][0]["samples_per_currency"] is None
    assert not [c for c in narrow_table("x", plain.cases).columns if "/EUR" in c.name]


def test_what_a_sweep_cost() -> None:
    (run,) = oks(case("2n8g"), 100.0)
    run = replace(
        run, started="2026-11-21T14:00:00.000000Z", ended="2026-11-21T14:30:00.000000Z"
    )  # half an hour on two nodes
    report = Report("a", [run], price=EUROS)
    assert "node-hours: 1 used (4 EUR at 4 each) by 1 run" in cost_text(report)
    told = json.loads(json_text(report))["cost"]
    assert (told["price_of_used"], told["currency"]) == (pytest.approx(4.0), "EUR")
    assert "EUR" not in cost_text(replace(report, price=None))
