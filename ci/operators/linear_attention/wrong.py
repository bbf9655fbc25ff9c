"""Correct implementations of recurrent linear attention and wrong ones."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch

from ci.gate import wrong
from ci.gate.arithmetic import Arithmetic, bfloat16, keep_bits, rounded_down, truncated
from ci.gate.columns import Change, same
from ci.gate.damage import edited
from ci.gate.products import cut, floored, in_order
from ci.gate.wrong import Run, Wrong, by_eager, everywhere, is_float32, narrow
from ci.operators.linear_attention.steps import (
    EXACT,
    InFloat64,
    Machine,
    by,
    emulated,
    exactly,
    specification,
)
from helion_sinkhorn.lab.linear_attention.budget import STATES, Case, computed
from helion_sinkhorn.lab.linear_attention.evidence import CHUNKED, of_walks, run
from helion_sinkhorn.lab.linear_attention.model import CHUNK, Named
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.linear_attention import eager

Where = Callable[[AttentionWorkload], bool]
EVERY, REVERSE, PACKED, SCALED, FORGETTING = (
    f"attention_{name}" for name in ("every_gate", "reverse", "packed_reverse", "scaled", "forgetting")
)
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
        case, **{name: value(w) if callable(value) else value for name, value in options.items()}
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


def one(of: str, change: Change) -> Run:
    return then(lambda w, case, exact: {of: change(exact[of])} if of in exact else {})


def of_several(compute: Callable[[AttentionWorkload, Case], torch.Tensor]) -> Run:
    """dg_gamma of copies of an element, whose gradients differ."""
    return lambda w, *tensors: computed(
        w, lambda case: {"dg_gamma": compute(w, case)}, ("dg_gamma",), tensors
    )  # fmt: skip


def of_sequences(at: slice) -> Run:
    """dg_gamma of some sequences of a batch."""

    def compute(w: AttentionWorkload, case: Case) -> torch.Tensor:
        inputs = {name: x if name == "g_gamma" else x[at] for name, x in case.inputs.items()}
        dend = None if case.dend is None else case.dend[at]
        few = dataclasses.replace(case, inputs=inputs, do=case.do[at], dend=dend)
        return few.run_module(eager)["dg_gamma"]

    return of_several(compute)


def of_first_packing(w: AttentionWorkload, case: Case) -> torch.Tensor:
    first, count = case.inputs["cu_seqlens"][: len(w.lengths) + 1], len(w.lengths)
    inputs = case.inputs | {"cu_seqlens": first, "initial_state": case.inputs["initial_state"][:count]}
    few = dataclasses.replace(case, inputs=inputs, dend=case.dend[:count])
    return few.run_module(eager)["dg_gamma"]


def one_step_late(w: AttentionWorkload, case: Case) -> Case:
    """Gates applied after the update of a step: each step takes the gates of the step before."""
    ahead = -1 if w.reverse else 1
    moved = {n: x.roll(ahead, 1) for n, x in case.inputs.items() if n in ("g", "gk", "gv")}
    return dataclasses.replace(case, inputs=case.inputs | moved)


def last_update_dropped(w: AttentionWorkload, case: Case) -> Case:
    k = edited(lambda k: k[:, 0 if w.reverse else -1].zero_())(case.inputs["k"])
    return dataclasses.replace(case, inputs=case.inputs | {"k": k})


def one_sequence(w: AttentionWorkload, case: Case) -> Case:
    """The state of a packed sequence goes on into the next: one first state, one gradient of the last."""
    x = {n: t for n, t in case.inputs.items() if n != "cu_seqlens"} | {
        "initial_state": case.inputs["initial_state"][:1]
    }
    return dataclasses.replace(case, inputs=x, dend=case.dend[-1:])


def for_all_sequences(w: AttentionWorkload, case: Case, exact: Named) -> Named:
    """The states of one sequence, for every one of a packing."""
    return {name: exact[name].expand(len(w.lengths), -1, -1, -1) for name in STATES}


def accumulated(w: AttentionWorkload, x: torch.Tensor) -> torch.Tensor:
    """Sums over a step and all that are walked after it, of one sequence."""
    return x.cumsum(1) if w.reverse else x.flip(1).cumsum(1).flip(1)


def terms(case: Case, results: Named) -> torch.Tensor:
    """What each step adds to the gradient of gk."""
    return case.inputs["q"] * results["dq"] - case.inputs["k"] * results["dk"]


def of_gates(x: torch.Tensor) -> Named:
    """The gradients of gates from the gradient of a gate for every channel."""
    return {"dgk": x, "dg": x.sum(-1), "dg_gamma": x.sum((0, 1, 3))}


def of_rounded_dq(w: AttentionWorkload, case: Case, exact: Named) -> Named:
    rounded = exact["dq"].bfloat16().double()
    error = of_gates(accumulated(w, case.inputs["q"] * (rounded - exact["dq"])))
    return {name: exact[name] + error[name] for name in error if name in exact}


def of_last_state(w: AttentionWorkload, case: Case, results: Named) -> torch.Tensor:
    """What the last state and its gradient add to the gradient of gk at every step."""
    meeting = (results["end"] * case.dend).sum(-1)
    if w.lengths:
        return meeting.repeat_interleave(torch.tensor(w.lengths), 0).unsqueeze(0)
    return meeting.unsqueeze(1)


def without_last_state(w: AttentionWorkload, case: Case, exact: Named) -> Named:
    meeting = of_gates(of_last_state(w, case, exact))
    return {name: exact[name] - meeting[name] for name in ("dgk", "dg") if name in exact}


def by_a_running_sum(w: AttentionWorkload, method: str, case: Case) -> Named:
    """Gradients of gates as the difference of large sums that a strong gate leaves little of."""
    results, case = emulated(Machine())(w, method, case), case.cast(torch.float32)
    own = accumulated(w, terms(case, results))
    if w.states:
        own = own + of_last_state(w, case, results)
    return results | {name: x for name, x in of_gates(own).items() if name in results}


def rounding(change: Callable[[AttentionWorkload, torch.Tensor], torch.Tensor]) -> Run:
    """Results of the workload's dtype rounded otherwise."""
    return then(lambda w, case, exact: {
        name: change(w, x.float()) for name, x in exact.items() if name not in STATES
    })  # fmt: skip


def in_last_head(change: Change, axis: int = 2) -> Change:
    return edited(lambda x: x.select(axis, -1).copy_(change(x.select(axis, -1))))


def of_first_channels(x: torch.Tensor) -> torch.Tensor:
    """The first tile of the channels; the others 0."""
    return x * (torch.arange(x.size(-1)) < TILE)


def a_little(x: torch.Tensor) -> torch.Tensor:
    return edited(lambda t: t.view(-1)[t.abs().argmax()].mul_(1 + 2.0**-12))(x)


def to_float8(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn).float()


def has(*names: str) -> Where:
    """Whether a workload has one of these gates."""
    return lambda w: not {*names}.isdisjoint(w.gates.split())


def with_states(w: AttentionWorkload) -> bool:
    return w.states


def unused(w: AttentionWorkload) -> bool:
    return bool(w.unused)


def packed(w: AttentionWorkload) -> bool:
    return bool(w.lengths)


def in_chunks(w: AttentionWorkload) -> bool:
    return w.chunks_serve


def several_chunks(w: AttentionWorkload) -> bool:
    return w.chunks_serve and w.steps > CHUNK


def both(*names: str) -> tuple[str, ...]:
    """Results of both methods."""
    return (*names, *(CHUNKED + name for name in names))


OF_CHUNKS = {
    "no state between them": (Machine(changed={"states": torch.zeros_like}), "o dq", several_chunks),
    "state in float8": (Machine(changed={"states": to_float8}), "o dk", several_chunks),
    "scores without their diagonal": (Machine(changed={"scores": lambda a: a.tril(-1)}), "o dv", in_chunks),
    "scores of later steps": (
        Machine(changed={"scores": lambda a: a + a.tril(-1).mT}), "o dv", in_chunks
    ),
    "scores in float8": (Machine(changed={"scores": to_float8}), "o dv", in_chunks),
    "operands truncated": (Machine(operands=lambda x: keep_bits(x, 7)), "o dk end", in_chunks),
    "operands of TF32": (
        Machine(operands=lambda x: keep_bits(x, 10)), "o dk end", lambda w: is_float32(w) and in_chunks(w)
    ),
    "sums in bfloat16": (Machine(multiply=lambda a, b: bfloat16(a @ b)), "dq dk", in_chunks),
}  # fmt: skip
WRONG = [
    *(Wrong(f"{name} left out", given(**{name: torch.zeros_like}),
            (*both("o", "end", "dk", "dinitial_state"), f"d{name}"), has(name)) for name in GATES),
    Wrong("gates after the update", exactly(one_step_late), both("o", "dv", "dgk"), has("g", "gk", "gv")),
    # an odd step takes the gate of the one before
    Wrong("gates in pairs of steps", given(gk=edited(
        lambda x: x[:, 1::2].copy_(x[:, 0 : 2 * (x.size(1) // 2) : 2]))), ("o", "dgk"), EVERY),
    Wrong("gates in bfloat16", given(gk=bfloat16), ("o", "dk"), EVERY),
    Wrong("gates to the base 2", given(gk=lambda x: x / LOG2E), ("o", "dk"), EVERY),
    Wrong("gates clamped at -5", given(gk=lambda x: x.clamp_min(-5.0)), ("o", "dk"), FORGETTING),
    Wrong("gates clamped at -110", given(gk=lambda x: x.clamp_min(-110.0)), ("o", "dk"), FORGETTING,
          hidden="exp(-110) is 0 in float32"),
    Wrong("gate of one head ignored", given(g=in_last_head(torch.zeros_like)), ("o", "dg"), EVERY),
    Wrong("gv on the rows where sizes allow", given(gv=edited(
        lambda x: x[..., :8].copy_(x[..., :8].flip(-1)))), ("o", "dgv"), EVERY),
    Wrong("last update dropped", exactly(last_update_dropped), both("o", "end", "dv"), everywhere),
    Wrong("scale left out", call(scale=1.0), both("o", "dq", "dk", "dv", "dinitial_state"), everywhere),
    Wrong("scale of a caller ignored", call(scale=lambda w: w.dk**-0.5), both("o", "dk"),
          lambda w: w.scale is not None),
    Wrong("scale left out of dq", then(lambda w, c, exact: {"dq": exact["dq"] / w.scale}), ("dq",), SCALED),
    Wrong("direction ignored", call(reverse=lambda w: not w.reverse), (), everywhere),
    Wrong("sequences run into one another", exactly(one_sequence, for_all_sequences),
          ("o", "dq", "end", "dinitial_state"), packed),
    Wrong("boundary of sequences one token late", given(cu_seqlens=edited(lambda x: x[2:-1].add_(1))),
          ("o", "dk"), PACKED),
    Wrong("an empty sequence takes the state behind it", one(
        "end", lambda t: torch.cat([t[1:2], t[1:]])), ("end",), PACKED),
    Wrong("first state left out", given(initial_state=torch.zeros_like), both("o", "end", "dgk"),
          with_states),
    Wrong("first state transposed in its square part", given(initial_state=edited(
        lambda x: x[..., :8, :8].copy_(x[..., :8, :8].mT.clone()))), ("o", "dq"), EVERY),
    Wrong("first state of the sequence before", given(initial_state=lambda x: x.roll(1, 0)),
          ("o", "end"), PACKED),
    Wrong("first state of 14 bits", given(initial_state=lambda x: keep_bits(x, 13)), ("o", "dq"), EVERY),
    Wrong("gradient of the last state left out", given(dend=torch.zeros_like),
          both("dk", "dv", "dinitial_state"), with_states),
    Wrong("gradient of the last state of one head left out", given(dend=in_last_head(torch.zeros_like, 1)),
          ("dk", "dinitial_state"), EVERY),
    Wrong("gradient of the last state not decayed", given(dend=lambda x: x * 1.02),
          ("dv", "dinitial_state"), EVERY),
    Wrong("a neighbour's gradient of the first state", one("dinitial_state", lambda t: t.roll(1, 1)),
          both("dinitial_state"), with_states),
    Wrong("no gradient of the first state", one("dinitial_state", torch.zeros_like), both("dinitial_state"),
          with_states),
    Wrong("gates without the last state", then(without_last_state), both("dgk", "dg"),
          lambda w: w.states and has("g", "gk")(w)),
    Wrong("gates of one step", then(lambda w, case, exact: of_gates(terms(case, exact))),
          both("dgk", "dg", "dg_gamma"), has("g", "g_gamma", "gk")),
    Wrong("gates of the first tile of channels", given(q=of_first_channels, k=of_first_channels),
          ("dg", "dg_gamma"), lambda w: w.dk > TILE and has("g", "g_gamma")(w)),
    Wrong("gates by a running sum", by(by_a_running_sum), both("dgk", "dg"),
          lambda w: is_float32(w) and w.strength > 1),
    Wrong("gates from dq in bfloat16", then(of_rounded_dq), both("dgk", "dg"),
          lambda w: is_float32(w) and has("gk")(w) and not w.lengths),
    Wrong("gates without their own step", then(lambda w, case, exact: {
        "dgk": exact["dgk"] - terms(case, exact)}), ("dgk",), EVERY),
    Wrong("a part of dgv in dg", then(lambda w, case, exact: {
        "dg": exact["dg"] + 2.0**-10 * exact["dgv"].sum(-1)}), ("dg",), EVERY),
    Wrong("dg without the last channel", then(lambda w, case, exact: {"dg": exact["dgk"][..., :-1].sum(-1)}),
          ("dg",), EVERY),
    Wrong("dg_gamma of the first sequence", of_sequences(slice(1)), ("dg_gamma",), EVERY),
    Wrong("dg_gamma of the last sequence", of_sequences(slice(-1, None)), ("dg_gamma",), SCALED),
    Wrong("dg_gamma of the first packing", of_several(of_first_packing), ("dg_gamma",), PACKED),
    Wrong("dg_gamma a mean over the batch", of_several(
        lambda w, case: case.run_module(eager)["dg_gamma"] / len(case.do)), ("dg_gamma",), SCALED),
    Wrong("dg_gamma with heads exchanged", one("dg_gamma", lambda t: t.flip(0)), ("dg_gamma",), EVERY),
    Wrong("dg_gamma summed in bfloat16", then(lambda w, case, exact: {
        "dg_gamma": exact["dg"].bfloat16().sum((0, 1))}), ("dg_gamma",), SCALED),
    Wrong("first token read for the last", given(q=edited(lambda x: x[:, -1].copy_(x[:, 0]))), ("o",), EVERY),
    Wrong("tokens beyond 64 not walked", given(v=edited(lambda x: x[:, 64:].zero_())), ("o", "dq"), SCALED),
    Wrong("heads exchanged in v", given(v=lambda x: x.flip(2)), ("o",), EVERY),
    Wrong("last lane of k taken for padding", given(k=edited(lambda x: x[..., -1].zero_())), ("o", "dq"),
          EVERY),
    Wrong("q in bfloat16", given(q=bfloat16), both("o", "dk"), is_float32),
    Wrong("keys in half precision", given(k=lambda x: x.half().float()), ("o", "dq"), EVERY),
    Wrong("upstream gradient in bfloat16", given(do=bfloat16), ("dq", "dk", "dv"), EVERY),
    Wrong("upstream gradient one token late", given(do=lambda x: x.roll(1, 1)), ("dq", "dk", "dv"), EVERY),
    Wrong("state in bfloat16", by(emulated(Machine(kept_state=bfloat16))), both("o", "dk", "end"),
          everywhere),
    Wrong("state of 16 bits", by(emulated(Machine(kept_state=lambda h: keep_bits(h, 15)))),
          both("o", "dk", "end"), is_float32),
    Wrong("bfloat16 accumulator", by(emulated(Machine(partial=bfloat16))), both("o", "dk"), everywhere),
    Wrong("exponential of 12 bits", by(emulated(Machine(exponential=lambda x: keep_bits(x, 12)))),
          both("o", "dk", "dgk"), lambda w: is_float32(w) and bool(w.gates)),
    Wrong("no gradient where a result is unused", then(lambda w, case, exact: {
        name: torch.zeros_like(x) for name, x in exact.items() if name not in ("o", "end")}),
          both("dk", "dv"), unused),
    Wrong("ones for the gradient of an unused result", exactly(lambda w, case: dataclasses.replace(
        case, **{w.unused: torch.ones_like(getattr(case, w.unused))})), both("dq", "dk"), unused),
    Wrong("no decay above 1", by(emulated(Machine(exponential=lambda x: x.clamp(max=1.0)))),
          both("o", "dk"), lambda w: w.strength < 0),
    Wrong("results truncated", rounding(truncated), both("o", "dk", "dgk"), narrow),
    Wrong("rounded down at the store", rounding(rounded_down), ("o",), "attention_retention"),
    Wrong("one element scaled by 1 + 2^-12", wrong.damaged(EXACT, a_little), both("o", "dg"), is_float32),
    *(Wrong(f"chunks: {name}", chunks(machine), tuple(CHUNKED + r for r in of.split()), where)
      for name, (machine, of, where) in OF_CHUNKS.items()),
    *wrong.damages(EXACT, both("o", "dk", "end")),
    *wrong.of_any(right, EVERY, "o", -2),
]  # fmt: skip
