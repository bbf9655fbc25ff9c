"""The accuracy gate: correct implementations pass, faults are caught; artefacts and their comparison."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
import sys
from operator import itemgetter
from pathlib import Path

import pytest
import torch
from forked import printed
from shared import NIGHTLY, once
from stored import entry, write

from ci import accuracy, compare
from ci import fault_tables as faults
from ci.gate import batches, gate, kept, runs
from ci.gate.choices import of_kernels
from ci.operators import OPERATORS, operator_of
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab import rounding
from helion_sinkhorn.lab.dot_compress.evidence import EVIDENCE as DOT_COMPRESS
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload
from helion_sinkhorn.lab.evidence import EVERY_STEP
from helion_sinkhorn.lab.linear_attention.evidence import EVIDENCE as LINEAR_ATTENTION
from helion_sinkhorn.lab.operators import KERNELS, kernel_calls
from helion_sinkhorn.lab.sinkhorn import budget as sinkhorn_budget
from helion_sinkhorn.lab.sinkhorn.evidence import EVIDENCE as SINKHORN
from helion_sinkhorn.lab.sinkhorn.implicit.evidence import JUDGED
from helion_sinkhorn.lab.workloads import WORKLOADS, tagged
from helion_sinkhorn.ops.linear_attention import eager as attention_eager
from helion_sinkhorn.ops.mhc.split import eager as split_eager
from helion_sinkhorn.ops.sinkhorn.implicit.systems import solver_for
from helion_sinkhorn.runtime.kernel import candidates
from helion_sinkhorn.runtime.launch import choose

ROOT = Path(__file__).resolve().parents[2]
CI = [w.name for w in tagged("ci", object)]
STEPS = 1 << 17
"""Entries times iterations tested here: hundreds of 4 x 4 matrices, and a second a workload."""

BY_NIGHT = {
    "attention_chunks_forgetting", "attention_gla_bf16", "attention_retention", "attention_scalar_forgetting",
    "attention_gla_fp16", "attention_ungated", "attention_scaled", "attention_chunks_growing",
    "attention_unused_o", "attention_unused_end", "attention_chunks", "dot_reported", "dot_precise",
    "mixes_model", "peaked_column",
}  # fmt: skip

# At these sizes and logits the iterations or the conjugate gradients have converged, or all matrices are one
CONVERGED = {
    "mid_16", "mid_16_deepseek", "mid_16_log", "lane_32", "lane_32_log", "matching_64", "largest_128",
    "peaked_column", "peaked_column_8_log", "implicit_8", "implicit_16", "implicit_32", "implicit_64",
    "implicit_driver_8", "implicit_uniform_16", "implicit_identity_like",
}  # fmt: skip
# The accumulator drops 3 exp(-16) of sums of 1, 6 units of float32; exponentials to the base 2 may be wrong
# by 8.  The first ten of twenty iterations have converged: without them a gradient of -0.4 changes by 3.5e-7.
INSIDE = {
    "peaked_identity_16_log": {"bfloat16 accumulator"},
    "mid_16_log": {"gradient of the second half only"},
}


def opinions(name):
    return faults.opinions(WORKLOADS[name], STEPS if NIGHTLY else STEPS // 2, others=False)


SLOW = pytest.mark.nightly("a second to half a minute a row; rows that show the same faults run always")
QUICK = [n for n in CI if n not in BY_NIGHT]
BY_DAY = {n for o in OPERATORS.values() for n in [n for n in QUICK if o.takes(WORKLOADS[n])][::8]} - {
    "attention_forgetting"
}
ROWS = [n if n in BY_DAY else pytest.param(n, marks=SLOW) for n in CI]


@pytest.mark.parametrize("name", ROWS)
def test_correct_implementations_pass_and_faults_are_caught(name):
    good, faulty, hidden = opinions(name)
    assert len(good) >= 9
    assert {n: o.statistics for n, o in good.items() if not o.gate} == {}
    assert len(faulty) >= 9
    missed = {n: o.statistics for n, o in faulty.items() if o.gate and n not in hidden}
    assert missed.keys() == INSIDE.get(name, set()), missed
    # what a result that nothing used would have passed on shows no fault
    assert not hidden or name in CONVERGED or getattr(WORKLOADS[name], "unused", "")


@pytest.mark.nightly("half a minute of modelled matrix units")
def test_a_matrix_unit_that_truncates_is_right():
    """Over all five elements the lean of dx is 1.3 times what independent roundings leave."""
    workload = WORKLOADS["dot_precise"]
    inputs = DOT_COMPRESS.inputs(workload, EVERY_STEP)
    modelled = operator_of(workload).vendors["nvidia"](workload, *inputs)
    truths = DOT_COMPRESS.truths(workload, *inputs)
    assert not any(truths[name].judge(t).reasons for name, t in modelled.items())
    dx = truths["dx"].judge(modelled["dx"])
    assert -dx.bias > dx.bias_limit - truths["dx"].systematic


def test_a_factor_of_16_bits_is_far_beyond_the_budget_of_float32_products():
    _, faulty, _ = opinions("dot_fp32")
    cut = [o for name, o in faulty.items() if name.endswith("cut to 16 bits")]
    assert len(cut) == 2
    assert min(s.worst for o in cut for s in o.statistics.values()) > 4


@functools.cache
def ground(name="mhc_fp32"):
    workload = WORKLOADS[name]
    operator = operator_of(workload)
    inputs = operator.inputs(workload, STEPS)
    return workload, *inputs, operator.truths(workload, *inputs)


def test_statistics_of_known_errors():
    _, _, _, truths = ground()
    truth = truths["P"]
    assert truth.judge(truth.exact).worst == 0
    one = truth.exact.clone()
    one[3, 2, 1] += 2 * truth.budget[3, 2, 1]
    s = truth.judge(one)
    assert s.worst == pytest.approx(2)
    assert (s.index, s.reasons) == ((3, 2, 1), ["worst"])
    assert (s.value, s.expected) == (one[3, 2, 1].item(), truth.exact[3, 2, 1].item())
    even = truth.judge(truth.exact + 0.9 * truth.spread)
    assert even.rms == pytest.approx(0.9)
    assert even.bias == pytest.approx(0.9)
    assert even.reasons == ["bias"]
    signs = torch.where(torch.arange(16).view(4, 4) % 2 == 0, 1.0, -1.0)
    assert truth.judge(truth.exact + 1.1 * truth.spread * signs).reasons == ["rms"]
    assert truth.judge(torch.full_like(truth.exact, math.nan)).worst == math.inf
    assert not truth.judge(torch.full_like(truth.exact, math.nan)).passes


@pytest.mark.parametrize(
    ("name", "of"),
    [("hc_model", "comb"), ("hc_model", "dmixes"), ("hc_saturated", "pre"), ("hc_site_narrow", "comb"),
     ("mixes_narrow", "mixes"), ("mhc_fp32", "dX")],
)  # fmt: skip
def test_an_error_always_to_one_side_is_found(name, of):
    """Whose 25 parts at most are independent may have any mean: groups of tokens were parts, and are four."""
    *_, truths = ground(name)
    truth = truths[of]
    right = truth.exact + 0.9 * truth.systematic * truth.spread * truth.exact.sign()
    wrong = truth.exact + 0.9 * truth.spread * truth.exact.sign()
    assert "bias" not in truth.judge(right).reasons
    assert truth.judge(wrong).reasons == ["bias"]


def test_repeated_logits_repeat_the_rounding_of_their_exponentials():
    """exp2 of one product, as GPUs compute it, and wrong by 2 of the 4 units that ex2.approx may be."""
    workload, x, dy, truths = ground("peaked_identity_12_log")
    truth = truths["dX"]
    arguments = (x * torch.tensor(math.log2(math.e))).double() / math.log2(math.e)
    arguments += torch.where(x < 0, 2 * rounding.UNIT, 0.0)
    statistics = truth.judge(sinkhorn_budget.exact(arguments, dy, **workload.options)[1])
    assert statistics.passes
    # an H200's kernel has a bias of 0.0065
    assert statistics.bias == pytest.approx(0.007, abs=0.001)
    assert truth.judge(truth.exact * (1 + 64 * rounding.UNIT)).reasons == ["bias"]


@pytest.mark.parametrize("of", ["P", "dX"])
def test_one_rounding_to_a_narrow_type_has_the_rms_of_a_uniform_error(of):
    truth = ground("mhc_bf16")[3][of]
    # half a place is relative to the power of two below: mean of 1 / significand^2 over a binade, 0.54
    expected = math.sqrt(3 / (8 * math.log(2)))
    assert truth.judge(truth.exact.bfloat16()).rms == pytest.approx(expected, abs=0.03)


def test_gaps_count_units_in_the_last_place():
    a = torch.rand(5, 4, 4) + 1
    b = a.clone()
    b.view(torch.int32)[2] += 3
    gap = gate.gap("P", a, b)
    assert gap["largest_ulps"] == 3
    assert gap["mean_ulps"] == pytest.approx(3 / 5)
    assert gate.gap("P", a, a) == dict.fromkeys(gap, 0.0)


@pytest.mark.parametrize("judged", [1, 2, 3, 4, 8, 51])
def test_no_power_of_two_of_positions_has_equal_inputs(judged):
    """An index that wraps reads another element somewhere."""
    place = runs.copies(1 << 10, judged)
    assert place[:judged].tolist() == list(range(judged))
    for bits in range(10):
        positions = torch.arange(1 << (bits + 1))
        assert judged == 1 or not torch.equal(place[positions], place[positions % (1 << bits)])


@pytest.mark.parametrize(
    ("name", "module", "upstream", "of"),
    [
        ("hc_unused_pre", split_eager, itemgetter(0), "dmixes"),
        ("hc_site_unused_comb", split_eager, itemgetter(0), "dfn"),
        ("attention_unused_o", attention_eager, itemgetter(slice(0, 2)), "dk"),
    ],
)  # fmt: skip
def test_an_operator_without_one_upstream_gradient_is_tested(monkeypatch, name, module, upstream, of):
    """The CPU path loses all gradients as soon as one of the results is unused."""
    right = module.backward

    def wrong(*arguments):
        lost = any(t is None for t in upstream(arguments))
        return [torch.zeros_like(t) if lost and t is not None else t for t in right(*arguments)]

    monkeypatch.setattr(runs, "RERUN_SECONDS", 0.02)
    monkeypatch.setattr(module, "backward", wrong)
    assert any(f": {of} is beyond" in s for s in accuracy.failures(accuracy.judge(name, "cpu", STEPS)))


def altered(monkeypatch, change, of="P", steps=STEPS, large=False):
    """accuracy.judge of a small workload whose results of one kind went through `change(call, x, result)`."""
    operator = OPERATORS["sinkhorn"]

    def broken(workload, *inputs):
        spoiled = []
        for candidate in operator.candidates(workload, *inputs):
            calls = itertools.count()

            def run(x, dy, candidate=candidate, calls=calls):
                result = candidate.run(x, dy)
                return change(next(calls), x, result) if candidate.of == of else result

            spoiled.append(dataclasses.replace(candidate, run=run))
        return spoiled

    monkeypatch.setitem(OPERATORS, "sinkhorn", dataclasses.replace(operator, candidates=broken))
    monkeypatch.setattr(runs, "RERUN_SECONDS", 0.02)
    return accuracy.judge("tail_5x3", "cpu", steps, large)


@pytest.mark.parametrize(("elements", "wraps"), [(100, False), (130, True)])
def test_programs_whose_number_wraps_are_found_in_a_large_batch(monkeypatch, elements, wraps):
    """50 programs of 2 matrices for 65,536 of 32: the batch of a row has fewer than wrap."""

    def wrapped(call, x, y):
        return y[torch.arange(len(y)) % 100]

    monkeypatch.setitem(batches.LARGE, "tail_5x3", elements)
    record = altered(monkeypatch, wrapped, steps=1 << 12, large=True)
    assert record["batch"] == elements
    assert record["judged"] < 50
    assert [r["reproducible"]["position"] for r in record["results"]] == [not wraps, True]


def test_a_large_batch_has_more_than_65535_programs():
    """Each kernel with a block of elements or tokens, by the config that an H100 takes for the call."""
    few = {}
    for name in batches.LARGE:
        workload = WORKLOADS[name]
        tokens = batches.elements(workload, large=True) * getattr(workload, "tokens", 1)
        for kernel, call in kernel_calls(workload):
            config = dict(choose(KERNELS[kernel], call, tokens, DEVICES["h100"]).config)
            # dot_compress has blocks of rows, and chunks have no size to choose
            each = 1 if isinstance(workload, DotWorkload) else config.get("block_sizes", [1])[0]
            if -(-tokens // each) <= 65_535:
                few[kernel] = name, config
    assert few == {}


def test_bits_that_depend_on_the_config_are_found():
    """A result of which each config must make the same bits is named, and no other."""
    of = operator_of(WORKLOADS["mixes_model"])

    def result(kernel, name, digest):
        return {"kernel": kernel, "of": name, "digest": digest}

    right = [result("one", name, "a") for name in ("mixes", "dx", "mixes", "dx")]
    right += [result("other", "mixes", "b"), *(result("one", "dfn", digest) for digest in "ab")]
    assert accuracy.by_config(of, right) == []
    differing = accuracy.by_config(of, [*right, result("one", "dx", "b")])
    assert differing == ["one: dx"]
    record = {"results": [], "bits_by_config": differing}
    assert accuracy.failures(record) == ["one: dx has other bits with other configs"]


def test_a_workload_is_tested_soon_after_it_is_compiled():
    """Not after all others: what is not tested when the seconds are over is called wrong."""
    names, ahead = [f"w{k}" for k in range(20)], 4
    tasks = list(accuracy.in_turns(names, 4, ahead))
    assert sorted(t for t in tasks if t[1] is not None) == sorted(itertools.product(names, range(4)))
    assert [n for n, part in tasks if part is None] == names
    for name in names[:8]:
        begun = tasks[tasks.index((name, 3)) + 1 : tasks.index((name, None))]
        parts = sum(part is not None for _, part in begun)
        assert ahead <= parts < ahead + 4
    assert list(accuracy.in_turns(names, 0, ahead)) == [(n, None) for n in names]


def test_wrong_values_are_said_with_their_place(monkeypatch):
    def change(call, x, y):
        y = y.clone()
        y[::17, 4, 2] *= 1.001
        return y

    record = altered(monkeypatch, change)
    (sentence, *_) = accuracy.failures(record)
    assert "eager (CPU): P is beyond the limit of worst" in sentence
    assert re.search(r"element \(\d+, 4, 2\) is [\d.e-]+, expected [\d.e-]+", sentence)
    (of_p,) = [r for r in record["results"] if r["of"] == "P"]
    assert not of_p["reproducible"]["split"]
    of_p |= {"passes": True, "reproducible": {"again": True, "split": False}}
    assert accuracy.failures(record) == ["eager (CPU): P has other bits: split"]


def test_a_workload_without_an_operator_says_what_to_do(monkeypatch):
    monkeypatch.delitem(OPERATORS, "implicit")
    with pytest.raises(LookupError, match=r"implicit_mhc .* taken by no operator .* give its operator a row"):
        operator_of(WORKLOADS["implicit_mhc"])


def test_one_failing_workload_leaves_the_others():
    record = accuracy.attempt(accuracy.judge, "no such workload", "cpu", STEPS)
    assert accuracy.failures(record) == ["KeyError: 'no such workload'"]


def test_kernels_are_tested_with_the_default_and_every_committed_config(monkeypatch, tmp_path, fresh_caches):
    """The bodies themselves, interpreted, chosen as on a GPU."""
    from helion_sinkhorn.configs import store
    from helion_sinkhorn.ops.sinkhorn import launch

    workload = WORKLOADS["mhc_one_iteration"]
    x, dy, truths = ground("mhc_one_iteration")[1:]
    x, dy = x[:6], dy[:6]
    call = launch.call_of(x, *workload.arguments)
    for name in ("sinkhorn_forward", "sinkhorn_backward"):
        tried = candidates(KERNELS[name], call, DEVICES["h200"])[-1]
        write(tmp_path, [entry(4096, dict(call.key), dict(tried.config), dict(tried.variant))], kernel=name)
    monkeypatch.setattr(store, "folders", lambda: [tmp_path])
    by_kernel = {}
    for candidate in of_kernels(SINKHORN, workload, DEVICES["h200"], len(x)):
        by_kernel.setdefault(candidate.kernel, []).append(candidate)
    assert {k: len(v) for k, v in by_kernel.items()} == {
        "sinkhorn_forward": 2, "sinkhorn_backward": 2, "sinkhorn_backward_history": 1,
    }  # fmt: skip
    assert all(not c.served for c in by_kernel["sinkhorn_backward_history"])
    for candidate in (by_kernel["sinkhorn_forward"][1], by_kernel["sinkhorn_backward_history"][0]):
        truth = truths[candidate.of]
        whole = torch.zeros_like(truth.exact)
        whole[:6] = candidate.run(x, dy).double()
        whole[6:] = truth.exact[6:]
        assert truth.judge(whole).passes


@pytest.mark.parametrize("name", ["implicit_mhc", "implicit_wide_4x8", "implicit_64"])
def test_both_solvers_are_tested_for_every_system(name):
    """The implicit bodies, interpreted; the one that sinkhorn would take is what a call runs."""
    workload, p, dy, truths = ground(name)
    few = slice(0, 6)
    tested = of_kernels(SINKHORN, workload, DEVICES["h200"], 6)
    assert {(c.of, c.kernel.rsplit("_", 1)[1]) for c in tested} == {(of, JUDGED[of][1]) for of in truths}
    solver = solver_for("auto", workload.n, workload.m)
    assert [(c.kernel, c.of) for c in tested if c.served] == [
        (f"sinkhorn_implicit_{solver}", f"implicit dX ({solver})")
    ]
    for candidate in tested:
        truth = truths[candidate.of]
        whole = truth.exact.clone()
        whole[few] = candidate.run(p[few], dy[few]).double()
        assert not torch.equal(whole, truth.exact)
        assert truth.judge(whole).passes


def test_systems_for_comparison_are_tested_where_they_are_meant():
    everything, corrected = set(JUDGED), {"implicit dX (direct)", "implicit dX (cg)"}
    # not square, far from a fixed point, too few steps
    expected = {
        "implicit_mhc": everything, "implicit_masked_8": everything,
        "implicit_wide_4x8": corrected, "implicit_sharp_4": corrected, "implicit_64": corrected,
        "implicit_driver_8": everything - {"implicit dX (full)"},
    }  # fmt: skip
    assert {name: set(ground(name)[3]) for name in expected} == expected


def test_gates_of_sides_that_share_a_call_are_both_tested():
    workload = dataclasses.replace(WORKLOADS["attention_every_gate"], dv=8)
    calls = [call for kernel, call in kernel_calls(workload) if kernel == "linear_attention_gates"]
    assert len(calls) == 2
    assert calls[0] == calls[1]
    tested = of_kernels(LINEAR_ATTENTION, workload, DEVICES["h200"], 4)
    assert [c.of for c in tested if c.kernel == "linear_attention_gates"] == [
        "dgk", "dg", "dg_gamma", "dgv", "dg", "dg_gamma",
    ]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    ["tail_5x3", "mhc_bf16", "implicit_mhc", "implicit_tail_5x3", "attention_packed", "attention_gla_bf16"],
)
def test_kernels_pass_on_this_device(name):
    record = accuracy.judge(name, "cuda", STEPS)
    assert accuracy.failures(record) == []
    if name.startswith("attention"):
        assert {r["of"] for r in record["results"] if r["served"]} == ground(name)[-1].keys()
        return
    served = ["implicit dX (direct)"] if name.startswith("implicit") else ["P", "dX"]
    assert [r["of"] for r in record["results"] if r["served"]] == served
    assert all(r["kernel"] in KERNELS for r in record["results"])


@pytest.mark.parametrize("name", ["quantize_columns", "quantize_mx"])
def test_scales_by_columns_pass(name):
    assert accuracy.failures(accuracy.judge(name, "cpu", STEPS)) == []


ARGUMENTS = "--steps", str(STEPS), "--jobs", "1", "--no-inductor", "--workloads", "mhc_bf16", "tail_5x3"


@pytest.fixture(scope="module")
def artefact(tmp_path_factory):
    """The file of a run of the script on two small workloads, as CI calls it."""
    path = tmp_path_factory.mktemp("accuracy") / "accuracy-cpu.json"

    def called():
        environment = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        printed("-m", "ci.accuracy", *ARGUMENTS, "--out", path.parent, env=environment)
        return path.read_text()

    path.write_text(once(path.stem, called))
    return path


def test_the_artefact_says_what_ran_where(artefact):
    data = json.loads(artefact.read_text())
    assert data["passes"]
    assert data["device"]["key"] == "cpu"
    assert data["versions"]["torch"] == torch.__version__
    assert list(data["workloads"]) == ["mhc_bf16", "tail_5x3"]
    workload, x, dy, _ = ground("tail_5x3")
    record = data["workloads"]["tail_5x3"]
    assert record["inputs"] == accuracy.digest(x, dy)
    assert (record["judged"], record["batch"]) == (len(x), workload.batch)
    result = compare.served(data, "tail_5x3", "P")
    stored = compare.sample(record, result)
    expected = operator_of(workload).candidates(workload, x, dy)[0].run(x, dy)
    assert torch.equal(stored, expected[: len(stored)])
    assert accuracy.digest(expected) == result["digest"]


def test_a_run_that_was_killed_is_gone_on_with(artefact, tmp_path, monkeypatch):
    data = json.loads(artefact.read_text())
    record = data["workloads"]["tail_5x3"]
    data["workloads"]["mhc_bf16"]["kept"] = True
    data["workloads"]["tail_5x3"] = {"error": "not finished after 1 s"}
    path = tmp_path / artefact.name
    path.write_text(json.dumps(data))
    left = []

    def finished_in(options, names, device):
        left.extend(names)
        yield {(name, "judged"): record for name in names}

    monkeypatch.setattr(accuracy, "finished_in", finished_in)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["accuracy.py", *ARGUMENTS, "--out", str(tmp_path), "--resume"])
    assert accuracy.main() == 0
    assert left == ["tail_5x3"]
    workloads = json.loads(path.read_text())["workloads"]
    assert workloads["mhc_bf16"].pop("kept")
    assert workloads == json.loads(artefact.read_text())["workloads"]


@pytest.mark.parametrize("name", ["commit", "versions", "steps"])
def test_records_of_another_run_are_not_kept(artefact, name):
    like = json.loads(artefact.read_text())
    like = {k: like[k] for k in ("schema", "device", "versions", "commit", "steps")}
    assert set(accuracy.finished(artefact, like)) == {"mhc_bf16", "tail_5x3"}
    assert accuracy.finished(artefact, {**like, name: "another"}) == {}


@pytest.fixture
def compared(artefact, tmp_path, capsys, monkeypatch):
    """The comparison of the artefact with one that is changed so -> its exit status, and what it says."""

    def command(change):
        data, other = json.loads(artefact.read_text()), tmp_path / "accuracy-other.json"
        change(data)
        other.write_text(json.dumps(data))
        monkeypatch.setattr(sys, "argv", ["compare.py", str(artefact), str(other), "--out", str(tmp_path)])
        return compare.main(), capsys.readouterr()

    return command


def test_compare_reports_gaps_and_fails_on_limits_only(compared, tmp_path):
    def apart(data):
        data["device"]["key"] = "other"
        result = compare.served(data, "tail_5x3", "P")
        result["digest"] = "0"
        stored = compare.sample(data["workloads"]["tail_5x3"], result).clone()
        stored.view(torch.int32)[0, 0, 0] += 5
        result["sample"] = accuracy.sample(stored)
        data["workloads"]["mhc_bf16"]["inputs"] = "others"

    status, text = compared(apart)
    assert status == 0
    assert "5.0 ulp" in text.out
    assert text.out.count("other inputs") == 2
    assert "5.0 ulp" in (tmp_path / "compare.md").read_text()

    def wrong(data):
        data["device"]["key"] = "wrong"
        compare.served(data, "tail_5x3", "P")["rms"] = 1.5

    status, text = compared(wrong)
    assert status == 1
    assert "wrong: tail_5x3: eager: beyond a limit" in text.err


def test_compare_refuses_another_schema(compared):
    status, text = compared(lambda data: data.update(schema=0))
    assert status == 2
    assert "schema 0" in text.err


@pytest.mark.parametrize(
    ("ends", "status", "verdict"),
    [(0, 0, "nothing found"), (86, 1, "FOUND SOMETHING"), (9, 2, "did not run")],
)
def test_what_compute_sanitizer_says_is_the_verdict(tmp_path, monkeypatch, capsys, ends, status, verdict):
    """With a stand-in for the tool, and kernels that need no GPU."""
    from ci import sanitize

    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\necho '7 launches'\nexit {ends}\n")
    tool.chmod(0o755)
    program = tmp_path / "kernels.py"
    program.write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sanitize, "PROGRAM", (sys.executable, str(program)))
    monkeypatch.setattr(sanitize, "WORKLOADS", sanitize.WORKLOADS[:3])
    monkeypatch.setattr(sys, "argv", ["sanitize.py", "--out", str(tmp_path / "out"), "--tools", "racecheck"])
    assert sanitize.main() == status
    (line,) = [t for t in capsys.readouterr().out.splitlines() if "racecheck" in t]
    assert verdict in line
    assert f"| {7 * len(sanitize.WORKLOADS)} |" in line


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_device_rows_are_known_devices():
    from ci import devices

    assert {row["key"] for row in devices.rows()} <= set(DEVICES)
    assert {"h100", "b200", "mi350"} <= {row["key"] for row in devices.rows()}


@pytest.mark.parametrize("name", ["cpu.yml", "gpu.yml"])
def test_workflows_only_call_make_targets(name):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = re.findall(r"run: (.*)", (ROOT / ".github" / "workflows" / name).read_text())
    assert commands
    for command in commands:
        if command.startswith("echo") and "$(python ci/devices.py" in command:
            # a matrix for other jobs
            continue
        called = re.search(r"make (?:-s )?([a-z-]+)", command)
        assert command == ".ci/run" or (called and called[1] in targets), command


RESULTS = ROOT / "docs" / "dev" / "results.md"


@pytest.mark.parametrize("key", OPERATORS)
def test_the_page_of_results_counts_every_implementation_in_rows_that_are_renewed(key):
    text = RESULTS.read_text()
    (row,) = re.findall(rf"^\| `{key}` \| \d+ in .*$", text, re.M)
    expected = list(map(len, (OPERATORS[key].good, OPERATORS[key].on_many)))
    counts = [int(n) for n in re.findall(r"\| (\d+) in [\d,]+ \|", row)]
    assert counts == expected, "docs/dev/results.md is old: run `make attack WHAT=tables`"
    assert faults.with_row(text, key, ["1 in 1"]) == text.replace(row, f"| `{key}` | 1 in 1 |")


def test_a_page_without_a_row_of_an_operator_is_refused():
    with pytest.raises(ValueError, match="0 rows of counts for `three`"):
        faults.with_row(RESULTS.read_text(), "three", ["3 in 9"])


def test_the_tables_of_faults_name_every_row():
    """accuracy/faults.md, from few elements of the quickest operator."""
    operator = OPERATORS["quantize"]
    text, row = faults.tables(operator, 1 << 10)
    for name in [*operator.good, *(w.name for w in operator.on_many)]:
        assert f"| {name} |" in text
    assert row[0].startswith(f"{len(operator.good)} in ")
    assert row[5].startswith(f"{len(operator.on_many)} in ")


def test_the_repository_keeps_a_line_a_result_without_samples(artefact):
    data = json.loads(artefact.read_text())
    written = kept.text(data)
    shortened = json.loads(written)
    results = [r for w in data["workloads"].values() for r in w["results"]]
    assert sum(line.startswith('{"kernel"') for line in written.splitlines()) == len(results)
    assert any("sample" in r for r in results)
    for name, record in shortened["workloads"].items():
        for short, full in zip(record["results"], data["workloads"][name]["results"], strict=True):
            assert short.keys() == full.keys() - {"sample"}
            assert short["worst"] == pytest.approx(full["worst"], rel=1e-4)
            assert short["passes"] is full["passes"]


def artefact_of(commit, **workloads):
    """An artefact of an H200."""
    facts = {"device": {"key": "h200"}, "utc": "", "command": "", "versions": {}}
    return {**facts, "commit": commit, "workloads": workloads}


def test_a_run_takes_the_place_of_what_it_reached_with_what_it_ran_with(tmp_path, monkeypatch):
    old = artefact_of("a", one={"results": [1]}, two={"results": [2]}, three={"results": [3]})
    new = artefact_of("b", two={"results": [4]}, three={"error": "no"}, four={"results": [5]})
    paths = tmp_path / "new.json", tmp_path / "kept.json"
    for path, artefact in zip(paths, (new, old), strict=True):
        path.write_text(json.dumps(artefact))
    monkeypatch.setattr(sys, "argv", ["kept", *map(str, paths)])
    # of the one that it did not reach
    assert kept.main() == 1
    merged = json.loads(paths[1].read_text())
    assert merged["commit"] == "a"
    records = merged["workloads"].items()
    assert {name: (r["results"], r.get("run", {}).get("commit")) for name, r in records} == {
        "one": ([1], None), "two": ([4], "b"), "three": ([3], None), "four": ([5], "b"),
    }  # fmt: skip
    with pytest.raises(ValueError, match="mi350"):
        kept.updated(old, {**new, "device": {"key": "mi350"}})
