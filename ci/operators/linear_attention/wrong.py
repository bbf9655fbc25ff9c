"""Correct implementations of recurrent linear attention and wrong ones."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch

from ci.gate import wrong
from ci.gate.arithmetic import Arithmetic, bfloat16, keep_bits, truncated
from ci.gate.columns import Change, same
from ci.gate.damage import edited
from ci.gate.products import cut, floored, in_order
from ci.gate.wrong import Results, Run, Wrong, by_eager, everywhere, is_float32, narrow
from ci.operators.linear_attention.steps import (
    EXACT,
    InFloat64,
    Machine,
    by,
    emulated,
    exactly,
    specification,
)
from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.elements import STATES, computed
from helion_sinkhorn.lab.linear_attention.evidence import CHUNKED, of_walks, run
from helion_sinkhorn.lab.linear_attention.model import CHUNK, Named
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.linear_attention import eager

Where = Callable[[AttentionWorkload], bool]
EVERY, SCALED, FORGETTING = (f"attention_{name}" for name in ("every_gate", "scaled", "forgetting"))
GATES = ("g", "g_gamma", "gk", "gv")
LOG2E = 1.4426950408889634
TILE = 64
"""Channels that a program takes for the gradients of gates."""


right = by_eager(run, of_walks)


def by_two(w: torch.Tensor) -> torch.Tensor:
    """exp(w) as the kernels take it."""
    return torch.exp2(w.float() * LOG2E)


def interpreted(w: AttentionWorkload, method: str, case: Case) -> Named:
    """The bodies of the kernels, interpreted by Helion."""
    from helion_sinkhorn.ops.linear_attention.chunked import launch as chunked
    from helion_sinkhorn.ops.linear_attention.recurrent import launch as recurrent

    return case.run_module({"recurrent": recurrent, "chunked": chunked}[method])


def step(machine: Machine) -> Run:
    return by(emulated(machine), ("recurrent",))


def chunks(machine: Machine) -> Run:
    return by(emulated(machine), ("chunked",))


def in_float32(size: int) -> Run:
    """Chunks whose operands nothing rounds but float32."""
    return by(lambda w, method, case: case.cast(torch.float32).evaluated(method, Machine(chunk=size)), (
        "chunked",
    ))  # fmt: skip


NVIDIA = Machine(exp_ulps=2.0, multiply=functools.partial(in_order, depth=8, add=cut))
AMD = Machine(Arithmetic("tree"), exp_ulps=1.0, multiply=functools.partial(in_order, depth=4, add=floored))
VENDORS = {"nvidia": by(emulated(NVIDIA)), "amd": by(emulated(AMD))}
BASELINE = functools.lru_cache(maxsize=1)(by(specification(torch.float32)))
GOOD: dict[str, Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": BASELINE,
    "step by step, the CPU path": right,
    "the kernels' bodies": by(interpreted),
    **{f"step by step, {kind} sums": step(Machine(Arithmetic(kind)))
       for kind in ("sequential", "backwards", "tree")},
    "step by step, sums in float64": step(Machine(sums=InFloat64())),
    "step by step, state in float64": step(Machine(kept_state=torch.Tensor.double)),
    "step by step, exponentials to the base 2": step(Machine(function=by_two)),
    "step by step, NVIDIA functions": step(NVIDIA),
    "step by step, AMD functions": step(AMD),
    **{f"chunks of {size}, in float32": in_float32(size) for size in (16, 32, 64)},
    **{f"chunks of {size}": chunks(Machine(chunk=size)) for size in (16, 32, 64, 128)},
    "chunks, sums in order": chunks(Machine(multiply=functools.partial(in_order, depth=16))),
    "chunks, sums cut (NVIDIA)": chunks(NVIDIA),
    "chunks, sums cut every 4 terms": chunks(
        Machine(multiply=functools.partial(in_order, depth=4, add=cut))
    ),
    "chunks, sums floored (CDNA3)": chunks(AMD),
}  # fmt: skip


def call(**options) -> Run:
    """Right for a call with other options; values may be functions of the workload."""
    return exactly(lambda w, case: dataclasses.replace(
        case, **{name: made(w) if callable(made) else made for name, made in options.items()}
    ))  # fmt: skip


def given(**change: Change) -> Run:
    """Right for other tensors, "do" and "dend" among them."""
    return exactly(lambda w, case: dataclasses.replace(
        case,
        inputs={name: change.get(name, same)(x) for name, x in case.inputs.items()},
        do=change.get("do", same)(case.do),
        dend=None if case.dend is None else change.get("dend", same)(case.dend),
    ))  # fmt: skip


def then(change: Callable[[AttentionWorkload, Case, Named], Named]) -> Run:
    """Right except for results made of the right ones."""
    return exactly(then=change)


def of_first_sequence(w: AttentionWorkload, *tensors: torch.Tensor) -> Results:
    """dg_gamma of the first sequence of a batch, for copies of an element, whose gradients differ."""

    def compute(case: Case) -> Named:
        inputs = {name: x if name == "g_gamma" else x[:1] for name, x in case.inputs.items()}
        dend = None if case.dend is None else case.dend[:1]
        few = dataclasses.replace(case, inputs=inputs, do=case.do[:1], dend=dend)
        return {"dg_gamma": few.run_module(eager)["dg_gamma"]}

    return computed(w, compute, ("dg_gamma",), tensors)


def one_step_late(w: AttentionWorkload, case: Case) -> Case:
    """Gates applied after the update of a step: each step takes the gates of the step before."""
    ahead = -1 if w.reverse else 1
    moved = {n: x.roll(ahead, 1) for n, x in case.inputs.items() if n in ("g", "gk", "gv")}
    return dataclasses.replace(case, inputs=case.inputs | moved)


def one_sequence(w: AttentionWorkload, case: Case) -> Case:
    """The state of a packed sequence goes on into the next: one first state, one gradient of the last."""
    x = {n: t for n, t in case.inputs.items() if n != "cu_seqlens"} | {
        "initial_state": case.inputs["initial_state"][:1]
    }
    return dataclasses.replace(case, inputs=x, dend=case.dend[-1:])


def for_all_sequences(w: AttentionWorkload, case: Case, found: Named) -> Named:
    """The states of one sequence, for every one of a packing."""
    return {name: found[name].expand(len(w.lengths), -1, -1, -1) for name in STATES}


def accumulated(w: AttentionWorkload, x: torch.Tensor) -> torch.Tensor:
    """Sums over a step and all that are walked after it, of one sequence."""
    return x.cumsum(1) if w.reverse else x.flip(1).cumsum(1).flip(1)


def terms(case: Case, found: Named) -> torch.Tensor:
    """What each step adds to the gradient of gk."""
    return case.inputs["q"] * found["dq"] - case.inputs["k"] * found["dk"]


def of_gates(x: torch.Tensor) -> Named:
    """The gradients of gates from the gradient of a gate for every channel."""
    return {"dgk": x, "dg": x.sum(-1), "dg_gamma": x.sum((0, 1, 3))}


def of_last_state(w: AttentionWorkload, case: Case, found: Named) -> torch.Tensor:
    """What the last state and its gradient add to the gradient of gk at every step."""
    meeting = (found["end"] * case.dend).sum(-1)
    if w.lengths:
        return meeting.repeat_interleave(torch.tensor(w.lengths), 0).unsqueeze(0)
    return meeting.unsqueeze(1)


def without_last_state(w: AttentionWorkload, case: Case, found: Named) -> Named:
    meeting = of_gates(of_last_state(w, case, found))
    return {name: found[name] - meeting[name] for name in ("dgk", "dg") if name in found}


def by_a_running_sum(w: AttentionWorkload, method: str, case: Case) -> Named:
    """Gradients of gates as the difference of large sums that a strong gate leaves little of."""
    found, case = emulated(Machine())(w, method, case), case.cast(torch.float32)
    own = accumulated(w, terms(case, found))
    if w.states:
        own = own + of_last_state(w, case, found)
    return found | {name: x for name, x in of_gates(own).items() if name in found}


def of_first_channels(x: torch.Tensor) -> torch.Tensor:
    """The first tile of the channels; the others 0."""
    return x * (torch.arange(x.size(-1)) < TILE)


def has(*names: str) -> Where:
    """Whether a workload has one of these gates."""
    return lambda w: not {*names}.isdisjoint(w.gates.split())


def in_chunks(w: AttentionWorkload) -> bool:
    return w.chunks_serve


def several_chunks(w: AttentionWorkload) -> bool:
    return w.chunks_serve and w.steps > CHUNK


def both(*names: str) -> tuple[str, ...]:
    """Results of both methods."""
    return (*names, *(CHUNKED + name for name in names))


OF_CHUNKS = {
    "no state between them": (Machine(changed={"states": torch.zeros_like}), "o dq", several_chunks),
    "scores without their diagonal": (Machine(changed={"scores": lambda a: a.tril(-1)}), "o dv", in_chunks),
    "operands of TF32": (
        Machine(operands=lambda x: keep_bits(x, 10)), "o dk end", lambda w: is_float32(w) and in_chunks(w)
    ),
    "sums in bfloat16": (Machine(multiply=lambda a, b: bfloat16(a @ b)), "dq dk", in_chunks),
}  # fmt: skip
WRONG = [
    *(Wrong(f"{name} left out", given(**{name: torch.zeros_like}),
            (*both("o", "end", "dk", "dinitial_state"), f"d{name}"), has(name)) for name in GATES),
    Wrong("gates after the update", exactly(one_step_late), both("o", "dv", "dgk"), has("g", "gk", "gv")),
    Wrong("gates clamped at -5", given(gk=lambda x: x.clamp_min(-5.0)), ("o", "dk"), FORGETTING),
    Wrong("gates clamped at -110", given(gk=lambda x: x.clamp_min(-110.0)), ("o", "dk"), FORGETTING,
          hidden="exp(-110) is 0 in float32"),
    Wrong("scale left out", call(scale=1.0), both("o", "dq", "dk", "dv", "dinitial_state"), everywhere),
    Wrong("scale of a caller ignored", call(scale=lambda w: w.dk**-0.5), both("o", "dk"),
          lambda w: w.scale is not None),
    Wrong("direction ignored", call(reverse=lambda w: not w.reverse), (), everywhere),
    Wrong("sequences run into one another", exactly(one_sequence, for_all_sequences),
          ("o", "dq", "end", "dinitial_state"), lambda w: bool(w.lengths)),
    Wrong("first state left out", given(initial_state=torch.zeros_like), both("o", "end", "dgk"),
          lambda w: w.states),
    Wrong("gradient of the last state left out", given(dend=torch.zeros_like),
          both("dk", "dv", "dinitial_state"), lambda w: w.states),
    Wrong("gates without the last state", then(without_last_state), both("dgk", "dg"),
          lambda w: w.states and has("g", "gk")(w)),
    Wrong("gates of one step", then(lambda w, case, found: of_gates(terms(case, found))),
          both("dgk", "dg", "dg_gamma"), has("g", "g_gamma", "gk")),
    Wrong("gates of the first tile of channels", given(q=of_first_channels, k=of_first_channels),
          ("dg", "dg_gamma"), lambda w: w.dk > TILE and has("g", "g_gamma")(w)),
    Wrong("gates by a running sum", by(by_a_running_sum), both("dgk", "dg"),
          lambda w: is_float32(w) and w.strength > 1),
    Wrong("dg_gamma of the first sequence", of_first_sequence, ("dg_gamma",), EVERY),
    Wrong("tokens beyond 64 not walked", given(v=edited(lambda x: x[:, 64:].zero_())), ("o", "dq"), SCALED),
    Wrong("q in bfloat16", given(q=bfloat16), both("o", "dk"), is_float32),
    Wrong("state in bfloat16", by(emulated(Machine(kept_state=bfloat16))), both("o", "dk", "end"),
          everywhere),
    Wrong("state of 16 bits", by(emulated(Machine(kept_state=lambda h: keep_bits(h, 15)))),
          both("o", "dk", "end"), is_float32),
    Wrong("exponential of 12 bits", by(emulated(Machine(exponential=lambda x: keep_bits(x, 12)))),
          both("o", "dk", "dgk"), lambda w: is_float32(w) and bool(w.gates)),
    Wrong("no gradient where a result is unused", then(lambda w, case, found: {
        name: torch.zeros_like(x) for name, x in found.items() if name not in ("o", "end")}),
          both("dk", "dv"), lambda w: bool(w.unused)),
    Wrong("ones for the gradient of an unused result", exactly(lambda w, case: dataclasses.replace(
        case, **{w.unused: torch.ones_like(getattr(case, w.unused))})), both("dq", "dk"),
          lambda w: bool(w.unused)),
    Wrong("no decay above 1", by(emulated(Machine(exponential=lambda x: x.clamp(max=1.0)))),
          both("o", "dk"), lambda w: w.strength < 0),
    Wrong("results truncated", then(lambda w, case, found: {
        name: truncated(w, x.float()) for name, x in found.items() if name not in STATES}),
          both("o", "dk", "dgk"), narrow),
    *(Wrong(f"chunks: {name}", chunks(machine), tuple(CHUNKED + r for r in of.split()), where)
      for name, (machine, of, where) in OF_CHUNKS.items()),
    *wrong.damages(EXACT, both("o", "dk", "end")),
    *wrong.of_any(right, EVERY, "o", -2),
]  # fmt: skip
