"""Helion's search beyond the kernels' spaces, with a clock, a compiler and neighbours of the tests' own."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from unittest import mock

import pytest

from helion_sinkhorn.__main__ import main
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.machine.compiler import Compiler
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning import commands, compilation, search, tune
from helion_sinkhorn.lab.tuning.groups import Group
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import candidates, default_choice, in_space

pytestmark = pytest.mark.usefixtures("fresh_caches")

KERNEL = KERNELS["sinkhorn_forward"]
CALL = SinkhornCall(True, 1, "float32", 4, 4, 20)
STAGES = "num_stages"


class Compiled:
    """Every choice compiles at once, and spills beyond nine stages."""

    def __init__(self, device, groups, workers, cache, choices=()):
        self.device, self.choices = device, choices

    def binaries(self, group):
        choices = self.choices or candidates(KERNELS[group.kernel], group.call, self.device)
        spills = [("spills 1",) if stages(choice) > 9 else () for choice in choices]
        jobs = [Job(group.call, choice) for choice in choices]
        return [Binary(self.device.key, *row) for row in zip(jobs, spills, strict=True)]

    def as_ready(self, group, end):
        return self.binaries(group)

    def stop(self):
        pass


def stages(choice):
    return dict(choice.config).get(STAGES, 0)


def clock(group, batch):
    """The more stages the faster, all else alike; six do not run."""

    def prepare(choice):
        if stages(choice) == 6:
            raise RuntimeError("out of resources")
        return lambda: 100.0 - 3 * stages(choice)

    return prepare


@contextlib.contextmanager
def space(device_key):
    """One stage more or fewer, one stage beside six that do not run, and the config itself."""

    def around(group, choice):
        config, own = dict(choice.config), stages(choice)
        others = [k for k in (own - 1, own + 1, own + 2) if k > 0]
        return [tuple({**config, STAGES: k}.items()) for k in others] + [choice.config]

    yield around


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """`tune` of one key: (judge, words) -> output, the entry stored, what was found beyond the space."""

    tables = []
    monkeypatch.setattr(commands, "table", lambda *table: tables.append(table))

    def command(judge=lambda group, choice: 0.5, words="--effort full"):
        fakes = {"clock": clock, "judge": judge, "compilation": Compiled}
        monkeypatch.setattr(tune, "tune", functools.partial(tune.tune, **fakes))
        monkeypatch.setattr(search, "search", functools.partial(search.search, **fakes, space=space))
        monkeypatch.setattr("helion_sinkhorn.lab.tuning.commands.here", lambda *asked: "NVIDIA H200")
        given = "tune --device h200 --kernel sinkhorn_forward --only deepseek_4x4_fp32_b128 --commit 0"
        assert main([*given.split(), *words.split(), "--out", str(tmp_path)]) == 0
        (stored,) = json.loads((tmp_path / "h200" / "sinkhorn_forward.json").read_text())["entries"]
        _, *beyond = tables
        report = [dict(zip(names, row, strict=True)) for _, names, rows in beyond for row in rows]
        return capsys.readouterr().out, stored, report

    return command


@pytest.mark.parametrize("most", [9, 7, 0])
def test_it_climbs_and_tells_what_the_space_lacks_without_storing_it(run, most):
    """From no stages past the six that do not run, up to the nine after which code spills or those that are
    within the budget of error.
    """
    output, stored, report = run(judge=lambda group, choice: 2.0 if stages(choice) > most else 0.5)
    assert STAGES not in stored["config"]
    assert stored["us"] == 100.0
    if not most:
        assert report == []
        assert "configs of Helion's space; 100.0 us stored, 100.0 us the best" in output
        return
    (row,) = report
    assert f"{STAGES}={most}" in row["config"]
    us = 100.0 - 3 * most
    assert (row["stored"], row["found"], row["stored / found"]) == ("100.0", str(us), f"{100 / us:.2f}")
    assert row["key"] == f"sinkhorn_forward {CALL}"


def test_without_full_effort_nothing_is_searched(run):
    output, _, report = run(words="")
    assert report == []
    assert "Helion's space" not in output


def test_a_search_ends_with_its_seconds():
    group = Group("sinkhorn_forward", CALL, (128,))
    start = default_choice(KERNEL, CALL, DEVICES["h200"])
    result = tune.Result(group, 128, start, 100.0, 100.0, 0.0, 0.5, times=[(start, 100.0)])
    around = mock.Mock(return_value=[(*start.config, (STAGES, 1))])
    assert search.beyond(result, around, lambda choices: [(c, 1.0) for c in choices], end=0.0) == []
    around.assert_not_called()


def test_configs_compiled_in_time_are_timed_though_others_are_not(monkeypatch, tmp_path):
    """A search whose compilers did not end with the last of its configs had timed none of them."""
    release, reported = threading.Event(), threading.Event()

    def slow(device, jobs, *, report, **options):
        first, *_ = jobs
        report(Binary(device, first))
        reported.set()
        release.wait(30)

    monkeypatch.setattr(compilation, "compile_for", slow)
    group, device = Group("sinkhorn_forward", CALL, (128,)), DEVICES["h200"]
    choices = candidates(KERNEL, CALL, device)[:3]
    compiled = compilation.Compilation(device, [group], 1, tmp_path, choices)
    try:
        assert reported.wait(30)
        binaries = compiled.as_ready(group, time.monotonic() + 0.5)
        timed = list(search.times_of(binaries, clock(group, 128), contextlib.nullcontext()))
    finally:
        release.set()
    assert timed == [(choices[0], 100.0)]


def test_configs_of_lists_in_lists_are_choices(tmp_path, monkeypatch):
    """The orders of loops, which kernels of several tiled axes have."""
    compiler = Compiler("h200", tmp_path, 1.0)
    answer = {"configs": [{"num_warps": 4, "loop_orders": [[1, 0, 2]]}]}
    monkeypatch.setattr(compiler, "ask", lambda job, **more: answer)
    assert set(compiler.neighbours(None)) == {(("num_warps", 4), ("loop_orders", ((1, 0, 2),)))}


@pytest.mark.nightly("a process that imports Helion for a device that is not here")
def test_helion_s_own_neighbours_of_a_config():
    """Asked of Helion, for a device that is not here."""
    choice = default_choice(KERNEL, CALL, DEVICES["h200"])
    group = Group("sinkhorn_forward", CALL, (128,))
    with search.helion_space("h200") as around:
        configs = around(group, choice)
    own = dict(choice.config)
    block, warps = own["block_sizes"][0], own["num_warps"]
    pairs = {(c["block_sizes"], c["num_warps"]) for c in map(dict, configs)}
    both = (2 * block,), 2 * warps
    assert pairs >= {((block,), warps), (both[0], warps), ((block,), both[1]), both}
    assert {STAGES, "indexing", "pid_type"} <= {name for c in configs for name, _ in c}
    # a launch takes them, and none is what it is the neighbour of
    assert len(set(configs)) == len(configs)
    assert tuple(choice.config) not in configs
    spelled = [type(choice)(choice.kernel, config, choice.variant, "") for config in configs]
    assert not all(in_space(KERNEL, c, CALL, DEVICES["h200"]) for c in spelled)
