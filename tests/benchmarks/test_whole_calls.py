"""The CSV files that benchmarks of whole calls write, and the tables that pages make of them."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas", reason="needs the bench extra, which make installs")

from benchmarks.jobs import Table

RUN = {"commit": "abc", "utc": "2026-01-02T03:04:05Z", "torch_version": "1", "triton_version": "2",
       "helion_version": "3", "device": "a GPU"}  # fmt: skip


def write(path, rows):
    table = Table(path, {})
    table.rows += rows
    table.write()


@pytest.fixture
def whole_calls(monkeypatch, tmp_path):
    from docs import whole_calls

    monkeypatch.setattr(whole_calls, "BENCH", tmp_path)
    return whole_calls


def test_a_model_s_step_is_written_and_becomes_the_table(whole_calls, tmp_path, monkeypatch):
    pytest.importorskip(
        "transformers.models.deepseek_v4", reason="the oracle extra brings it: transformers==5.23.0"
    )
    from benchmarks.demo_model import run

    assert whole_calls.model_step() == ""
    costs = {"original": (55.123, 2868.4), "patched": (36.3, 1250.6)}
    monkeypatch.setattr(run, "step_costs", lambda device: costs)
    run.print_costs("cpu", tmp_path / "model_step.csv")
    text = whole_calls.model_step()
    assert "| transformers | 55.12 | 2,868 |\n| patched with helion_sinkhorn | 36.3 | 1,251 |" in text
    assert "transformers 5.23.0 with 2 layers of hidden size 2048 and 4 streams, 4096 tokens" in text


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
    assert "| 16 | forward | 300 | 150 |" in text
    assert "broken" not in text


def test_both_passes_of_linear_attention_are_one_row(whole_calls, tmp_path):
    row = {"function": "chunked", "errors": "1 2 3 4 5", "copy_gbps": 3000, **RUN}
    forward, backward = {"us": 193, "us_graph": 187.5}, {"us": 1533, "us_graph": 1526}
    rows = [{**row, "pass": "forward", **forward}, {**row, "pass": "backward", **backward}]
    write(tmp_path / "linear_attention.csv", rows)
    assert "| **chunked** | 193 | 1,533 | 187.5 | 1,526 | 1 2 3 4 5 |" in whole_calls.linear_attention()


def test_host_times_are_over_those_of_the_same_process(whole_calls, tmp_path):
    """Each ratio is of one run."""
    for name, device, us in (("one", "NVIDIA H200", 10.0), ("two", "NVIDIA H100 80GB HBM3", 20.0)):
        layers = {**dict.fromkeys(whole_calls.LAYERS.values(), us), **dict.fromkeys(whole_calls.LAYERS, 30.0)}
        write(tmp_path / f"{name}.csv", [
            {**RUN, "section": "host", "function": of, "us": str(time), "device": device,
             "triton_version": "3.9.0"}
            for of, time in layers.items()
        ])  # fmt: skip
    text = whole_calls.host("one", "two")
    assert "- sinkhorn, no gradient: 1.50 to 3.00 times x * 2 (30.0 to 30.0 us)\n" in text
    assert text.count("2026-01-02, commit abc") == 2


def test_first_calls_of_each_version_and_state(whole_calls, tmp_path):
    laps = {
        ("3.6.0", "warm caches; generated code found"): (0.1, 0.5, 0.25),
        ("3.9.0", "warm caches; generated code found"): (0.1, 2.0, 1.0),
        ("3.9.0", "empty caches; Helion imported"): (0.1, 3.0, 4.0),
    }
    write(tmp_path / "first_call.csv", [
        {**RUN, "triton_version": version, "n": "4", "quantity": f"{step}, {state}", "seconds": str(seconds)}
        for (version, state), each in laps.items()
        for step, seconds in zip(("import helion_sinkhorn", "forward", "backward"), each, strict=True)
    ])  # fmt: skip
    found = "(generated code found)"
    run = "| a GPU, 2026-01-02, commit abc, torch 1, triton {}, helion 3 |"
    assert whole_calls.first_call().splitlines()[-3:] == [
        f"{run.format('3.6.0')} 0.10 + 0.50 + 0.25 = 0.8 {found} | - | - |",
        f"{run.format('3.9.0')} 0.10 + 2.00 + 1.00 = 3.1 {found} | "
        "0.10 + 3.00 + 4.00 = 7.1 (Helion imported) | - |",
        "| aimed at | 3 | 8 |  |",
    ]
    assert whole_calls.first_calls("another GPU", "1", "3.6.0") == {}
