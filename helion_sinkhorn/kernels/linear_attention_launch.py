"""From tensors to the walks of recurrent linear attention: o, and the gradient of everything that made it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from helion_sinkhorn.configs.store import Key
from helion_sinkhorn.kernels import Choice
from helion_sinkhorn.kernels.linear_attention import ROLES, WalkCall
from helion_sinkhorn.kernels.serving import NO_CHOICES, Choices, Served, again, alike, run_and_keep, serve
from helion_sinkhorn.kernels.space import largest_run, power_of_two
from helion_sinkhorn.workloads import AttentionWorkload, tagged

KERNEL = "linear_attention_walk"
WIDE = torch.float32
"""Of states, and of what sums over time add up."""
Some = torch.Tensor | None


@dataclass(frozen=True)
class Problem:
    """What every walk of one call shares; the arguments of the operator, contiguous."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: Some
    g_gamma: Some
    gk: Some
    gv: Some
    scale: float
    reverse: bool
    cu_seqlens: Some

    @classmethod
    def of(cls, *arguments) -> Problem:
        return cls(*[x.contiguous() if isinstance(x, torch.Tensor) else x for x in arguments])

    @classmethod
    def fitting(cls, q, k, v, g, g_gamma, gk, gv, *arguments) -> Problem:
        """The same with sides that a walk takes."""
        dk, dv = fitted(q.size(-1)), fitted(v.size(-1))
        vectors = grown(q, dk), grown(k, dk), grown(v, dv)
        gates = g, g_gamma, grown(gk, dk, value=-math.inf), grown(gv, dv, value=-math.inf)
        return cls.of(*vectors, *gates, *arguments)

    @property
    def sides(self) -> tuple[int, int]:
        """Dk and Dv."""
        return self.q.size(-1), self.v.size(-1)

    @property
    def sequences(self) -> int:
        return self.q.size(0) if self.cu_seqlens is None else self.cu_seqlens.numel() - 1

    @property
    def batch(self) -> int:
        """States that are walked independently."""
        return self.sequences * self.q.size(2)

    @functools.cached_property
    def gates(self) -> str:
        """Those that are there, by name."""
        return " ".join(name for name in ("g", "g_gamma", "gk", "gv") if getattr(self, name) is not None)

    def call(self, result: str) -> WalkCall:
        """What the config of one walk is chosen for."""
        return WalkCall(result, str(self.q.dtype)[6:], self.k.size(-1), self.v.size(-1), self.gates)

    def new_state(self) -> torch.Tensor:
        """(N, H, Dk, Dv), not yet written."""
        shape = self.sequences, *self.q.shape[2:], self.v.size(3)
        return torch.empty(shape, dtype=WIDE, device=self.q.device)


def calls_of(workload: AttentionWorkload) -> Iterator[WalkCall]:
    """The walks of a workload's forward and backward."""
    dk, dv = fitted(workload.dk), fitted(workload.dv)
    for result in ROLES:
        yield WalkCall(result, str(workload.dtype)[6:], dk, dv, workload.gates)


@functools.cache
def tuned_keys() -> frozenset[Key]:
    """Keys, without the batch, that `make tune` covers."""
    return frozenset(call.key for w in tagged("tune", AttentionWorkload) for call in calls_of(w))


def fitted(size: int) -> int:
    """Entries that a side of the state has in a walk: Helion takes other numbers of them for one another."""
    return max(8, power_of_two(size))


def grown(x: Some, *sizes: int, value: float = 0.0) -> Some:
    """x with this value behind its last axes: nothing is added to a state there.

    Of gates it is -inf, since a decay of inf, by g alone, would make NaN of nothing.
    """
    if x is None or x.shape[-len(sizes) :] == sizes:
        return x
    behind = [(0, size - have) for have, size in zip(x.shape[-len(sizes) :], sizes, strict=True)]
    return torch.nn.functional.pad(x, [n for pair in reversed(behind) for n in pair], value=value)


def cut(x: Some, *sizes: int) -> Some:
    """What `grown` was given."""
    return None if x is None else x[(..., *map(slice, sizes))].contiguous()


def split(x: Some, run: int) -> Some:
    """(B, T, H, D) as (tokens, H, D / run, run)."""
    return None if x is None else x.flatten(0, 1).unflatten(-1, (-1, run))


def split_state(x: Some, transposed: bool, rk: int, rv: int) -> Some:
    """(N, H, Dk, Dv) as the (N, H, ck, rk, cv, rv) of a walk."""
    if x is None:
        return None
    return (x.mT if transposed else x).unflatten(-1, (-1, rv)).unflatten(-3, (-1, rk))


def walk(
    p: Problem,
    result: str,
    out: torch.Tensor,
    do: Some = None,
    start: Some = None,
    end: Some = None,
    v_dual: Some = None,
    start_dual: Some = None,
    dgv: Some = None,
    gathers: bool = False,
    choice: Choice | None = None,
) -> Some:
    """One launch: writes out (B, T, H, D) and, where given, the state `end` and dgv.

    Returns:
        with `gathers` the sums of dgv in every tile of the result, (tiles, tokens, H).
    """
    role, call = ROLES[result], p.call(result)
    named = {"q": p.q, "k": p.k, "v": p.v, "do": do}
    q, k, v = [named[name] for name in role.operands]
    o_dual = None if v_dual is None else named[role.dual]
    gk, gv = (p.gv, p.gk) if role.transposed else (p.gk, p.gv)
    dg = None

    def launch(served: Served) -> None:
        nonlocal dg
        variant = dict(served.choice.variant)
        rk, rv = largest_run(call.summed, variant["rk"]), largest_run(call.kept, variant["rv"])
        if gathers:
            tiles = 1 if served.interpret else tiles_of(call, served.choice, rv)
            dg = torch.empty((tiles, *p.q.flatten(0, 1).shape[:2]), dtype=WIDE, device=p.q.device)
        constants = (
            p.sequences, p.q.size(1), p.scale, variant["count"], p.reverse != role.late, role.late
        )  # fmt: skip
        tensors = (
            q, k, v, out, p.g, p.g_gamma, gk, gv, start, end, v_dual, o_dual, start_dual, dgv, dg,
            p.cu_seqlens,
        )  # fmt: skip
        key = served.choice, result, constants, alike(*tensors)
        if again(key, *tensors):
            return
        first, last, dual = [split_state(x, role.transposed, rk, rv) for x in (start, end, start_dual)]
        views = (
            split(q, rk), split(k, rk), split(v, rv), split(out, rv),
            None if p.g is None else p.g.flatten(0, 1), p.g_gamma, split(gk, rk), split(gv, rv),
            first, last, split(v_dual, rv), split(o_dual, rv), dual, split(dgv, rv), dg, p.cu_seqlens,
        )  # fmt: skip
        run_and_keep(served.kernel, views, constants, tensors, key)

    serve(KERNEL, call, p.batch, p.q, launch, tuned_keys, choice)
    return dg


def tiles_of(call: WalkCall, choice: Choice, rv: int) -> int:
    """Tiles that a walk cuts its result into, which has runs of rv entries."""
    return -(-(call.kept // rv) // dict(choice.config)["block_sizes"][0])


def walk_o(
    p: Problem, start: Some, end: Some, dtype: torch.dtype | None = None, choice: Choice | None = None
) -> torch.Tensor:
    """o, of the dtype of v or the one given."""
    o = torch.empty_like(p.v, dtype=dtype)
    walk(p, "o", o, start=start, end=end, choice=choice)
    return o


def walk_dq(
    p: Problem, do: torch.Tensor, start: Some, end: Some, choice: Choice | None = None
) -> torch.Tensor:
    """dq, in float32 where the gates will sum it up."""
    dq = torch.empty_like(p.q, dtype=WIDE if p.gates else None)
    walk(p, "dq", dq, do, start, end, choice=choice)
    return dq


def walk_dk(
    p: Problem, do: torch.Tensor, dend: Some, dq: torch.Tensor, end: Some, choice: Choice | None = None
) -> tuple[torch.Tensor, Some, Some]:
    """(dk, dgk, dg (B T, H) in float32), those gates that are there."""
    dk, dgk = torch.empty_like(p.k), None if p.gk is None else torch.empty_like(p.gk)
    of_steps = p.g is not None or p.g_gamma is not None
    gathers = dgk is not None or of_steps
    dual, start_dual = (dq, end) if gathers else (None, None)
    dg = walk(p, "dk", dk, do, dend, None, dual, start_dual, dgk, of_steps, choice)
    return dk, dgk, None if dg is None else dg.sum(0)


def walk_dv(
    p: Problem,
    do: torch.Tensor,
    dend: Some,
    dstart: Some,
    o: Some,
    end: Some,
    choice: Choice | None = None,
) -> tuple[torch.Tensor, Some]:
    """(dv, dgv where it is there); dstart receives the gradient of the first state."""
    dv, dgv = torch.empty_like(p.v), None if p.gv is None else torch.empty_like(p.gv)
    walk(p, "dv", dv, do, dend, dstart, o, None if o is None else end, dgv, choice=choice)
    return dv, dgv


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: Some,
    g_gamma: Some,
    gk: Some,
    gv: Some,
    scale: float,
    initial_state: Some,
    reverse: bool,
    cu_seqlens: Some,
    choices: Choices = NO_CHOICES,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, last state); the contract is linear_attention.recurrent_linear_attention's.

    choices: by the result of the walk, where the caller has one of its own.
    """
    sides = q.size(-1), v.size(-1)
    p = Problem.fitting(q, k, v, g, g_gamma, gk, gv, scale, reverse, cu_seqlens)
    end = p.new_state()
    o = walk_o(p, grown(initial_state, *p.sides), end, None, choices.get("o"))
    return cut(o, sides[1]), cut(end, *sides)


def backward(
    do: Some,
    dend: Some,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: Some,
    g_gamma: Some,
    gk: Some,
    gv: Some,
    scale: float,
    initial_state: Some,
    reverse: bool,
    cu_seqlens: Some,
    choices: Choices = NO_CHOICES,
) -> list[torch.Tensor]:
    """Gradients of q, k, v and of each of g, g_gamma, gk, gv, initial_state that is there, in this order."""
    dk_size, dv_size = sides = q.size(-1), v.size(-1)
    p = Problem.fitting(q, k, v, g, g_gamma, gk, gv, scale, reverse, cu_seqlens)
    do = torch.zeros_like(p.v) if do is None else grown(do, p.sides[1]).contiguous()
    start, dend = grown(initial_state, *p.sides), grown(dend, *p.sides)
    # gates sum up what reaches a state: for the last one that is the state and its gradient
    end = p.new_state() if p.gates and dend is not None else None
    dq = walk_dq(p, do, start, end, choices.get("dq"))
    dk, dgk, dg = walk_dk(p, do, dend, dq, end, choices.get("dk"))
    # again and not rounded, for the same sums
    o = None if gv is None else walk_o(p, start, None, WIDE, choices.get("o"))
    dstart = None if initial_state is None else p.new_state()
    dv, dgv = walk_dv(p, do, dend, dstart, o, end, choices.get("dv"))
    found = (
        cut(dq.to(q.dtype), dk_size),
        cut(dk, dk_size),
        cut(dv, dv_size),
        None if g is None else dg.view(g.shape).to(g.dtype),
        None if g_gamma is None else dg.sum(0).to(g_gamma.dtype),
        cut(dgk, dk_size),
        cut(dgv, dv_size),
        cut(dstart, *sides),
    )
    return [x for x in found if x is not None]
