"""The benchmark without a GPU: what is timed and refused, the report, and the counting of instructions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from benchmarks import bench, jobs
from benchmarks.sinkhorn import peers, plan, tasks
from helion_sinkhorn import reference

TINY = tasks.Job("sweep", "sweep", (peers.OURS,), batches=(8,), device="cpu", milliseconds=0.1)


def measured(**options: object) -> list[dict]:
    """The rows of TINY with other options."""
    rows = replace(TINY, **options).rows()
    assert next(rows) is None
    return [row for row in rows if row is not None]


# ------------------------------------------------------------------------------ what is timed


def test_sweep_times_every_pass_of_a_right_function():
    names = peers.FLOOR, peers.OURS, f"{peers.OURS} log"
    rows = measured(functions=names)
    timed = [(r["function"], r["pass"]) for r in rows]
    assert timed == [*itertools.product(names, ("forward", "backward", "both"))]
    assert all(0 < r["us_20"] <= r["us"] <= r["us_80"] for r in rows)


def test_every_pass_is_timed_in_a_graph_too_where_there_are_any(monkeypatch):
    """After all single calls; what cannot be captured is a row with the reason."""

    def graph(make, milliseconds):
        if isinstance(make()(), tuple):
            raise RuntimeError("cannot be captured\nat all")
        return 3.0, 2.0, 4.0

    monkeypatch.setattr(tasks.timing, "captures", lambda device: True)
    monkeypatch.setattr(tasks.timing, "graph", graph)
    tupled = peers.Function(lambda *given: {"forward": lambda: (reference.sinkhorn(given[0]),)}, form="")
    monkeypatch.setitem(peers.FUNCTIONS, "peer", tupled)
    rows = measured(functions=(peers.OURS, "peer"))
    timed = [(r["function"], r["timer"], r["pass"]) for r in rows if "us" in r]
    passes = [(peers.OURS, which) for which in peers.TIMED]
    assert timed == [
        *((name, "eager", which) for name, which in [*passes, ("peer", "forward")]),
        *((name, "graph", which) for name, which in passes),
    ]
    assert {r["us"] for r in rows if r.get("timer") == "graph"} == {3.0}
    assert rows[-1]["note"] == "forward, graph, batch 8: RuntimeError: cannot be captured"


def biased_gradient(x, n_iters):
    """P is right, and its gradient a hundredth too large."""
    p = reference.sinkhorn(x, n_iters)
    return p.detach() + 1.01 * (p - p.detach())


@pytest.mark.parametrize(
    ("row", "timed"),
    [
        (peers.Function(peers.differentiable(peers.load_eager), form="log"), []),
        (peers.Function(peers.differentiable(lambda: biased_gradient)), ["forward"]),
        (peers.Function(peers.differentiable(peers.load_eager)), ["forward", "backward", "both"]),
    ],
    ids=["another form", "another gradient", "right"],
)
def test_a_function_that_computes_something_else_is_left_out(monkeypatch, row, timed):
    monkeypatch.setitem(peers.FUNCTIONS, "peer", row)
    rows = measured(functions=("peer",))
    assert [r["pass"] for r in rows if "us" in r] == timed
    refused = [r for r in rows if r["section"] == "left out"]
    assert bool(refused) == (len(timed) < 3)
    assert all("differs" in r["note"] for r in refused)


@pytest.mark.gpu
@pytest.mark.parametrize("name", peers.PEERS)
def test_installed_peers_compute_their_definition(name):
    x, dy = tasks.make_inputs(replace(TINY, device="cuda"), 4096)
    try:
        errors = tasks.errors(peers.load(name), tasks.CHECKED_SCALE * x, dy)
    except ImportError as error:
        pytest.skip(str(error))
    assert errors["error"] < tasks.BOUNDS["float32"][0]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "kept", "scratch"), [(peers.OURS, 64.0, 0.0), ("eager", 3248.0, 256.0)])
def test_bytes_a_matrix_are_counted(name, kept, scratch):
    """4 x 4 in float32: the logits, and in eager PyTorch 49 more matrices and some sums."""
    x, dy = tasks.make_inputs(replace(TINY, device="cuda"), 1 << 14)
    passes = peers.load(name).build(x, dy, tasks.T)
    for run in passes.values():
        run()
    assert tasks.memory(passes, x) == {tasks.KEPT: kept, tasks.SCRATCH: scratch}


def test_host_layers_and_lanes_are_measured():
    layers = {r["function"]: r["us"] for r in measured(task="host")}
    assert layers["sinkhorn, no gradient"] > layers["x * 2"] > 0
    rows = measured(task="lanes", batches=(32, 128), milliseconds=0.2)
    assert [(r["batch"], r["n"]) for r in rows[::2]] == [(32, 4), (32, 8), (128, 4), (128, 8)]


def test_the_plan_of_a_run():
    parse = bench.make_parser().parse_args
    full, quick = (plan.waves(parse(["sinkhorn", *words])) for words in ([], ["--quick"]))
    sweeps = [job for wave in full for job in wave if job.task == "sweep"]
    assert all(3 * 4 * j.n**2 * b <= plan.LARGEST_BYTES for j in sweeps for b in j.batches)
    assert {j.n for j in sweeps} >= {4, 8, 16, 32, 64, 128}
    assert {f for j in sweeps for f in j.functions} == set(peers.FUNCTIONS)
    both = {peers.OURS, f"{peers.OURS} log"}
    assert {f for wave in quick for j in wave for f in j.functions} == {peers.FLOOR, *both}


def test_a_job_runs_in_its_own_process_and_is_stopped_when_late():
    late, good = jobs.Child(TINY), jobs.Child(TINY)
    try:
        assert not late.ready(0.2)
        assert "not ready after" in late.why
        assert good.ready(120), good.why
        turns = []
        while good.has_more:
            turns.append(list(good.measure(60)))
        *earlier, rows = turns
        assert earlier == [[]] * (tasks.TURNS - 1)
        assert [r["pass"] for r in rows] == ["forward", "backward", "both"]
        assert {r["section"] for r in rows} == {"sweep"}
        assert not good.why
    finally:
        late.stop()
        good.stop()


# ------------------------------------------------------------------------------ the report


def sample_rows() -> list[dict[str, object]]:
    """What a run on a GPU writes, with round numbers: copy 10, ours 15, eager 300."""
    each = itertools.product(
        ((peers.FLOOR, 10.0), (peers.OURS, 15.0), ("eager", 300.0)), (1 << 12, 1 << 20), peers.TIMED,
        ("eager", "graph"),
    )  # fmt: skip
    return [
        {"section": "sweep", "function": name, "n": 4, "batch": batch, "pass": which, "dtype": "float32",
         "timer": timer, "us": us, "us_20": us - 1, "us_80": us + 1, "error": 1e-7, "gradient_error": 2e-7}
        for (name, us), batch, which, timer in each
    ]  # fmt: skip


def rendered(tmp_path, rows) -> str:
    report = pytest.importorskip("benchmarks.sinkhorn.report")
    table = jobs.Table(tmp_path / "bench.csv", {"mode": "full", "commit": "abc"})
    for row in rows:
        table.add(row)
    table.write()
    report.render(tmp_path / "bench.csv", tmp_path)
    return (tmp_path / "report.md").read_text()


def test_the_floor_of_a_graph_is_the_faster_copy(tmp_path):
    """A copy of a gigabyte is half as slow again in a graph; called as it is, it has its own row."""
    report = pytest.importorskip("benchmarks.sinkhorn.report")
    rows = sample_rows()
    for row in rows:
        if row["function"] == peers.FLOOR and row["batch"] == 1 << 20:
            row["us"] = {"graph": 16.0, "eager": 12.0}[row["timer"]]
    rendered(tmp_path, rows)
    results = report.Results(tmp_path / "bench.csv")
    for timer in ("eager", "graph"):
        line = results.of(report.OURS, n=4, which="forward", timer=timer)
        assert list(line.x_floor) == pytest.approx([15 / 10, 15 / 12])


@pytest.mark.parametrize(
    ("error", "missing"), [(2e-7, "not timed"), (0.0123, "gradient off by 1e-02")], ids=["right", "wrong"]
)
def test_a_peer_s_bar_says_how_many_times_as_long_it_takes(monkeypatch, tmp_path, error, missing):
    first = sample_rows()
    eager = [r for r in first if (r["function"], r["pass"]) == ("eager", "forward")]
    rows = first + [{**r, "function": "fla, Triton", "us": 600.0, "gradient_error": error} for r in eager]
    report, shown = pytest.importorskip("benchmarks.sinkhorn.report"), {}
    monkeypatch.setattr(report.Figure, "savefig", lambda figure, path, **_: shown.update({path.stem: figure}))
    rendered(tmp_path, rows)
    figure = shown["speedup"]
    assert [axis.get_title() for axis in figure.axes] == ["4,096 matrices", "1,048,576 matrices"]
    for axis in figure.axes:
        assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["eager", "fla, Triton"]
        said = [t.get_text().strip() for t in axis.texts]
        assert said == ["20", "40", "20", missing]
        ends = [bar.get_x() + bar.get_width() for bar in axis.patches]
        assert ends[:3] == pytest.approx([20, 40, 20])
        assert [bool(bar.get_hatch()) for bar in axis.patches] == [False, True, False, True]


def test_report_of_a_run_that_was_killed(tmp_path):
    host = {"section": "host", "function": "x * 2", "n": 4, "batch": 128}
    host |= dict.fromkeys(("us", "us_20", "us_80"), 5.0)
    text = rendered(tmp_path, [host, {"section": "left out", "function": "slow peer", "note": "not ready"}])
    assert "No row of the main series" in text
    assert "## Host time" in text
    assert "- slow peer: not ready" in text
