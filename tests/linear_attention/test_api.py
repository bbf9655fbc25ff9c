"""Recurrent linear attention: the specification, the operator, the body of its kernel, error bounds."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math

import pytest
import torch
from attention_problem import assert_within, workload
from autograd_calls import assert_equal, randn
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from interpreted import FEWER

from helion_sinkhorn import recurrent_linear_attention, reference
from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.evidence import kernel_calls
from helion_sinkhorn.lab.linear_attention.model import METHODS, Errors
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.ops.linear_attention.recurrent import launch as linear_attention_launch
from helion_sinkhorn.ops.linear_attention.recurrent.launch import in_words, split
from helion_sinkhorn.runtime import launch as door

GATES = ("g", "g_gamma", "gk", "gv")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@st.composite
def workloads(draw):
    gates = " ".join(name for name in GATES if draw(st.booleans(), label=name))
    lengths = tuple(draw(st.lists(st.integers(0, 11), max_size=4)))
    steps = sum(lengths) or draw(st.integers(1, 21))
    sizes = st.sampled_from([1, 2, 3, 5, 8, 12, 16])
    return AttentionWorkload(
        "", 1 if sum(lengths) else draw(st.integers(1, 3)), steps, draw(st.integers(1, 3)), draw(sizes),
        draw(sizes), frozenset(), "", gates, draw(st.sampled_from(DTYPES)), draw(st.booleans()),
        draw(st.booleans()), lengths if sum(lengths) else (),
    )  # fmt: skip


@st.composite
def calls(draw):
    """All options of the operator, with gates of a different dtype and of any strength, and a scale."""
    case = Case.of(draw(workloads()), draw(st.integers(0, 3)))
    strength = draw(st.sampled_from([0.0, 1.0, 30.0, 1e4]))
    dtype = draw(st.sampled_from((None, *DTYPES)))
    gates = {name: (strength * x).to(dtype or x.dtype) for name, x in case.inputs.items() if name in GATES}
    if "cu_seqlens" in case.inputs and draw(st.booleans(), label="int64"):
        gates["cu_seqlens"] = case.inputs["cu_seqlens"].long()
    scale = draw(st.sampled_from([None, 0.3, -2.0]))
    return dataclasses.replace(case, inputs=case.inputs | gates, scale=scale)


# ---------------------------------------------------------------------------------- the specification


@pytest.mark.parametrize("function", [reference.recurrent_linear_attention, recurrent_linear_attention])
def test_a_sequence_in_two_parts_is_the_whole(function):
    x = {
        name: t.double()
        for name, t in workload("g gk gv", (2, 9, 2, 3, 4), states=True).make_inputs()[0].items()
    }
    start = x.pop("initial_state")
    whole, end = function(**x, initial_state=start, output_final_state=True)
    first = {name: t[:, :5] for name, t in x.items()}
    last = {name: t[:, 5:] for name, t in x.items()}
    a, middle = function(**first, initial_state=start, output_final_state=True)
    b, after = function(**last, initial_state=middle, output_final_state=True)
    assert_equal((torch.cat((a, b), 1), after), (whole, end))


@pytest.mark.parametrize("function", [reference.recurrent_linear_attention, recurrent_linear_attention])
@pytest.mark.parametrize("reverse", [False, True])
def test_packed_sequences_know_nothing_of_each_other(function, reverse):
    """And steps of no sequence are zeros."""
    w = workload("g gk", (1, 12, 2, 3, 4), states=True, lengths=(5, 0, 1, 6))
    x = w.make_inputs()[0] | {"cu_seqlens": torch.tensor([2, 5, 5, 6, 10])}
    offsets = x.pop("cu_seqlens")
    start = x.pop("initial_state")
    o, end = function(**x, initial_state=start, output_final_state=True, reverse=reverse, cu_seqlens=offsets)
    for n, (a, b) in enumerate(itertools.pairwise(offsets)):
        part = {name: t[:, a:b] for name, t in x.items()}
        alone = function(**part, initial_state=start[n : n + 1], output_final_state=True, reverse=reverse)
        assert_equal((o[:, a:b], end[n : n + 1]), alone)
    assert not o[:, :2].any()
    assert not o[:, 10:].any()


# -------------------------------------------------------------------------- the operator and the kernel


@given(calls())
def test_the_operator_is_within_its_budget(case):
    assert_within(case, case.run(recurrent_linear_attention))


@given(calls())
@FEWER
def test_the_body_is_within_its_budget(case):
    assert_within(case, case.run_module(linear_attention_launch))


@given(calls(), st.sampled_from(["operator", "body"]))
@settings(max_examples=settings.default.max_examples // 12)
def test_a_gate_of_minus_infinity_forgets(case, which):
    gates = {name: case.inputs[name] for name in GATES if name in case.inputs}
    strong = {name: x < x.float().mean() for name, x in gates.items()}
    assume(any(x.any() for x in strong.values()))

    def results(gate):
        some = {name: x.masked_fill(strong[name], gate) for name, x in gates.items()}
        own = dataclasses.replace(case, inputs=case.inputs | some)
        if which == "operator":
            return own.run(recurrent_linear_attention)
        return own.run_module(linear_attention_launch)

    assert_equal(results(-math.inf).values(), results(-1e4).values())


@pytest.mark.parametrize(("name", "side"), [("gk", 3), ("gv", 5)])
def test_padding_does_not_decay_by_g_alone(name, side):
    # g beyond the exponentials of float32, which its neighbour brings back
    w = workload("", (1, 9, 2, 3, 5), states=True)
    plain = Case.of(w)
    opposed = {"g": torch.full((1, 9, 2), 100.0), name: torch.full((1, 9, 2, side), -100.0)}
    case = dataclasses.replace(plain, inputs=plain.inputs | opposed)
    outputs, expected = (c.run_module(linear_attention_launch) for c in (case, plain))
    for result, x in expected.items():
        torch.testing.assert_close(outputs[result], x, rtol=1e-5, atol=1e-5)
    assert all(x.isfinite().all() for x in outputs.values())


LONG = {
    f"attention_{name}"
    for name in (
        "gla_bf16", "chunks_forgetting", "forgetting", "scalar_forgetting", "chunks", "retention", "gla_fp16",
        "ungated",
    )
}  # fmt: skip
LONG_BY_NIGHT = pytest.mark.nightly("2 to 8 s each; drawn calls and the chunks of test_chunked.py run always")


@pytest.mark.parametrize(
    "w",
    [
        pytest.param(w, id=w.name, marks=LONG_BY_NIGHT if w.name in LONG else ())
        for w in tagged("ci", AttentionWorkload)
    ],
)
def test_judged_workloads(w):
    case = Case.of(w)
    for results in (case.run(recurrent_linear_attention), case.run_module(linear_attention_launch)):
        assert_within(case, results)


@given(calls(), st.sampled_from(METHODS))
@FEWER
def test_the_model_without_errors_is_the_specification(case, method):
    # written out a second time, with its gradients by hand
    assume(method == "recurrent" or not {"gv", "cu_seqlens"} & case.inputs.keys())
    modelled = case.wide.evaluated(method, Errors(0, unit=0.0))
    assert modelled.keys() == case.exact.keys()
    for name, exact in case.exact.items():
        scale = exact.abs().max().clamp_min(1e-3) if exact.numel() else 1
        torch.testing.assert_close(modelled[name], exact, rtol=0, atol=float(1e-11 * scale))


@pytest.mark.parametrize("strength", [1 / 8, 8.0, -1 / 8])
def test_the_model_of_chunks_of_states_that_fade_or_grow(strength):
    """Whole chunks, half of which decay, or grow, by more than a pair's two factors have room for."""
    case = Case.of(workload("g gk", (1, 70, 2, 8, 12), states=True, strength=strength)).wide
    modelled = case.evaluated("chunked", Errors(0, unit=0.0))
    for name, exact in case.exact.items():
        torch.testing.assert_close(modelled[name], exact, rtol=0, atol=1e-11 * exact.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rk", "rv", "count"), [(1, 1, 4), (4, 2, 1), (4, 2, 16), (16, 8, 2)])
def test_every_split_of_the_state(monkeypatch, rk, rv, count, dtype):
    """In bfloat16 vectors of the Dk side are words of two entries, but where a thread has one row."""
    choose = door.choose

    def chosen(*arguments):
        return dataclasses.replace(choose(*arguments), variant=(("rk", rk), ("rv", rv), ("count", count)))

    monkeypatch.setattr(door, "choose", chosen)
    case = Case.of(workload("g gk gv", (1, 19, 2, 16, 24), dtype, states=True))
    assert_within(case, case.run_module(linear_attention_launch))


@pytest.mark.parametrize(("reverse", "packed"), [(False, True), (True, False)])
def test_steps_that_are_loaded_together_change_no_bit(reverse, packed, monkeypatch):
    shape, lengths = ((1, 18, 2, 8, 4), (9, 9)) if packed else ((2, 9, 2, 8, 4), ())
    case = Case.of(workload("gk", shape, torch.bfloat16, reverse=reverse, lengths=lengths))
    outputs = []
    for together in (1, 2, 8):
        monkeypatch.setattr(linear_attention_launch, "steps_together", lambda *_, count=together: count)
        outputs.append([*case.run_module(linear_attention_launch).values()])
    assert_equal(outputs[1], outputs[0])
    assert_equal(outputs[2], outputs[0])


NARROW = randn(2, 9, 2, 8, dtype=torch.bfloat16)


def test_words_hold_the_entries_of_a_run():
    """Vectors in bfloat16 are 32-bit words of two entries."""
    words = in_words(split(NARROW, 4))
    assert words.shape == (18, 2, 2, 2)
    assert torch.equal(words.view(torch.bfloat16), split(NARROW, 4))


@pytest.mark.parametrize(
    ("x", "run"),
    [
        (NARROW, 1),
        (torch.zeros(1, 5, 2, 8), 4),
        (torch.zeros(1, 5, 2, 8, dtype=torch.float16), 4),
        (torch.zeros(81, dtype=torch.bfloat16)[1:].view(1, 5, 2, 8), 4),
        (torch.zeros(1, 5, 2, 9, dtype=torch.bfloat16)[..., :8], 4),
        (torch.zeros(1, 5, 8, 2, dtype=torch.bfloat16).mT, 4),
    ],
    ids=["a run of one", "float32", "float16", "off by an entry", "odd strides", "columns first"],
)
def test_what_does_not_lie_so_stays_entries(x, run):
    assert in_words(split(x, run)).dtype == x.dtype


@pytest.mark.parametrize("lengths", [(), (4, 0, 5)])
def test_a_head_and_a_sequence_are_the_same_alone(lengths):
    case = Case.of(workload("g g_gamma gk", (1 if lengths else 2, 9, 2, 4, 6), states=True, lengths=lengths))
    axes = {"g_gamma": 0, "initial_state": 1, "end": 1}

    def last(name, t, axis):
        """The last head, or the last sequence, which only the gradient of g_gamma has none of its own."""
        axis = axes.get(name, 2) if axis == "head" else 0
        return t.narrow(axis, t.size(axis) - 1, 1)

    whole = case.run(recurrent_linear_attention)
    for axis in ("head",) if lengths else ("head", "sequence"):
        shared = {"cu_seqlens"} | ({"g_gamma"} if axis == "sequence" else set())
        alone = dataclasses.replace(
            case,
            inputs={n: t if n in shared else last(n, t, axis) for n, t in case.inputs.items()},
            do=last("do", case.do, axis),
            dend=last("end", case.dend, axis),
        ).run(recurrent_linear_attention)
        assert whole.keys() == alone.keys()
        for name, t in whole.items():
            plain = name.removeprefix("d")
            assert plain in shared or torch.equal(last(plain, t, axis), alone[name]), (name, axis)


# -------------------------------------------------------------------------------------- what is refused


WIDE = {name: randn(2, 9, 2, 129) for name in ("q", "k", "gk")}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"v": randn(2, 9, 2, 6).double()}, TypeError, "v has dtype torch.float64, q torch.float32"),
        ({"q": randn(9, 2, 4)}, ValueError, r"pass \(B, T, H, Dk\)"),
        ({"k": randn(2, 9, 2, 5)}, ValueError, r"k has shape \(2, 9, 2, 5\); .* pass \(2, 9, 2, 4\)"),
        ({"v": randn(2, 9, 3, 6)}, ValueError, r"v has shape \(2, 9, 3, 6\)"),
        ({"v": randn(2, 9, 2, 0)}, ValueError, "Dv 0; a state needs at least one row"),
        ({"g": randn(2, 9, 3)}, ValueError, r"g has shape \(2, 9, 3\); .* pass \(2, 9, 2\)"),
        ({"g_gamma": randn(3)}, ValueError, r"g_gamma has shape \(3,\); .* pass \(2,\)"),
        ({"gk": randn(2, 9, 2, 6)}, ValueError, "gk has shape"),
        ({"gv": randn(2, 9, 2, 4)}, ValueError, "gv has shape"),
        ({"initial_state": randn(1, 2, 4, 6)}, ValueError, r"initial_state has shape \(1, 2, 4, 6\)"),
        ({"cu_seqlens": torch.tensor([0.0, 9.0])}, TypeError, "cu_seqlens has dtype torch.float32"),
        ({"cu_seqlens": [0, 9]}, TypeError, "cu_seqlens is a list"),
        ({"cu_seqlens": torch.tensor([0])}, ValueError, r"cu_seqlens has shape \(1,\)"),
        ({"cu_seqlens": torch.tensor([0, 9])}, ValueError, "q has batch 2 with cu_seqlens"),
        ({"scale": "1"}, TypeError, "scale is '1'; pass a float or None"),
        ({"scale": 10**400}, ValueError, "scale is beyond the range of a float; pass a float or None"),
        ({"scale": math.inf}, ValueError, "scale is inf; pass a finite value"),
        ({"reverse": 1}, TypeError, "reverse is 1; pass True or False"),
        ({"output_final_state": None}, TypeError, "output_final_state is None"),
        ({"method": "fast"}, ValueError, "method is 'fast'; use one of 'auto', 'recurrent', 'chunked'"),
        ({"method": "chunked", "gv": randn(2, 9, 2, 6)}, NotImplementedError, "a decay of the values, gv,"),
        ({"method": "chunked", **WIDE}, NotImplementedError, "chunks take Dk up to 128, this is 129"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_refused(change, error, message):
    x, _, _ = workload("gk").make_inputs()
    with pytest.raises(error, match=message):
        recurrent_linear_attention(**{**x, **change})


@pytest.mark.parametrize("w", [workload(shape=(1, 2, 1, 129, 4)), workload("gv"), workload(lengths=(4, 5))])
def test_workloads_without_chunks(w):
    assert not w.chunks_serve
    assert not any("chunk" in kernel for kernel, _ in kernel_calls(w))


def test_the_reference_has_the_operators_signature():
    own = inspect.signature(recurrent_linear_attention).parameters
    specified = inspect.signature(reference.recurrent_linear_attention).parameters
    assert [*own][: len(specified)] == [*specified]
    assert all(own[name].default == specified[name].default for name in specified)
    assert {*own} - {*specified} == {"method", "implementation"}
