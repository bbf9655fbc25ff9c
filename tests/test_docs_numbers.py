"""The numbers of README and docs are those of the files they come from."""

from __future__ import annotations

import functools
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
    monkeypatch.setattr(numbers, "STATED", (("docs/dev/results.md", "Counts of commit 0000000."),))
    found = numbers.stale()
    assert "README.md is not what its files say: make docs-numbers" in found
    assert "docs/dev/results.md does not say: Counts of commit 0000000." in found


def test_every_page_with_times_of_a_gpu_says_where_they_come_from(numbers):
    known = {g.page for g in numbers.GENERATED} | {page for page, _ in numbers.STATED}
    known |= numbers.LISTED["other"].keys()
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


def test_cells_in_which_others_are_better_are_all_named(numbers):
    (better,) = (g.text() for g in numbers.GENERATED if g.mark == "better")
    assert "| TransformerEngine | hc_post |" in better
    assert "| TileKernels | site |" in better
    assert "helion_sinkhorn |" not in better


def test_support_words_follow_from_the_files(numbers):
    tables = numbers.tables
    assert tables.evidence("sinkhorn", "h200") == "measured"
    assert tables.evidence("sinkhorn", "mi350") == "emulated"
    assert tables.evidence("sinkhorn", "b200") == "compiled"
    of = functools.partial(tables.configs, "sinkhorn, forward")
    own, relative = of("h100").split("; ")
    assert f"{relative}; {own}, of h100" == of("h200").replace(";", ", of h200;")
    assert of("gb200") == of("b200") + ", of b200"
    assert " measured" in of("h200")
    assert " measured" not in of("b200")
    groups = {kernel: tables.group(kernel) for kernel in OPERATORS["sinkhorn"].kernels}
    exact = {groups["sinkhorn_backward_history"], groups["sinkhorn_backward"]}
    assert exact == {"sinkhorn, exact gradient"}
    assert len(set(groups.values())) == 3
    assert tables.configs("hc_mixes", "gb200") == tables.configs("hc_mixes", "b200") == "default"


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
