"""The inputs of `--op recurrent_linear_attention`, its backends, and the bounds of their results."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from helion_sinkhorn import recurrent_linear_attention, reference
from helion_sinkhorn.lab.linear_attention.budget import Case, limits
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.lab.rounding import SAMPLES, half_ulp
from helion_sinkhorn.ops.linear_attention.chunked.space import why_not_chunked
from tritonbench_ops import flags
from tritonbench_ops.bounds import largest_share
from tritonbench_ops.flags import BASELINE, GATES, INDUCTOR
from tritonbench_ops.judged import Judged, compiled
from tritonbench_ops.measure import of_mode

NAMES = ("q", "k", "v", *GATES)
Inputs = tuple[torch.Tensor | None, ...]
"""NAMES, None for a gate that is not there."""
Attend = Callable[..., torch.Tensor]
"""Inputs -> o."""
COMPILED_STEPS = 64
"""Most steps that torch.compile is given: it writes every one out, and takes minutes for a thousand."""

parse = flags.parser("recurrent_linear_attention").parse_args
cases = functools.partial(flags.bench, "recurrent_linear_attention", AttentionWorkload)
LEAVES = len(NAMES)


def inputs(case: AttentionWorkload, device: torch.device | str) -> tuple[torch.Tensor | None, ...]:
    """NAMES, None for a gate that is not there, and the upstream gradient."""
    tensors, do, _ = case.make_inputs(device=device)
    return *(tensors.get(name) for name in NAMES), do


def x_value(case: AttentionWorkload) -> str:
    """An input as tables show it."""
    there = "+".join(name for name in GATES if name in case.gates.split())
    return f"{case.sequences}x{case.steps}x{case.heads}x{case.dk} {case.dv} {there or 'plain'}"


def operations(case: AttentionWorkload) -> float:
    """Floating-point operations of forward: each step adds k v' to the state and multiplies q by it."""
    return 4.0 * case.sequences * case.steps * case.heads * case.dk * case.dv


def bytes_moved(case: AttentionWorkload, mode: str) -> int:
    """Bytes of every tensor moved once: arguments and o; upstream gradient, arguments and their gradients."""
    *arguments, o = (x.nbytes for x in inputs(case, "meta") if x is not None)
    forward, backward = sum(arguments) + o, 2 * sum(arguments) + o
    return of_mode(mode, forward, backward)


@dataclass(frozen=True)
class Backend:
    """One row of BACKENDS."""

    build: Callable[[], Attend]
    method: str = "recurrent"
    """Whose error budget its results are compared with."""
    refuses: Callable[..., str] = lambda *inputs: ""
    """Why it does not take these inputs; empty where it does."""
    peer: bool = False
    """Whether it is another package's: may be absent, refuse a call or miss the budget, unless named."""
    missing: str = ""
    """Why it cannot run here; empty where it can."""


def eager(*inputs: torch.Tensor | None) -> torch.Tensor:
    """The specification in float32, rounded to the inputs' dtype."""
    named = {name: x.float() for name, x in zip(NAMES, inputs, strict=True) if x is not None}
    return reference.recurrent_linear_attention(**named).to(inputs[2].dtype)


def too_long(q: torch.Tensor, *others: torch.Tensor | None) -> str:
    if q.size(1) <= COMPILED_STEPS:
        return ""
    return f"writes all steps out: given T up to {COMPILED_STEPS}, this is {q.size(1)}; pass --steps"


def not_in_chunks(*inputs: torch.Tensor | None) -> str:
    return why_not_chunked(inputs[6] is not None, False, inputs[0].size(3))


def ours(method: str) -> Attend:
    def attend(*inputs: torch.Tensor | None) -> torch.Tensor:
        return recurrent_linear_attention(**dict(zip(NAMES, inputs, strict=True)), method=method)

    return attend


def other_gates(q, k, v, g, g_gamma, gk, gv) -> str:
    """What flash-linear-attention's gated linear attention does not compute."""
    there = [name for name, x in zip(GATES, (g, g_gamma, gk, gv), strict=True) if x is not None]
    if not q.is_cuda:
        return "runs on GPUs only"
    return "" if there == ["gk"] else f"computes --gates gk, not {' '.join(there) or 'none'}"


def flash(name: str) -> Attend:
    from fla.ops import gla

    function = getattr(gla, name)
    return lambda q, k, v, g, g_gamma, gk, gv: function(q, k, v, gk)[0]


ABSENT = "" if importlib.util.find_spec("fla") else "flash-linear-attention is not installed"
BACKENDS = {
    BASELINE: Backend(lambda: eager),
    INDUCTOR: Backend(functools.partial(compiled, eager), refuses=too_long),
    "helion_recurrent": Backend(functools.partial(ours, "recurrent")),
    "helion_chunked": Backend(functools.partial(ours, "chunked"), "chunked", not_in_chunks),
    "fla_fused_recurrent_gla": Backend(
        functools.partial(flash, "fused_recurrent_gla"), "recurrent", other_gates, True, ABSENT
    ),
    "fla_chunk_gla": Backend(functools.partial(flash, "chunk_gla"), "chunked", other_gates, True, ABSENT),
}
PIECE_STATES = 1 << 30
"""Entries of the states that the error model keeps at a time, of all its runs."""
Named = dict[str, torch.Tensor]


def pieces(inputs: Inputs, do: torch.Tensor) -> Iterator[tuple[tuple[slice, ...], Case]]:
    """(where, what is given there) of some heads of one sequence at a time."""
    leaves = {name: x.detach() for name, x in zip(NAMES, inputs, strict=True) if x is not None}
    batch, steps, heads, dk = leaves["q"].shape
    together = max(1, PIECE_STATES // (SAMPLES * steps * dk * leaves["v"].size(3)))
    for sequence, first in itertools.product(range(batch), range(0, heads, together)):
        at = slice(sequence, sequence + 1), slice(None), slice(first, first + together)
        part = {name: x[at[2]] if x.dim() == 1 else x[at] for name, x in leaves.items()}
        yield at, Case(part, do[at])


def joined(like: Named, parts: Iterable[tuple[tuple[slice, ...], Named]]) -> Named:
    """The results of all pieces joined; the gradient of g_gamma is summed over sequences."""
    wholes = {name: torch.zeros(x.shape, dtype=torch.float64) for name, x in like.items()}
    for at, part in parts:
        for name, whole in wholes.items():
            if whole.dim() == 1:
                whole[at[2]] += part[name].cpu()
            else:
                whole[at] = part[name].cpu()
    return wholes


def results_like(inputs: Inputs) -> Named:
    """The arguments by the names of what has their shape: o and all gradients."""
    leaves = {f"d{name}": x for name, x in zip(NAMES, inputs, strict=True) if x is not None}
    return {"o": inputs[2], **leaves}


def exact_results(inputs: Inputs, do: torch.Tensor) -> Named:
    """o and all gradients in float64."""
    return joined(results_like(inputs), ((at, case.exact) for at, case in pieces(inputs, do)))


def budgets(inputs: Inputs, do: torch.Tensor, method: str) -> Named:
    """What each entry of these may be off by before it is rounded to its own dtype."""
    parts = ((at, case.variance(method)) for at, case in pieces(inputs, do))
    return limits(joined(results_like(inputs), parts))


def share_of_budget(
    inputs: Inputs,
    exact: Named,
    allowed: Named,
    o: torch.Tensor | None,
    gradients: Sequence[torch.Tensor] | None,
) -> float:
    """The largest error of all entries, each in units of its own budget.

    Args:
        exact: of `exact_results`.
        allowed: of `budgets`.
        gradients: of the inputs that are there, in their order.
    """
    like = results_like(inputs)
    results = {"o": o} | dict(zip([*like][1:], gradients or (), strict=False))
    return max(
        largest_share(x, exact[name], allowed[name] + half_ulp(exact[name], like[name].dtype))
        for name, x in results.items()
        if x is not None
    )


class Operator(Judged):
    """Recurrent linear attention; an input is (q, k, v, g, g_gamma, gk, gv, (upstream gradient,))."""

    label = "BxTxHxDk Dv gates"

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.refused = set()

    def held_to(self, name):
        # of a plugin's backend nothing is known
        return BACKENDS[name].method if name in BACKENDS else "recurrent"

    def errors_of(self, name, *results):
        *given, (do,) = self.example_inputs
        method = self.held_to(name)
        exact = self.once("exact", lambda: exact_results(given, do))
        allowed = self.once(("budgets", method), lambda: budgets(given, do, method))
        return share_of_budget(given, exact, allowed, *results)

    def built(self, name, backend, *inputs):
        why = backend.missing or backend.refuses(*inputs[:-1])
        if why:
            self.refused.add(name)
            raise NotImplementedError(why)
        return super().built(name, backend.build, *inputs)

    def required(self):
        must, judged = super().required()
        left = [n for n in must if self.named or (n not in self.refused and not BACKENDS[n].peer)]
        return left, judged.intersection(left)
