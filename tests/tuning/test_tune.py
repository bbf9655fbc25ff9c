"""The tuner from plan to stored entry, with a clock and a compiler of the tests' own."""

from __future__ import annotations

import functools
import itertools
import json
import math
import multiprocessing
import os
import re
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import filelock
import jsonschema
import pytest
import torch
from launches import launching_as

from helion_sinkhorn.__main__ import main
from helion_sinkhorn.configs import settings, store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine import compiler as machine_compiler
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.operators import KERNELS, fingerprint, kernel_calls
from helion_sinkhorn.lab.tuning import commands, compilation, deadline, finals, plan, provenance, writer
from helion_sinkhorn.lab.tuning import tune as tuner
from helion_sinkhorn.lab.tuning.commands import here
from helion_sinkhorn.lab.tuning.groups import distinct, groups_of, same
from helion_sinkhorn.lab.tuning.options import Options
from helion_sinkhorn.lab.workloads import WORKLOADS, tagged
from helion_sinkhorn.ops.sinkhorn import iteration, launch
from helion_sinkhorn.ops.sinkhorn import kernels as bodies
from helion_sinkhorn.ops.sinkhorn.implicit import launch as implicit_launch
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime import device_math
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import Choice, candidates

WORKLOAD = WORKLOADS["deepseek_4x4_fp32_b128"]
CALL = SinkhornCall(True, 1, "float32", 4, 4, 20)
DEVICE, KERNEL = DEVICES["h200"], "sinkhorn_forward"
CHOICES = candidates(KERNELS[KERNEL], CALL, DEVICE)
(GROUP,) = groups_of([WORKLOAD], KERNEL)
ALL = groups_of(tagged("tune", object))


pytestmark = pytest.mark.usefixtures("fresh_caches")


class Compiled:
    """Every candidate compiles at once."""

    def __init__(self, device, groups, workers, cache):
        self.device = device

    def binaries(self, group):
        choices = candidates(KERNELS[group.kernel], group.call, self.device)
        return [Binary(self.device.key, Job(group.call, c)) for c in choices]

    def stop(self):
        pass


class Clock:
    """Times by rule: `us` of a choice and batch, a number or what gives one; what was requested is kept."""

    def __init__(self, us):
        self.us, self.asked = us, []

    def __call__(self, group, batch):
        def prepare(choice):
            self.asked.append((group.kernel, batch, choice))
            us = self.us(choice, batch)
            return us if callable(us) else lambda: us

        return prepare


def taking(*times):
    """The rule by which each of these choices takes its time and any other 100 us."""
    return lambda choice, batch: next((us for one, us in times if same(choice, one)), 100.0)


def is_default(choice, group=None) -> bool:
    return same(choice, candidates(KERNELS[choice.kernel], CALL, DEVICE)[0])


def right(group, choice) -> float:
    """A judge's error of any choice, within the budget."""
    return 0.5


def run(out, us, workloads=(WORKLOAD,), judge=right, say=lambda line: None, compilation=Compiled, **options):
    clock = Clock(us)
    groups = groups_of(workloads, options.pop("kernel", KERNEL))
    results = tuner.tune(
        groups, Options("h200", out, commit="0" * 40, command="test", **options), "NVIDIA H200",
        clock=clock, judge=judge, compilation=compilation, say=say,
    )  # fmt: skip
    return results, clock


def entries(out, kernel=KERNEL):
    store.read.cache_clear()
    return store.read(out, "h200", kernel)


def file_in(out) -> Path:
    return out / "h200" / f"{KERNEL}.json"


def now_of_an_older_triton(out) -> None:
    """Let the first entry be of Triton 2.1."""
    data = json.loads(file_in(out).read_text())
    data["entries"][0]["key"]["triton"] = "2.1"
    file_in(out).write_text(writer.text(data))


# What is tried


@pytest.mark.parametrize("kernel", KERNELS)
def test_candidates_are_few_distinct_and_begin_with_the_default(kernel):
    groups = [group for group in ALL if group.kernel == kernel]
    assert groups
    for group, key in itertools.product(groups, DEVICES):
        choices = candidates(KERNELS[kernel], group.call, DEVICES[key])
        assert 1 <= len(choices) <= 80, group
        assert len(distinct(choices)) == len(choices), group
        default = KERNELS[kernel].default(group.call, DEVICES[key])
        assert (choices[0].config, choices[0].variant) == default, group
        names = {frozenset(dict(c.variant)) for c in choices}
        assert names == {frozenset(dict(default[1]))}, group
        for choice in choices:
            config = dict(choice.config)
            threads = config["num_warps"] * DEVICES[key].warp_size
            assert threads <= 1024, (group, choice)
            if dict(choice.variant).get("packed"):
                assert config["block_sizes"][0] >= threads, (group, choice)
            rows, columns = dict(choice.variant).get("thread", (0, 0))
            # hc_boundary_finish takes as many slots as it has threads
            if rows and "block_sizes" in config:
                # as many entries as threads, times what each holds: Triton has no choice
                entries = config["block_sizes"][0] * group.call.n * group.call.m
                assert entries == threads * rows * columns, (group, choice)


def test_groups_hold_every_kernel_of_every_tuned_workload():
    tuned = {(g.kernel, g.call, b) for g in ALL for b in g.batches}
    calls = {(name, call, w.batch) for w in tagged("tune", object) for name, call in kernel_calls(w)}
    assert tuned == {(name, call, KERNELS[name].batch(call, batch)) for name, call, batch in calls}
    assert len({(g.kernel, g.call) for g in ALL}) == len(ALL)


def test_times_of_ranked_kernels_alone_are_kept_beside_scores(tmp_path, monkeypatch):
    scored = []
    monkeypatch.setattr(tuner.calibration, "record", lambda path, kernel, *of: scored.append(kernel))
    for workload, kernel in (
        (WORKLOADS["attention_gk_bf16"], "linear_attention_walk"),
        (WORKLOAD, "sinkhorn_forward"),
    ):
        results, _ = run(tmp_path, lambda c, b: 100.0, [workload], kernel=kernel)
        assert len(list(results)) == len(entries(tmp_path, kernel)) > 0
    assert scored == ["sinkhorn_forward"]


@pytest.mark.parametrize("world", [1, 2, 4, 7])
def test_ranks_share_the_plan(world, tmp_path):
    """Where one host had eight cores and the other two, 22 of 163 groups were nobody's and 21 both's."""
    shares = [
        plan.groups_of_rank(ALL, Options("h200", tmp_path, rank=rank, world=world, workers=1 + 6 * rank))
        for rank in range(world)
    ]
    assert sorted(itertools.chain(*shares), key=ALL.index) == ALL
    costs = [sum(plan.seconds(g, DEVICE, plan.USUAL_WORKERS)) for g in ALL]
    load = [sum(costs[ALL.index(g)] for g in s) for s in shares]
    assert max(load) <= min(load) + max(costs)


# What is kept


def test_the_winner_is_stored_and_used(tmp_path, monkeypatch):
    results, _ = run(tmp_path, lambda c, b: 100.0 if is_default(c) else 50.0 + len(str(c.config)))
    (result,) = results
    (stored,) = entries(tmp_path)
    assert (stored.batch, stored.evidence, stored.key) == (128, "measured", CALL.key)
    assert stored.config == tuple(sorted(result.winner.config))
    assert result.us < result.default_us == 100.0
    (raw,) = json.loads(file_in(tmp_path).read_text())["entries"]
    assert (raw["us"], raw["default_us"]) == (result.us, 100.0)
    schema = json.loads((store.folders()[-1] / "schema.json").read_text())
    jsonschema.validate(json.loads(file_in(tmp_path).read_text()), schema)
    monkeypatch.setattr(store, "folders", lambda: [tmp_path])
    choice = door.choose(KERNELS[KERNEL], CALL, 128, DEVICE)
    assert same(choice, result.winner)
    assert choice.stored


@pytest.mark.parametrize(("gain", "replaced"), [(0.99, False), (0.97, True)])
def test_an_incumbent_stays_unless_beaten_by_two_percent(tmp_path, gain, replaced):
    first, second = CHOICES[3:5]
    list(run(tmp_path, taking((first, 50.0)))[0])
    (result,) = run(tmp_path, taking((first, 50.0), (second, 50.0 * gain)), force=True)[0]
    assert result.old_us == 50.0
    assert same(result.winner, second if replaced else first)


@pytest.mark.parametrize(("jitter", "replaced"), [(0.0, True), (0.2, False)])
def test_the_default_stays_where_times_spread_more_than_they_differ(jitter, replaced):
    choices = CHOICES[:2]

    def us(choice, batch):
        around = itertools.cycle([1 - jitter, 1, 1 + jitter])
        return lambda: next(around) * (100.0 if choice is choices[0] else 90.0)

    result = finals.tune_key(GROUP, 128, choices, None, finals.Bench(Clock(us), right, 9), 60.0)
    assert result.winner == choices[1 if replaced else 0]


def test_a_fast_candidate_outside_the_error_budget_is_never_stored(tmp_path):
    wrong = CHOICES[2]
    (result,) = run(
        tmp_path, lambda c, b: 1.0 if same(c, wrong) else 100.0 if is_default(c) else 90.0,
        judge=lambda group, choice: 1.5 if same(choice, wrong) else 0.5,
    )[0]  # fmt: skip
    assert not same(result.winner, wrong)
    assert result.us == 90.0


def test_a_default_outside_the_budget_stops_the_key(tmp_path):
    said = []
    assert list(run(tmp_path, lambda c, b: 1.0, judge=lambda g, c: 2.0, say=said.append)[0]) == []
    assert entries(tmp_path) == ()
    assert "outside the error budget" in said[-1]


def test_a_candidate_that_does_not_run_is_left_out(tmp_path, caplog):
    def us(choice, batch):
        if dict(choice.config)["num_warps"] == 4:
            raise RuntimeError("out of resources")
        return 100.0

    (result,) = run(tmp_path, us)[0]
    assert dict(result.winner.config)["num_warps"] < 4
    assert "out of resources" in caplog.text


def test_without_compilers_candidates_are_timed_all_the_same(tmp_path, monkeypatch, caplog):
    broken = mock.Mock(side_effect=RuntimeError("the compiler did not start"))
    monkeypatch.setattr(compilation, "compile_for", broken)
    results, _ = run(tmp_path, taking((CHOICES[1], 90.0)), compilation=compilation.Compilation)
    assert [r.us for r in results] == [90.0]
    assert "the compiler did not start" in caplog.text


@pytest.mark.parametrize(("default_spills", "left"), [(0, [0, 1, 5]), (64, [0, 1, 2, 5])])
def test_candidates_may_spill_where_the_default_does(default_spills, left):
    def binary(number, spill_bytes, *others):
        spills = ("spills 8",) if spill_bytes else ()
        job = Job(CALL, Choice("sinkhorn_forward", (("num_warps", number),), (), "test"))
        return Binary("h200", job, (*spills, *others), spill_bytes=spill_bytes)

    much = compilation.TIMED_SPILLS + 8
    binaries = [binary(0, default_spills), binary(1, 0), binary(2, much), binary(3, 0, "no code"),
                binary(4, 128, "no code"), binary(5, compilation.TIMED_SPILLS)]  # fmt: skip
    assert [dict(c.config)["num_warps"] for c in compilation.launchable(binaries)] == left


def test_a_gpu_is_held_while_something_is_timed_and_not_while_code_is_made():
    turn = threading.Lock()

    def us(choice, batch):
        assert not turn.locked()
        return lambda: 100.0 if turn.locked() else pytest.fail("another tuner may have the GPU")

    def judge(group, choice):
        assert not turn.locked()
        return 0.5

    bench = finals.Bench(Clock(us), judge, 2, turn)
    assert finals.tune_key(GROUP, 128, CHOICES[:3], None, bench, 60.0).us == 100.0


@pytest.mark.parametrize(
    "said",
    [{"RANK": "3"}, {"RANK": ""}, {"RANK": "0", "WORLD_SIZE": "0"}, {"LOCAL_WORLD_SIZE": "0"},
     {"LOCAL_RANK": "x"}],
    ids=str,
)  # fmt: skip
def test_variables_that_name_no_rank_are_refused(said, tmp_path, monkeypatch, refused):
    """RANK=3 alone said that no key is left, on an empty folder."""
    for name, text in said.items():
        monkeypatch.setenv(name, text)
    error = refused("tune", "--device", "h200", "--out", str(tmp_path))
    assert "name no rank; unset them, or start the command with torchrun" in error


def test_a_folder_that_may_not_be_written_is_refused_before_anything_is_timed(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    error = refused("tune", "--device", "h200", "--out", str(tmp_path / "not" / "yet"))
    assert f"{tmp_path} may not be written by this user" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", [None, "", "elsewhere"])
def test_the_tuner_looks_where_its_compilers_leave_binaries(folder, tmp_path, monkeypatch):
    tune = mock.Mock(return_value=[])
    monkeypatch.setattr(tuner, "tune", tune)
    monkeypatch.setattr(commands, "here", lambda *asked: "NVIDIA H200")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", folder or "")
    if folder is None:
        monkeypatch.delenv("TRITON_CACHE_DIR")
    main(["tune", "--device", "h200", "--only", "deepseek_4x4_fp32_b128", "--out", str(tmp_path)])
    _, options, *_ = tune.call_args.args
    expected = Path(folder) if folder else tmp_path / ".triton" / "cache"
    assert options.cache == Path(os.environ["TRITON_CACHE_DIR"]) == expected


@pytest.mark.parametrize(
    ("workload", "kernel", "module", "run"),
    [
        ("deepseek_4x4_fp32_b128", "sinkhorn_forward", launch, "forward"),
        ("deepseek_4x4_fp32_b128", "sinkhorn_backward", launch, "backward"),
        ("implicit_4_fp32_b128", "sinkhorn_implicit_direct", implicit_launch, "implicit_backward"),
        ("implicit_8_fp32_b128", "sinkhorn_implicit_cg", implicit_launch, "implicit_backward"),
    ],
)
def test_the_error_gate_sees_a_wrong_kernel(workload, kernel, module, run, monkeypatch):
    (group,) = groups_of([WORKLOADS[workload]], kernel)
    default = candidates(KERNELS[group.kernel], group.call, DEVICE)[0]
    finals.error.cache_clear()
    assert finals.error(group.call, default, "cpu") <= 1
    right = getattr(module, run)
    monkeypatch.setattr(module, run, lambda *a: right(*a) * (1 + 1e-4))
    finals.error.cache_clear()
    assert finals.error(group.call, default, "cpu") > 1
    finals.error.cache_clear()


# Runs that meet


def test_a_finished_key_is_skipped_and_a_forced_one_is_not(tmp_path):
    list(run(tmp_path, lambda c, b: 100.0)[0])
    again, clock = run(tmp_path, lambda c, b: 100.0)
    assert (list(again), clock.asked) == ([], [])
    (said,) = plan.plan([GROUP], Options("h200", tmp_path))
    assert re.match(r"no key is left: .*FORCE=1\) tunes them again$", said)
    # the same result makes no difference
    texts = []
    for _ in range(3):
        (_,) = run(tmp_path, lambda c, b: 100.0, force=True, utc="2026-01-01T00:00Z")[0]
        texts.append(file_in(tmp_path).read_text())
    assert texts[2] == texts[1]


def test_a_key_of_another_source_is_tuned_again(tmp_path, monkeypatch):
    list(run(tmp_path, lambda c, b: 100.0)[0])
    monkeypatch.setattr(plan, "fingerprint", lambda kernel: "f" * 16)
    assert len(list(run(tmp_path, lambda c, b: 100.0)[0])) == 1


def test_a_killed_run_resumes(tmp_path):
    four = [w for w in tagged("tune") if (w.n, w.form, w.dtype) == (4, "deepseek", torch.float32)]
    results, _ = run(tmp_path, lambda c, b: 100.0, four)
    next(results), next(results)
    results.close()
    assert [e.batch for e in entries(tmp_path)] == [128, 1024]
    rest, clock = run(tmp_path, lambda c, b: 100.0, four)
    assert [r.batch for r in rest] == [8192, 131072, 1048576]
    assert {batch for _, batch, _ in clock.asked} == {8192, 131072, 1048576}
    assert [e.batch for e in entries(tmp_path)] == [w.batch for w in four]


# A bounded time


@pytest.mark.parametrize("waiting", ["compile", "prepare", "sample", "judge", "write"])
def test_the_budget_bounds_the_whole_command(waiting, tmp_path, monkeypatch, capsys):
    """The second key waits in one of the places where a run waits; the first is kept."""
    begun = []

    def maybe_wait(place, value):
        if place == waiting and (place == "compile" or len(begun) > 1):
            time.sleep(60)
        return value

    class Compilation(Compiled):
        def binaries(self, group):
            return maybe_wait("compile", super().binaries(group))

    def clock(group, batch):
        begun.append(batch)

        def prepare(choice):
            maybe_wait("prepare", None)
            return lambda: maybe_wait("sample", 100.0)

        return prepare

    def judge(group, choice):
        return maybe_wait("judge", 0.5)

    merge, fakes = writer.merge, {"clock": clock, "judge": judge, "compilation": Compilation}
    monkeypatch.setattr(tuner, "tune", functools.partial(tuner.tune, **fakes))
    monkeypatch.setattr(commands, "here", lambda *asked: "NVIDIA H200")
    monkeypatch.setattr(writer, "merge", lambda *a: merge(*maybe_wait("write", a)))
    monkeypatch.setattr(deadline, "age", lambda: 0.0)
    monkeypatch.setattr(deadline, "TO_END", 0.7)
    begin = time.monotonic()
    words = f"tune --device h200 --kernel {KERNEL} --commit 0 --only deepseek_4x4_fp32_b1 --budget 2"
    assert main([*words.split(), "--out", str(tmp_path)]) == 0
    assert time.monotonic() - begin < 2
    left = 4 if waiting == "compile" else 3
    kept = [128, 1024, 131072, 1048576][: 4 - left]
    assert [e.batch for e in entries(tmp_path)] == kept
    said = capsys.readouterr().out
    assert f"the budget of 2 s is spent; the same command does the {left} keys left" in said


def test_the_age_of_a_process_is_that_since_its_start():
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        at_once = pool.submit(deadline.age).result()
        time.sleep(0.6)
        later = pool.submit(deadline.age).result()
    assert later - at_once > 0.5
    assert later < deadline.age()


@pytest.fixture
def slow_compilers(tmp_path, monkeypatch):
    """Compiling processes that begin and do not end by themselves."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho ready\nsleep 60\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(machine_compiler.sys, "executable", str(compiler))


def waited_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.usefixtures("slow_compilers")
def test_a_run_that_ends_ends_its_compilers(tmp_path):
    """Else the process waits for the jobs they have begun."""
    before = set(threading.enumerate())
    compiled = compilation.Compilation(DEVICE, [GROUP], 2, tmp_path)
    assert waited_for(lambda: len(compiled.compilers) == 2 and all(c.child for c in compiled.compilers))
    children = [c.child.pid for c in compiled.compilers]
    compiled.stop()
    assert waited_for(lambda: set(threading.enumerate()) <= before, 5)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.usefixtures("slow_compilers")
def test_a_worker_that_fails_ends_the_others():
    """The pool waited until they had gone through all jobs: an interrupted `check` compiled everything."""
    begun = []

    def interrupted(worker):
        begun.append(worker)
        if len(begun) == 2:
            waited_for(lambda: begun[0].child)
            raise KeyboardInterrupt

    jobs = [Job(CALL, choice, 128) for choice in CHOICES]
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        machine_compiler.compile_for("h200", jobs, workers=2, begun=interrupted)
    assert time.monotonic() - start < 30


def test_a_config_that_its_judge_cannot_run_is_refused(monkeypatch, caplog):
    monkeypatch.setattr(finals, "error", mock.Mock(side_effect=ValueError("out of resources")))
    assert finals.on_gpu(GROUP, CHOICES[0]) == math.inf
    assert "cannot be tested: out of resources" in caplog.text


def test_what_used_before_and_does_not_run_here_is_not_timed_as_the_default(tmp_path):
    """A stored choice that is refused makes way for the default, whose time was stored as its own."""
    first = CHOICES[3]
    list(run(tmp_path, taking((first, 50.0)))[0])
    now_of_an_older_triton(tmp_path)

    def us(choice, batch):
        if same(choice, first):
            raise ValueError("out of resources")
        return 100.0

    results, clock = run(tmp_path, us)
    (result,) = results
    assert any(same(choice, first) for _, _, choice in clock.asked)
    assert not any(choice.stored for _, _, choice in clock.asked)
    assert result.old_us is None
    assert is_default(result.winner)


def test_an_installed_package_has_no_commit_of_the_repository_around_it(monkeypatch):
    # git lists no file of site-packages
    monkeypatch.setattr(provenance, "output_of", lambda git, what, *_: "" if what == "ls-files" else "abc")
    assert provenance.source("") == {"commit": "", "dirty": False}


# The table at the end


def test_the_table_names_what_was_before_what_is_now_and_where(tmp_path):
    """Calls may get an entry of a different Triton; it is timed, and stays unless beaten."""
    first, second = CHOICES[3:5]
    us = taking((first, 50.0), (second, 40.0))
    list(run(tmp_path, taking((first, 50.0)))[0])
    now_of_an_older_triton(tmp_path)
    (result,) = run(tmp_path, us)[0]
    (row,) = tuner.report([result])
    assert dict(zip(tuner.COLUMNS, row, strict=True)) == {
        "key": f"sinkhorn_forward {CALL}", "batch": "128", "before": "50.0", "after": "40.0",
        "before / after": "1.25", "default": "100.0", "file": "h200/sinkhorn_forward.json",
        "config": ", ".join(f"{k}={v}" for k, v in (*second.config, *second.variant)),
    }  # fmt: skip
    assert {e.triton for e in entries(tmp_path)} == {"2.1", store.triton_minor()}
    # without an entry the default was before
    (result,) = run(tmp_path / "new", us)[0]
    assert tuner.report([result])[0][2:6] == ("100.0", "40.0", "2.50", "100.0")


# Another device


def test_the_device_is_an_assertion(refused, monkeypatch):
    words = "tune", "--device", "mi350"
    assert re.match(r"tune: asked for mi350, found no GPU; .* OFFLINE=1", refused(*words))
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H200")
    monkeypatch.setattr(commands, "current", lambda index: DEVICE)
    assert re.match(r"tune: asked for mi350, found h200 \(NVIDIA H200\); .* OFFLINE=1", refused(*words))
    # more ranks than GPUs share them
    assert [here("h200", rank) for rank in (0, 3)] == ["NVIDIA H200"] * 2
    assert taken == [0, 0, 1]
    # nor are the times of one GPU stored under another's name
    monkeypatch.setattr(settings, "DEVICE", "h200")
    assert "HELION_SINKHORN_DEVICE is h200" in refused("tune", "--device", "h200")


def test_a_choice_of_the_caller_s_own_is_never_replaced(monkeypatch):
    launching_as(monkeypatch, run=mock.Mock(side_effect=ValueError("no")))
    mine = Choice(KERNEL, (("block_sizes", (64,)), ("num_warps", 2)), (("thread", (4, 4)),), "mine")
    for choice in (mine, None):
        with pytest.raises(ValueError, match="no"):
            launch.forward(torch.randn(2, 4, 4), *WORKLOAD.arguments, torch.float32, choice)


# The fingerprint


ITERATION, MATH = "ops/sinkhorn/iteration.py", "runtime/device_math.py"


def test_a_fingerprint_is_of_the_code_alone():
    names = ("sinkhorn_forward", "sinkhorn_backward", "sinkhorn_backward_history")
    source, body, shared = (Path(m.__file__).read_text() for m in (iteration, bodies, device_math))

    def changed(kernel, file, text):
        return fingerprint(kernel, ((file, text),)) != fingerprint(kernel)

    # one body serves hc_split_sinkhorn's mixes and partial sums
    assert len({fingerprint(k) for k in KERNELS}) == len({k.body for k in KERNELS.values()})
    assert not any(changed(k, ITERATION, source) for k in names)
    told = "# a comment\n" + shared.replace('"""1 / x elementwise', '"""One over x')
    assert told.count("One over x") == 1
    assert not any(changed(k, MATH, told) for k in names)
    # a helper of another module, and one that another operator imports
    scale = source.replace("LOG2_MAX_Q0 = 60.0", "LOG2_MAX_Q0 = 61.0")
    assert all(changed(k, ITERATION, scale) for k in names)
    reciprocal = shared.replace("return 1.0 / x", "return 1.0 / (x)  + 0.0")
    assert {k for k in KERNELS if changed(k, MATH, reciprocal)} >= {
        *names, "sinkhorn_implicit_direct", "sinkhorn_implicit_cg", "linear_attention_chunk_scores",
    }  # fmt: skip
    assert not changed("dot_compress_apply", MATH, reciprocal)
    other = body.replace("def sinkhorn_forward(", "def sinkhorn_forward(unused,", 1)
    assert changed("sinkhorn_forward", "ops/sinkhorn/kernels.py", other)
    assert not changed("sinkhorn_backward", "ops/sinkhorn/kernels.py", other)


def test_tuners_on_one_gpu_take_turns_whatever_their_folders(tmp_path, monkeypatch):
    """Runs under two Tritons have a Triton cache each; sampled at once they time each other."""
    gpu = SimpleNamespace(uuid="one")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    with finals.gpu_timing_lock():
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "other"))
        with pytest.raises(filelock.Timeout):
            finals.gpu_timing_lock().acquire(blocking=False)
        gpu.uuid = "another"
        finals.gpu_timing_lock().acquire(blocking=False).lock.release()
    gpu.uuid = "one"
    finals.gpu_timing_lock().acquire(blocking=False).lock.release()
