"""The numbers of README and docs equal the files they come from."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="needs the bench extra, which make installs")
from helion_sinkhorn.lab.operators import OPERATORS, kernel_calls
from helion_sinkhorn.lab.workloads import WORKLOADS

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def numbers():
    from docs import numbers

    return numbers


def test_pages_say_what_their_files_say(numbers):
    assert numbers.stale() == []


def test_a_changed_file_or_page_is_found(numbers, monkeypatch):
    first = numbers.GENERATED[0]
    shifted = str.maketrans("123456789", "234567891")
    planted = replace(first, text=lambda: first.text().translate(shifted))
    monkeypatch.setattr(numbers, "GENERATED", (planted,))
    assert numbers.stale() == ["README.md is not what its files say: make docs-numbers"]


def test_every_page_with_times_of_a_gpu_says_where_they_come_from(numbers):
    known = {g.page for g in numbers.GENERATED} | numbers.LISTED["other"].keys()
    pages = {p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md") if "H200" in p.read_text()}
    assert pages - known == set()


def test_the_results_have_each_operator_of_the_reports(numbers):
    page = (ROOT / "docs" / "dev" / "results.md").read_text()
    reports = numbers.tables.artefacts()
    assert reports
    for device, report in reports.items():
        kernels = {r["kernel"] for record in report["workloads"].values() for r in record["results"]}
        named = {name for name, row in OPERATORS.items() if kernels & set(row.kernels)}
        assert named == set(re.findall(rf"^\| `(\w+)` \| {device} \|", page, re.M))


def test_the_picture_of_errors_has_a_row_for_each_operator(numbers, tmp_path):
    drawn, artefacts = numbers.pictures, numbers.tables.artefacts()
    every = list(drawn.results(artefacts))
    assert {kind for _, _, kind, _ in every} == drawn.PANELS.keys()
    assert {"sinkhorn", "hc_site", "linear_attention"} <= {operator for _, operator, _, _ in every}
    assert max(worst for *_, worst in every) < 1
    drawn.accuracy(artefacts, tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_tables_of_support_follow_their_data(numbers, monkeypatch):
    tables = numbers.tables
    versions = {"torch": "2.99.0", "triton": "3.99.1", "helion": "1.9"}
    run = {**versions, "passed": 7, "failed": 2, "not_run": "about 3", "device": "b200", "date": "2027-01-02"}
    before = tables.support_of_stacks()
    monkeypatch.setattr(tables, "tests", lambda: [run])
    earlier = {"commit": "0123456", "utc": "2027-02-01T00:00", "versions": versions}
    record = {"results": []}
    records = {"mhc_fp32": record, "log_4": record, "hc_post_fp32": {**record, "run": earlier}}
    other = {"commit": "abcdef012", "utc": "2027-02-03T04:05", "versions": versions, "workloads": records}
    monkeypatch.setattr(tables, "artefacts", lambda: {"mi350": other})
    stacks, devices = tables.support_of_stacks(), tables.support_of_devices()
    assert stacks.splitlines()[2] == (
        "| 2.99.0 | 3.99.1 | 1.9 | 7 passed, 2 failed, about 3 not run (b200, 2027-01-02) | "
        "mi350, 2027-02-03, 2 workloads; mi350, 2027-02-01, 1 workloads | - |"
    )
    # entries are a row's reason too
    timed = [line.split(" | ")[-1] for line in before.splitlines()[2:]]
    assert [line.split(" | ")[-1] for line in stacks.splitlines()[3:]] == [t for t in timed if t != "- |"]
    ranked = tables.words_for(tables.stored("b200"))
    assert f"| `b200` | - | 2027-01-02 | all {len(OPERATORS)} compiled | {ranked} | - |" in devices
    assert f"| `h200` | - | - | all {len(OPERATORS)} compiled |" in devices
    assert f"| `mi350` | 2027-02-03, abcdef0 | - | all {len(OPERATORS)} emulated |" in devices


def test_a_result_is_compared_with_the_config_of_its_own_call():
    """The walks of a workload have a config each: dq's is no stale one of dv, as it once counted."""
    from docs import tables

    workload = WORKLOADS["attention_scaled"]
    calls = list(kernel_calls(workload))
    kernel = "linear_attention_walk"
    assert [call.result for call in tables.calls_behind(calls, kernel, "dq")] == ["dq"]
    assert [call.result for call in tables.calls_behind(calls, kernel, "dg")] == ["o", "dq", "dk", "dv"]
    dq, dv = (
        tables.config_now("h200", kernel, *tables.calls_behind(calls, kernel, of), workload.batch, "3.6")
        for of in ("dq", "dv")
    )
    assert tables.is_config(dq, dq)
    assert not tables.is_config(dq, dv)


def test_artefacts_name_no_folder_of_a_machine():
    for path in (ROOT / "docs" / "accuracy").glob("*.json"):
        assert '"source": "/' not in path.read_text(), path.name
