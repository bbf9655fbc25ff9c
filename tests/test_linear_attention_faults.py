"""The bounds of linear attention tested by wrong implementations: outside, each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from helion_sinkhorn import recurrent_linear_attention, reference
from helion_sinkhorn.testing_linear_attention import judge, run
from helion_sinkhorn.workloads import AttentionWorkload, tagged

WORKLOADS = [w for w in tagged("attention", AttentionWorkload) if w.dtype == torch.float32]
Results = dict[str, torch.Tensor]
SIDES = {
    "g": (..., None, None),
    "g_gamma": (..., None, None),
    "gk": (..., None),
    "gv": (..., None, slice(None)),
}
"""How a gate of one step stands beside a state."""


def emulated(
    *,
    late: bool = False,
    without: str = "",
    state: Callable[[torch.Tensor], torch.Tensor] = lambda h: h,
    skipped: int = 0,
    scaled: bool = True,
    forgets: bool = True,
    turned: bool = False,
    starts: bool = True,
    backwards: bool = False,
):
    """The recurrence in float32 with one thing changed.

    late: gates after the update.  without: a gate left out.  state: applied to it after every step.  skipped:
    steps at the end of a walk.  scaled, starts: the scale and the first state.  forgets: between packed
    sequences.  turned: the wrong way.  backwards: sums in the opposite order, which is right.
    """

    def attend(**x):
        order, offsets = x.pop("reverse") != turned, x.pop("cu_seqlens")
        x.pop("output_final_state")
        q, k, v, start = x["q"], x["k"], x["v"], x.get("initial_state")
        bounds = [0, q.size(1)] if offsets is None else offsets.tolist()
        outputs, ends = {}, []
        h = q.new_zeros(())
        for n, (begin, end) in enumerate(itertools.pairwise(bounds)):
            if forgets or n == 0:
                h = q.new_zeros(q.size(0), q.size(2), q.size(3), v.size(3))
                if start is not None:
                    h = (start if offsets is None else start[n : n + 1]) * (1.0 if starts else 0.0)
            steps = range(begin, end)[::-1] if order else range(begin, end)
            for number, t in enumerate(steps):

                def decayed(h, t=t):
                    for name in ("g", "g_gamma", "gk", "gv"):
                        if name in x:
                            gate = x[name] if name == "g_gamma" else x[name][:, t]
                            gate = gate * 0 if name == without else gate
                            h = h * gate[SIDES[name]].exp()
                    return h

                if not late:
                    h = decayed(h)
                if number < len(steps) - skipped:
                    h = state(h + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2))
                terms = q[:, t].unsqueeze(-1) * h
                o = (terms.flip(-2) if backwards else terms).sum(-2)
                outputs[t] = o * q.size(-1) ** -0.5 if scaled else o
                if late:
                    h = decayed(h)
            ends.append(h)
        return torch.stack([outputs[t] for t in range(q.size(1))], 1), torch.cat(ends)

    def results(w: AttentionWorkload) -> Results:
        return run(attend, w)

    return results


def through(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A value with the gradient of x."""
    return x + (value - x).detach()


def changed(change: Callable[[AttentionWorkload, Results], Results]):
    """The right results with some of them changed."""

    def results(w: AttentionWorkload) -> Results:
        found = run(recurrent_linear_attention, w)
        return {**found, **change(w, dict(found))}

    return results


def scaled_element(name: str):
    def change(w, found):
        x = found[name].clone()
        x.view(-1)[x.abs().argmax()] *= 1 + 2.0**-12
        return {name: x}

    return changed(change)


def without_last_state(w: AttentionWorkload, found: Results) -> Results:
    """Gate gradients that leave out what the last state's gradient adds to every step."""
    meeting = (found["end"] * w.make_inputs()[2]).sum((-1, -2))
    if w.lengths:
        meeting = meeting.repeat_interleave(torch.tensor(w.lengths), 0).unsqueeze(0)
    else:
        meeting = meeting.unsqueeze(1)
    return {"dg": found["dg"] - meeting}


def one_step_of_gates(w: AttentionWorkload, found: Results) -> Results:
    """q dq - k dk of each step, not summed over the later ones."""
    tensors, _, _ = w.make_inputs()
    name, (x, dx, z, dz) = ("dgk", ("q", "dq", "k", "dk"))
    return {name: tensors[x] * found[dx] - tensors[z] * found[dz]}


def gates_of_rounded_dq(w: AttentionWorkload, found: Results) -> Results:
    """dgk summed from dq and dk in bfloat16."""
    tensors, _, _ = w.make_inputs()
    dq, dk = (found[name].bfloat16().float() for name in ("dq", "dk"))
    exact = tensors["q"] * found["dq"] - tensors["k"] * found["dk"]
    error = tensors["q"] * dq - tensors["k"] * dk - exact
    error = error if w.reverse else error.flip(1)
    summed = error.cumsum(1)
    return {"dgk": found["dgk"] + (summed if w.reverse else summed.flip(1))}


GOOD = {
    "the operator": lambda w: run(recurrent_linear_attention, w),
    "the specification in float32": lambda w: run(reference.recurrent_linear_attention, w),
    "the recurrence": emulated(),
    "sums in the opposite order": emulated(backwards=True),
}
FAULTS: dict[str, tuple[Callable[[AttentionWorkload], Results], Callable[[AttentionWorkload], bool]]] = {
    **{f"{name} left out": (emulated(without=name), lambda w, name=name: name in w.gates.split())
       for name in ("g", "g_gamma", "gk", "gv")},
    "gates after the update": (emulated(late=True), lambda w: bool(w.gates)),
    "last update dropped": (emulated(skipped=1), lambda w: True),
    "state in bfloat16": (
        emulated(state=lambda h: through(h, h.detach().bfloat16().float())), lambda w: True
    ),
    "state of 16 bits": (
        emulated(state=lambda h: through(h, (h.detach().view(torch.int32) & -256).view(torch.float32))),
        lambda w: True,
    ),
    "scale left out": (emulated(scaled=False), lambda w: True),
    "sequences run into one another": (emulated(forgets=False), lambda w: bool(w.lengths)),
    "direction ignored": (emulated(turned=True), lambda w: True),
    "first state left out": (emulated(starts=False), lambda w: w.states),
    "gates without the last state": (
        changed(without_last_state), lambda w: w.states and "g" in w.gates.split()
    ),
    "gates of one step": (changed(one_step_of_gates), lambda w: "gk" in w.gates.split()),
    "gates from dq in bfloat16": (changed(gates_of_rounded_dq), lambda w: "gk" in w.gates and not w.lengths),
    "stale gradient of the first state": (
        changed(lambda w, found: {"dstart": found["dstart"].roll(1, 1)}), lambda w: w.states
    ),
    "no gradient of the first state": (
        changed(lambda w, found: {"dstart": found["dstart"] * 0}), lambda w: w.states
    ),
    **{f"one element of {name} scaled by 1 + 2^-12": (scaled_element(name), lambda w: True)
       for name in ("o", "end", "dq", "dk", "dv")},
}  # fmt: skip


TRIED = [(name, w) for name, (_, where) in FAULTS.items() for w in WORKLOADS if where(w)]


@pytest.mark.parametrize("w", WORKLOADS, ids=lambda w: w.name)
@pytest.mark.parametrize("name", GOOD)
def test_correct_implementations_are_inside(name, w):
    ratios = judge(w, GOOD[name](w))
    assert max(ratios.values()) <= 1, ratios


@pytest.mark.parametrize(("name", "w"), TRIED, ids=lambda x: x if isinstance(x, str) else x.name)
def test_faults_are_outside(name, w):
    ratios = judge(w, FAULTS[name][0](w))
    assert max(ratios.values()) > 1, ratios


def test_every_fault_is_tried():
    assert {name for name, _ in TRIED} == set(FAULTS)
