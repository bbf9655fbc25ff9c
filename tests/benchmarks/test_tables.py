"""Tables of dot compress and linear attention without a GPU, and the commands bench and study."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
import torch

from benchmarks import bench, dot_compress, linear_attention, study, timing
from benchmarks.studies import large


def measured(job) -> list[dict]:
    rows = job.rows()
    assert next(rows) is None
    return list(rows)


@pytest.fixture
def small(monkeypatch):
    """The reported shape with a few rows."""
    monkeypatch.setattr(dot_compress, "SHAPE", replace(dot_compress.SHAPE, m=16))


@pytest.mark.parametrize("name", ["eager", "dot_compress", "dot_compress, precise"])
def test_both_passes_of_dot_compress_are_timed(name, small):
    forward, backward = measured(dot_compress.Job(name, 2, "cpu"))
    assert (forward["pass"], backward["pass"]) == ("forward", "backward")
    assert min(forward["us"], backward["us"]) > 0


def test_the_floor_of_dot_compress_is_the_faster_copy(small, monkeypatch):
    """In all columns: a copy of gigabytes in a graph is another operation."""
    times = {"us": 20.0, "us_queued": 18.0, "us_graph": 30.0}
    monkeypatch.setattr(dot_compress, "times", lambda make, device: times)
    forward, _ = measured(dot_compress.Job("copy", 2, "cpu"))
    assert {k: forward[k] for k in times} == dict.fromkeys(times, 20.0)
    source = dot_compress.copy(dot_compress.Job("copy", 2, "cpu"), "backward").args[0]
    # x, dx and y, dy twice and out's gradient, read or written once each
    assert source.numel() * 2 == 2 * 2 * 16 * (2 * 256 + 3 * 64)


@pytest.mark.parametrize("method", ["recurrent", "chunked"])
def test_linear_attention_is_timed_with_its_errors(method):
    forward, backward = measured(linear_attention.Job(method, (1, 32, 1), "float32", device="cpu"))
    assert (forward["pass"], backward["pass"]) == ("forward", "backward")
    assert forward["errors"] == backward["errors"]
    assert max(map(float, forward["errors"].split())) < 1e-4
    assert forward["copy_gbps"] > 0


def test_another_attention_has_large_errors(monkeypatch):
    own = linear_attention.loaded("recurrent")
    monkeypatch.setattr(linear_attention, "loaded", lambda name: lambda q, k, v, gk: own(k, q, v, gk))
    row, _ = measured(linear_attention.Job("recurrent", (1, 32, 1), "float32", device="cpu"))
    assert max(map(float, row["errors"].split())) > 1e-2


def test_a_strange_function_is_refused_with_those_there_are(monkeypatch, capsys, tmp_path):
    words = ["linear_attention", "--device", "cpu", "--only", "fla", "--out", str(tmp_path / "new")]
    monkeypatch.setattr("sys.argv", ["bench", *words])
    with pytest.raises(SystemExit, match=r"^2$"):
        bench.main()
    said = capsys.readouterr().err
    assert "--only has fla; use some of recurrent, chunked, fla fused_recurrent_gla" in said
    assert not (tmp_path / "new").exists()


def test_a_run_writes_every_row_and_why_one_is_missing(monkeypatch, tmp_path):
    words = ["linear_attention", "--device", "cpu", "--shape", "1", "32", "1", "--only", "chunked"]
    monkeypatch.setattr("sys.argv", ["bench", *words, "fla chunk_gla", "--out", str(tmp_path)])
    bench.main()
    rows = list(csv.DictReader((tmp_path / "linear_attention.csv").open()))
    assert [(r["function"], r["pass"]) for r in rows if not r["note"]] == [
        ("chunked", "forward"), ("chunked", "backward"),
    ]  # fmt: skip
    assert all("Error: " in r["note"] for r in rows if r["function"] == "fla chunk_gla")
    assert {(r["function"], r["shape"]) for r in rows} == {
        ("chunked", "1 x 32 x 1"), ("fla chunk_gla", "1 x 32 x 1"),
    }  # fmt: skip


def test_both_passes_of_attention_are_timed_in_a_graph_where_there_are_any(monkeypatch):
    monkeypatch.setattr(timing, "captures", lambda device: True)
    monkeypatch.setattr(timing, "graph", lambda make, milliseconds: (len(make()()), 0, 0))
    forward, backward = measured(linear_attention.Job("recurrent", (1, 32, 1), "float32", device="cpu"))
    # a batch of one, and four gradients
    assert (forward["us_graph"], backward["us_graph"]) == (1, 4)


def test_what_the_gpu_s_timers_are_given(monkeypatch):
    """Single calls that are waited for, then queued ones, then a graph of one call."""
    asked = []
    monkeypatch.setattr(timing, "waited_for", lambda run, *_: (asked.append("wait"), run())[1])
    monkeypatch.setattr(timing, "queued", lambda run: (asked.append("queue"), (run() + 1, 0, 0))[1])
    monkeypatch.setattr(timing, "ready", lambda make: (asked.append("ready"), (make(), None))[1])
    monkeypatch.setattr(dot_compress, "captured", lambda run, stream: lambda: run() + 2)
    times = dot_compress.times(lambda: lambda: 5, torch.device("cuda"))
    assert times == {"us": 5, "us_queued": 6, "us_graph": 7}
    assert asked == ["wait", "queue", "ready", "wait"]


def test_a_study_writes_its_file(monkeypatch, tmp_path):
    path = tmp_path / "recompute.csv"
    words = "study recompute --updates 4 --tokens 8 --hidden 16 --every 1 4 --write"
    monkeypatch.setattr("sys.argv", [*words.split(), str(path)])
    study.main()
    kept, again = csv.DictReader(path.open())
    assert (kept["every"], again["every"]) == ("1", "4")
    assert int(again["held"]) < int(kept["held"])


@pytest.mark.parametrize("first", ["rows", "cols"])
def test_the_backward_of_large_matrices_takes_what_the_forward_kept(first):
    x, dy = torch.randn(2, 1, 150, 140)
    forward, backward, kept = large.kernel_parts(x, dy, large.Case(1, 150, 140, 3, first=first), "pytorch")
    p, _, _, *vectors = forward()
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(large.sinkhorn(leaf, 3, form="log", first=first), leaf, dy)
    torch.testing.assert_close(p, large.sinkhorn(x, 3, form="log", first=first))
    torch.testing.assert_close(backward()[0], expected)
    assert kept == sum(v.nbytes for v in vectors)
