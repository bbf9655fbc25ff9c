"""Correct implementations of recurrent linear attention and wrong ones, emulated in PyTorch.

GOOD differs in the order of sums, in functions, and in how steps are taken together, FAULTS in what no
implementation may do.  Each takes (workload, *linear_attention_gate.inputs) and returns results by the names
of the gate, in the dtypes that the operator has.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate import gate
from ci.gate.arithmetic import PLAIN, Arithmetic, bfloat16, keep_bits, off_by, truncated
from ci.gate.damage import DAMAGES
from ci.gate.gate import Fault
from ci.gate.products import cut, floored, in_order
from ci.operators.linear_attention.truths import STATES, alone, case_of, copied, joined, methods, title
from helion_sinkhorn import reference
from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.model import BFLOAT16, CHUNK, Named
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.linear_attention import eager as linear_attention_eager

Change = Callable[[torch.Tensor], torch.Tensor]
LOG2E = 1.4426950408889634
GATES = ("g", "g_gamma", "gk", "gv")


class InFloat64(Arithmetic):
    def sum(self, terms, axis):
        return terms.double().sum(axis, keepdim=True).float()


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@dataclass(frozen=True)
class Machine:
    """Float32 arithmetic, for what testing_linear_attention's evaluations call where a kernel rounds."""

    sums: Arithmetic = PLAIN
    function: Change = torch.exp
    exp_ulps: float = 0.0
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = matmul
    kept_state: Change = same
    exponential: Change = same
    operands: Change = same
    """How operands of matrix units are changed."""
    changed: dict[str, Change] = dataclasses.field(default_factory=dict)
    """The same by name, in place of `operands`."""
    partial: Change = same
    """After every sum."""
    chunk: int = CHUNK
    least: float = 2.0**-4

    def __call__(self, x, size=1.0):
        return x

    def state(self, h):
        return self.kept_state(h)

    def operand(self, x, name):
        return self.changed.get(name, self.operands)(x)

    def exp(self, w, count=1):
        return self.exponential(off_by(self.function(w.float()), self.exp_ulps))

    def running(self, terms, count):
        return terms

    def sum(self, terms, axis, count=None):
        return self.partial(self.sums.sum(terms, axis).squeeze(axis))

    def product(self, a, b):
        return self.partial(self.multiply(a, b))

    def gathered(self, x):
        return x


def for_workload(machine: Machine, w: AttentionWorkload) -> Machine:
    """With the operands of the chunked kernels for the workload's dtype, where it names none."""
    if w.dtype != torch.bfloat16:
        return machine
    changed = machine.changed
    if machine.operands is same:
        machine, changed = dataclasses.replace(machine, operands=bfloat16), {"pairs": in_two_parts} | changed
    return dataclasses.replace(machine, changed=changed, least=BFLOAT16["least"])


def stored(w: AttentionWorkload, results: Named) -> Named:
    """Each in its own dtype."""
    return {n: x.to(torch.float32 if n in STATES else w.dtype) for n, x in results.items()}


Compute = Callable[[AttentionWorkload, str, Case], Named]
"""(workload, method, one element) -> its results."""


def by(compute: Compute, only: tuple[str, ...] = ("recurrent", "chunked")) -> gate.Run:
    """An implementation of the whole workload, element by element, for some of the methods."""

    def single(w: AttentionWorkload, method: str, tensors: list[torch.Tensor]) -> Named:
        found = alone(w, stored(w, compute(w, method, case_of(w, *tensors))))
        if "dg_gamma" in found and narrow(w):
            # seven times what is rounded already would be rounded twice
            several = stored(w, compute(w, method, case_of(w, *copied(w, tensors))))
            found["dg_gamma"] = several["dg_gamma"][None]
        return found

    def run(w: AttentionWorkload, *tensors: torch.Tensor) -> gate.Results:
        elements = [[x[b : b + 1] for x in tensors] for b in range(len(tensors[0]))]
        found = {}
        for method in methods(w):
            if method in only:
                parts = [single(w, method, element) for element in elements]
                found |= {title(method, name): x for name, x in joined(parts).items()}
        return found

    return run


def emulated(
    machine: Machine, change: Callable[[AttentionWorkload, Case], Case] = lambda w, case: case
) -> Compute:
    """The kernels' equations on a machine, for a call that may have been changed."""

    def compute(w: AttentionWorkload, method: str, case: Case) -> Named:
        return change(w, case.cast(torch.float32)).evaluated(method, for_workload(machine, w))

    return compute


def step(machine: Machine) -> gate.Run:
    return by(emulated(machine), ("recurrent",))


def chunks(machine: Machine) -> gate.Run:
    return by(emulated(machine), ("chunked",))


def in_float32(size: int) -> gate.Run:
    """Chunks whose operands nothing rounds but float32."""
    return by(
        lambda w, method, case: case.cast(torch.float32).evaluated(method, Machine(chunk=size)), ("chunked",)
    )


def specification(dtype: torch.dtype) -> Compute:
    """By autograd, with the state of every step kept: its gates' gradients are sums over a state."""
    return lambda w, method, case: case.cast(dtype).run(reference.recurrent_linear_attention)


NVIDIA = Machine(exp_ulps=2.0, multiply=functools.partial(in_order, depth=8, add=cut))
AMD = Machine(Arithmetic("tree"), exp_ulps=1.0, multiply=functools.partial(in_order, depth=4, add=floored))
VENDORS = {"nvidia": by(emulated(NVIDIA)), "amd": by(emulated(AMD))}
BASELINE = functools.lru_cache(maxsize=1)(by(specification(torch.float32)))


def in_two_parts(x: torch.Tensor) -> torch.Tensor:
    """The sum of two bfloat16 numbers that stand for x."""
    return bfloat16(x) + bfloat16(x - bfloat16(x))


def by_two(w: torch.Tensor) -> torch.Tensor:
    """exp(w) as the kernels take it."""
    return torch.exp2(w.float() * LOG2E)


def interpreted(w: AttentionWorkload, method: str, case: Case) -> Named:
    """The bodies of the kernels, interpreted by Helion."""
    from helion_sinkhorn.ops.linear_attention.chunked import launch as linear_attention_chunked_launch
    from helion_sinkhorn.ops.linear_attention.recurrent import launch as linear_attention_launch

    modules = {"recurrent": linear_attention_launch, "chunked": linear_attention_chunked_launch}
    return case.run_module(modules[method])


GOOD: dict[str, gate.Run] = {
    "rounded once from float64": by(specification(torch.float64)),
    "PyTorch float32": BASELINE,
    "step by step, the CPU path": by(
        lambda w, method, case: case.run_module(linear_attention_eager), ("recurrent",)
    ),
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


# ------------------------------------------------------------------------------------------- faults


def replaced(**tensors: Callable[[AttentionWorkload, Case], torch.Tensor | None]):
    """A call with some of its tensors others."""

    def change(w: AttentionWorkload, case: Case) -> Case:
        new = {name: make(w, case) for name, make in tensors.items()}
        given = {name: x for name, x in new.items() if name != "dend"}
        dend = {"dend": new["dend"]} if "dend" in new else {}
        return dataclasses.replace(case, inputs=case.inputs | given, **dend)

    return change


def altered(change, machine: Machine = Machine()) -> gate.Run:
    return by(emulated(machine, change))


def without(name: str) -> gate.Run:
    return altered(replaced(**{name: lambda w, case: 0 * case.inputs[name]}))


def one_step_late(w: AttentionWorkload, case: Case) -> Case:
    """The gates of a step after its update: those of the step before at each."""
    ahead = -1 if w.reverse else 1
    moved = {n: x.roll(ahead, 1) for n, x in case.inputs.items() if n in ("g", "gk", "gv")}
    return dataclasses.replace(case, inputs=case.inputs | moved)


def last_update_dropped(w: AttentionWorkload, case: Case) -> torch.Tensor:
    k = case.inputs["k"].clone()
    k[:, 0 if w.reverse else -1] = 0
    return k


def one_sequence(w: AttentionWorkload, case: Case) -> Case:
    """The state of a packed sequence goes on into the next: one first state, one gradient of the last."""
    x = {n: t for n, t in case.inputs.items() if n != "cu_seqlens"} | {
        "initial_state": case.inputs["initial_state"][:1]
    }
    return dataclasses.replace(case, inputs=x, dend=case.dend[-1:])


def run_into_one_another(w: AttentionWorkload, method: str, case: Case) -> Named:
    found = emulated(Machine(), one_sequence)(w, method, case)
    count = len(w.lengths)
    return {n: x.expand(count, *x.shape[1:]) if n in STATES else x for n, x in found.items()}


def afterwards(change: Callable[[AttentionWorkload, Case, Named], Named]) -> gate.Run:
    """Right results, of which `change` replaces some."""

    def compute(w: AttentionWorkload, method: str, case: Case) -> Named:
        wide = case.cast(torch.float32)
        found = wide.evaluated(method, for_workload(Machine(), w))
        return found | {n: x for n, x in change(w, wide, found).items() if n in found}

    return by(compute)


def accumulated(w: AttentionWorkload, x: torch.Tensor) -> torch.Tensor:
    """Sums over a step and all that are walked after it, of one sequence."""
    return x.cumsum(1) if w.reverse else x.flip(1).cumsum(1).flip(1)


def terms(x: Named, found: Named, **other: torch.Tensor) -> torch.Tensor:
    """What each step adds to the gradient of gk."""
    return x["q"] * other.get("dq", found["dq"]) - x["k"] * found["dk"]


def one_step_of_gates(w, case, found):
    own = terms(case.inputs, found)
    return {"dgk": own, "dg": own.sum(-1), "dg_gamma": own.sum((0, 1, 3))}


def gates_of_rounded_dq(w, case, found):
    error = terms(case.inputs, found, dq=bfloat16(found["dq"])) - terms(case.inputs, found)
    error = accumulated(w, error)
    changes = {"dgk": error, "dg": error.sum(-1), "dg_gamma": error.sum((0, 1, 3))}
    return {name: found[name] + x for name, x in changes.items() if name in found}


def of_last_state(w: AttentionWorkload, case: Case, found: Named) -> torch.Tensor:
    """What the last state and its gradient add to the gradient of gk at every step."""
    meeting = (found["end"] * case.dend).sum(-1)
    if w.lengths:
        return meeting.repeat_interleave(torch.tensor(w.lengths), 0).unsqueeze(0)
    return meeting.unsqueeze(1)


def gates_by_a_running_sum(w, case, found):
    """The difference of large sums that a strong gate leaves little of."""
    own = accumulated(w, terms(case.inputs, found))
    if w.states:
        own = own + of_last_state(w, case, found)
    return {"dgk": own, "dg": own.sum(-1)}


def gates_without_last_state(w, case, found):
    meeting = of_last_state(w, case, found)
    return {n: found[n] - x for n, x in {"dgk": meeting, "dg": meeting.sum(-1)}.items() if n in found}


def of_first_state(change: Change):
    return afterwards(lambda w, case, found: {"dinitial_state": change(found["dinitial_state"])})


def truncating(w: AttentionWorkload, method: str, case: Case) -> Named:
    found = emulated(Machine())(w, method, case)
    return {n: x if n in STATES else truncated(w, x) for n, x in found.items()}


RIGHT = functools.lru_cache(maxsize=1)(by(emulated(Machine())))


def damaged(damage: Change) -> gate.Run:
    return lambda w, *tensors: {name: damage(x) for name, x in RIGHT(w, *tensors).items()}


def damaged_gradients(damage: Change) -> gate.Run:
    def run(w, *tensors):
        found = RIGHT(w, *tensors)
        return {n: x if n.split()[-1] in ("o", "end") else damage(x) for n, x in found.items()}

    return run


def a_little(x: torch.Tensor) -> torch.Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    x.view(-1)[x.abs().argmax()] *= 1 + 2.0**-12
    return x


def has(name: str) -> Callable[[AttentionWorkload], bool]:
    return lambda w: name in w.gates.split()


def gated(w: AttentionWorkload) -> bool:
    return bool(set(w.gates.split()) & {"g", "gk", "gv"})


def single(w: AttentionWorkload) -> bool:
    return w.dtype == torch.float32


def narrow(w: AttentionWorkload) -> bool:
    return not single(w)


def in_chunks(w: AttentionWorkload) -> bool:
    return w.chunks_serve


def unused(w: AttentionWorkload) -> bool:
    return bool(w.unused)


def growing(w: AttentionWorkload) -> bool:
    return w.strength < 0


TILE = 64
"""Channels that a program takes for the gradients of gates."""


def of_first_channels(name: str):
    """The first tile of the channels of q or k; the others 0."""

    def change(w: AttentionWorkload, case: Case) -> torch.Tensor:
        x = case.inputs[name]
        return x * (torch.arange(x.size(-1)) < TILE)

    return change


def several_chunks(w: AttentionWorkload) -> bool:
    return w.chunks_serve and w.steps > CHUNK


def to_float8(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn).float()


CHUNK_FAULTS = {
    "no state between them": (Machine(changed={"states": torch.zeros_like}), several_chunks),
    "state in float8": (Machine(changed={"states": to_float8}), several_chunks),
    "scores without their diagonal": (Machine(changed={"scores": lambda a: a.tril(-1)}), in_chunks),
    "scores of later steps": (Machine(changed={"scores": lambda a: a + a.tril(-1).mT}), in_chunks),
    "scores in float8": (Machine(changed={"scores": to_float8}), in_chunks),
    "operands truncated": (Machine(operands=lambda x: keep_bits(x, 7)), in_chunks),
    "operands of TF32": (
        Machine(operands=lambda x: keep_bits(x, 10)), lambda w: single(w) and in_chunks(w)
    ),
    "sums in bfloat16": (Machine(multiply=lambda a, b: bfloat16(a @ b)), in_chunks),
}  # fmt: skip
FAULTS = [
    *(Fault(f"{name} left out", without(name), where=has(name)) for name in GATES),
    Fault("gates after the update", altered(one_step_late), where=gated),
    Fault("last update dropped", altered(replaced(k=last_update_dropped))),
    Fault("scale left out", altered(lambda w, case: dataclasses.replace(case, scale=1.0))),
    Fault("scale of a caller ignored", altered(lambda w, case: dataclasses.replace(case, scale=w.dk**-0.5)),
          where=lambda w: w.scale is not None),
    Fault("direction ignored", altered(lambda w, case: dataclasses.replace(case, reverse=not case.reverse))),
    Fault("sequences run into one another", by(run_into_one_another), where=lambda w: bool(w.lengths)),
    Fault(
        "first state left out", altered(replaced(initial_state=lambda w, c: 0 * c.inputs["initial_state"])),
        where=lambda w: w.states,
    ),
    Fault(
        "gradient of the last state left out", altered(replaced(dend=lambda w, c: 0 * c.dend)),
        where=lambda w: w.states,
    ),
    Fault("gates without the last state", afterwards(gates_without_last_state),
          where=lambda w: w.states and not {"g", "gk"}.isdisjoint(w.gates.split())),
    Fault("gates of one step", afterwards(one_step_of_gates), ("dgk", "dg", "dg_gamma"),
          lambda w: not {"g", "g_gamma", "gk"}.isdisjoint(w.gates.split())),
    Fault("gates of the first tile of channels",
          altered(replaced(q=of_first_channels("q"), k=of_first_channels("k"))), ("dg", "dg_gamma"),
          lambda w: w.dk > TILE and not {"g", "g_gamma"}.isdisjoint(w.gates.split())),
    Fault("gates by a running sum", afterwards(gates_by_a_running_sum),
          ("dgk", "dg", "chunked dgk", "chunked dg"), lambda w: single(w) and w.strength > 1),
    Fault("gates from dq in bfloat16", afterwards(gates_of_rounded_dq),
          where=lambda w: single(w) and has("gk")(w) and not w.lengths),
    Fault("a neighbour's gradient of the first state", of_first_state(lambda x: x.roll(1, 1)),
          where=lambda w: w.states),
    Fault("no gradient of the first state", of_first_state(torch.zeros_like), where=lambda w: w.states),
    Fault("q in bfloat16", altered(replaced(q=lambda w, c: bfloat16(c.inputs["q"]))), where=single),
    Fault("state in bfloat16", by(emulated(Machine(kept_state=bfloat16)))),
    Fault("state of 16 bits", by(emulated(Machine(kept_state=lambda h: keep_bits(h, 15)))), where=single),
    Fault("bfloat16 accumulator", by(emulated(Machine(partial=bfloat16)))),
    Fault("exponential of 12 bits", by(emulated(Machine(exponential=lambda x: keep_bits(x, 12)))),
          where=lambda w: single(w) and bool(w.gates)),
    Fault("no gradient where a result is unused", damaged_gradients(torch.zeros_like), where=unused),
    Fault("ones for the gradient of an unused result", altered(lambda w, case: dataclasses.replace(
        case, **{w.unused: torch.ones_like(getattr(case, w.unused))})), where=unused),
    Fault("no decay above 1", by(emulated(Machine(exponential=lambda x: x.clamp(max=1.0)))), where=growing),
    Fault("result truncated", by(truncating), where=narrow),
    Fault("one element scaled by 1 + 2^-12", damaged(a_little), where=single),
    *(Fault(f"chunks: {name}", chunks(machine), where=where)
      for name, (machine, where) in CHUNK_FAULTS.items()),
    *(Fault(name, damaged(damage)) for name, damage in DAMAGES.items()),
]  # fmt: skip
