"""The CSV files that benchmarks of whole calls write, and the tables that pages make of them."""

from __future__ import annotations

import csv

import pytest

pytest.importorskip("pandas", reason="needs the bench extra, which make installs")

from benchmarks.jobs import Table

RUN = {"commit": "abc", "utc": "2026-01-02T03:04:05Z", "torch_version": "1", "triton_version": "2",
       "helion_version": "3", "device": "a GPU"}  # fmt: skip


@pytest.fixture
def whole_calls(monkeypatch, tmp_path):
    from docs import whole_calls

    monkeypatch.setattr(whole_calls, "BENCH", tmp_path)
    return whole_calls


def test_a_written_file_becomes_the_table(whole_calls, tmp_path):
    table = Table(tmp_path / "dot_compress.csv", RUN)
    for function, us, queued, graph in (
        ("copy", 100.04, "100", "98.76"),
        ("eager", 300.0, "205", "200"),
        ("dot_compress", 150.0, "125", "123.4"),
    ):
        times = {"us": us, "us_queued": queued, "us_graph": graph}
        table.add({"function": function, "batch": 16, "pass": "forward", **times})
    table.add({"function": "broken", "batch": 16, "pass": "forward", "note": "ValueError: no"})
    table.write()
    text = whole_calls.dot_compress()
    assert "a GPU, 2026-01-02, commit abc, torch 1, triton 2, helion 3." in text
    assert "| 16 | forward | 98.76 | 200, 2.03 x | 123.4, 1.25 x |" in text
    assert "| 16 | forward | 205 | 125 |" in text
    assert "| 16 | forward | 300 | 150 |" in text
    assert "broken" not in text


def test_both_passes_of_linear_attention_are_one_row(whole_calls, tmp_path):
    with (tmp_path / "linear_attention.csv").open("w", newline="") as file:
        row = {"function": "chunked", "errors": "1 2 3 4 5", "copy_gbps": 3000, **RUN}
        writer = csv.DictWriter(file, [*row, "pass", "us", "us_graph"])
        writer.writeheader()
        writer.writerow({**row, "pass": "forward", "us": 193, "us_graph": 187.5})
        writer.writerow({**row, "pass": "backward", "us": 1533, "us_graph": 1526})
    assert "| **chunked** | 193 | 1,533 | 187.5 | 1,526 | 1 2 3 4 5 |" in whole_calls.linear_attention()
