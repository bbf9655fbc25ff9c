"""The residual path beside other packages, without a GPU: formulas, layouts, and who is left out."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from unittest import mock

import pytest
import torch

from benchmarks import bench, jobs, peer_files
from benchmarks.residual_path import peers, tasks
from benchmarks.residual_path.operations import OPERATIONS, ROWS, drawn
from tritonbench_ops.hc_post import cases as hc_post
from tritonbench_ops.hc_pre import cases as hc_pre

TOKENS, COLUMNS = 7, 12
RENAMED = {("TransformerEngine", "hc_mixes"): lambda h, ms: (h[:, :ROWS] / (ms + 1e-6).sqrt()[:, None],)}
"""From a peer's results to ours, where it is more than a transposition."""
EVERY = [(name, of) for name, peer in peers.PEERS.items() for of in peer.adapters]


def example(operation: str) -> tuple[torch.Tensor, ...]:
    return drawn(operation, TOKENS, COLUMNS, "cpu")


@pytest.mark.parametrize("place", [0, 1])
def test_a_result_of_nan_is_no_small_error(place):
    """The maximum of floats passed over one that was not the first."""
    exact = torch.ones(2, 3, dtype=torch.float64)
    outputs = [exact, exact]
    outputs[place] = exact * math.nan
    assert math.isnan(tasks.distance(tuple(outputs), (exact, exact)))


@pytest.mark.parametrize(("name", "operation"), EVERY)
def test_a_peer_s_formula_is_ours_in_its_layout(name, operation):
    """With another order, another orientation of comb or other columns of fn it would be far off."""
    inputs = [t.double() for t in example(operation)]
    given = peers.PEERS[name].adapters[operation].given(*inputs)
    theirs = peers.definition_of(name, operation)(*(t.double() for t in given))
    # Liger makes comb as we do, and uses its transpose
    order = {"comb_order": "oi"} if name == "Liger" and "site" in operation else {}
    ours = OPERATIONS[operation].specification(*inputs, **order)
    # rounded coefficients; Sinkhorn without eps
    near = {"Megatron-LM": 2e-2, "TransformerEngine": 2e-3}.get(name, 1e-5)
    for a, b in zip(RENAMED.get((name, operation), lambda *r: r)(*theirs), ours, strict=True):
        is_turned = name == "TransformerEngine" and b.shape == (TOKENS, 4, COLUMNS)
        torch.testing.assert_close((a.mT if is_turned else a).reshape(b.shape), b, rtol=near, atol=near)


@pytest.mark.parametrize(("name", "operation"), [row for row in EVERY if row[0] in (peers.OURS, peers.PARTS)])
def test_rows_of_what_is_here(name, operation):
    job = tasks.Job(name, operation, ((TOKENS, COLUMNS),), device="cpu")
    rows = job.rows()
    assert next(rows) is None
    forward, backward = rows
    assert (forward["pass"], backward["pass"]) == ("forward", "backward")
    assert forward["us"] > 0
    # one rounding to bfloat16 is 1.7e-3
    assert forward["error"] < 3e-3
    assert backward["error"] < 1e-2
    assert backward["bytes"] > forward["bytes"] > 0


@pytest.mark.parametrize(("which", "mode"), [("forward", "fwd"), ("backward", "bwd")])
@pytest.mark.parametrize(("name", "cases"), [("hc_pre", hc_pre), ("hc_post", hc_post)])
def test_bytes_are_those_of_tritonbench(name, cases, which, mode):
    given, operation = example(name), OPERATIONS[name]
    results = peers.load_eager(name)(*given)
    flags = ["--tokens", str(TOKENS), "--hidden", str(COLUMNS)]
    (case,) = cases.cases(cases.parse(flags), torch.bfloat16)
    assert operation.bytes_of(which, given, results) == cases.bytes_moved(case, mode)


def test_another_function_has_a_large_error(monkeypatch):
    def wrong(f, x, post, comb):
        right = peers.reference.hc_post(f.float(), x.float(), post, comb, comb_order="oi")
        return (right.bfloat16(),)

    other = replace(peers.PEERS[peers.EAGER], load=lambda operation: wrong)
    monkeypatch.setitem(peers.PEERS, peers.EAGER, other)
    case = tasks.Case(tasks.Job(peers.EAGER, "hc_post", (), device="cpu"), TOKENS, COLUMNS)
    errors = tasks.errors(case)
    assert min(errors["forward"]["error"], errors["backward"]["error"]) > 0.1


def test_only_tested_tokens_have_an_upstream_gradient(monkeypatch):
    """The gradient of fn, a sum over all tokens, then covers the tokens computed in float64."""
    monkeypatch.setattr(tasks, "JUDGED", 3)
    case = tasks.Case(tasks.Job(peers.OURS, "site", (), device="cpu"), TOKENS, COLUMNS)
    assert tasks.errors(case)["backward"]["error"] < 1e-2


def test_queued_calls_go_round_the_inputs_and_a_graph_that_fails_has_its_reason(monkeypatch):
    monkeypatch.setattr(tasks.timing, "captures", lambda device: True)
    monkeypatch.setattr(tasks.timing, "queued", lambda run: tuple(run() for _ in range(3)))
    monkeypatch.setattr(tasks.timing, "graph", lambda make, milliseconds: (make()(), 0, 0))
    at = torch.device("cuda")
    make = lambda: tasks.timing.in_turn([lambda: 1.0, lambda: 2.0])  # noqa: E731
    assert tasks.times(make, at) == {"us": 1.0, "us_20": 2.0, "us_80": 1.0, "graph_us": 1.0}

    monkeypatch.setattr(tasks.timing, "graph", mock.Mock(side_effect=RuntimeError("no stream")))
    assert tasks.times(make, at)["uncaptured"] == "RuntimeError: no stream"


def test_absent_files_say_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv(peer_files.FOLDER, raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"HELION_SINKHORN_PEERS is not set.*Megatron-LM"):
        peer_files.megatron()
    monkeypatch.setenv(peer_files.FOLDER, str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="has no TransformerEngine/"):
        peer_files.transformer_engine()


def test_what_is_lacking_or_finds_no_time_is_a_row_with_the_reason(monkeypatch, tmp_path):
    words = "bench residual_path --device cpu --only Megatron-LM --tokens 8 --columns 64 --limit 0 --out"
    monkeypatch.setattr("sys.argv", [*words.split(), str(tmp_path)])
    bench.main()
    rows = list(csv.DictReader((tmp_path / "residual_path.csv").open()))
    assert {r["operation"] for r in rows} == set(OPERATIONS)
    assert {r["section"] for r in rows} == {"left out"}
    late = {r["operation"] for r in rows if "no time left" in r["note"]}
    assert late == {"hc_pre", "hc_post", "site", "normed_site"}


def test_every_peer_has_each_operation_or_a_reason():
    for name, peer in peers.PEERS.items():
        if name not in (peers.PARTS, peers.TF32):
            assert peer.adapters.keys() | peer.lacks.keys() == OPERATIONS.keys(), name
        assert not peer.adapters.keys() & peer.lacks.keys()


def test_the_plan_of_a_run():
    every = tasks.NAMES
    options = bench.make_parser().parse_args(["residual_path"])
    plan = [job for wave in tasks.waves(options) for job in wave]
    assert len(plan) == len({job.title for job in plan})
    assert len({j.title for j in plan if j.function == "Megatron-LM" and j.operation == "site"}) == 2
    assert {job.function for job in plan} == set(every)
    (job,) = (j for j in plan if (j.operation, j.function) == ("site", "TileKernels"))
    assert job.shapes == ((8192, 4096), (8192, 7168))
    (job,) = (j for j in plan if (j.operation, j.function) == ("boundary", peers.PARTS))
    assert [tokens for tokens, _ in job.shapes] == [8192, 8192]


def test_what_no_committed_row_shows(tmp_path):
    """A call that was in no graph says so.  The run of a table is that of our rows, not of the first row."""
    report = pytest.importorskip("benchmarks.residual_path.report")
    table = jobs.Table(tmp_path / "residual_path.csv", {})
    at = {"operation": "boundary", "tokens": 8192, "columns": 4096, "pass": "forward", "device": "a GPU"}
    ours = {"utc": "2026-11-25T", "commit": "b" * 12, "triton_version": "3.9.0", "function": peers.OURS}
    theirs = {"utc": "2026-11-24T", "commit": "a" * 12, "triton_version": "3.6.0"}
    for row in (theirs | {"function": "torch.compile", "us": 90.0}, ours | {"us": 120.0, "graph_us": 100}):
        table.add({**at, "torch_version": "2.11.0", **row})
    table.write()
    shown = report.operation_table(report.read(table.path))
    assert "| **helion_sinkhorn** | 100 |" in shown
    assert "| torch.compile | 90 (q) |" in shown
    heading, cells, others = report.all_better(table.path).split("\n\n")
    assert heading == "a GPU, 2026-11-25, commit bbbbbbb, triton 3.9.0, torch 2.11.0."
    assert "| torch.compile | boundary | 8,192 x 4096 | forward, us | 90 | 100 | 10.0 % |" in cells
    assert others == (
        "- boundary, torch.compile: measured in a separate run "
        "(2026-11-24, commit aaaaaaa, triton 3.6.0): forward at 8192 x 4096."
    )
