"""From tensors to the walks of recurrent linear attention: o, and the gradient of everything that made it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.kernels import Choice, build, largest_run, launch, power_of_two
from helion_sinkhorn.kernels.linear_attention import ROLES, WalkCall

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
        return cls.of(*vectors, g, g_gamma, grown(gk, dk), grown(gv, dv), *arguments)

    @property
    def sides(self) -> tuple[int, int]:
        """Dk and Dv."""
        return self.q.size(-1), self.v.size(-1)

    @property
    def sequences(self) -> int:
        return self.q.size(0) if self.cu_seqlens is None else self.cu_seqlens.numel() - 1

    @property
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

    def chosen(self, result: str) -> Choice:
        """The stored config for a walk, or the kernel's default."""
        device, _, _ = launch.device_at(launch.index_of(self.q))
        return launch.choose(KERNEL, self.call(result), self.sequences * self.q.size(2), device)


def fitted(size: int) -> int:
    """Entries that a side of the state has in a walk: Helion takes other numbers of them for one another."""
    return max(8, power_of_two(size))


def grown(x: Some, *sizes: int) -> Some:
    """x with zeros behind its last axes; nothing is added to a state, and what it decays there is nothing."""
    if x is None or x.shape[-len(sizes) :] == sizes:
        return x
    behind = [(0, size - have) for have, size in zip(x.shape[-len(sizes) :], sizes, strict=True)]
    return torch.nn.functional.pad(x, [n for pair in reversed(behind) for n in pair])


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
    choice: Choice,
    result: str,
    out: torch.Tensor,
    do: Some = None,
    start: Some = None,
    end: Some = None,
    v_dual: Some = None,
    start_dual: Some = None,
    dgv: Some = None,
    dg: Some = None,
) -> None:
    """One launch: writes out (B, T, H, D) and, where given, the state `end`, dgv and dg."""
    role, call, variant = ROLES[result], p.call(result), dict(choice.variant)
    rk, rv = largest_run(call.summed, variant["rk"]), largest_run(call.kept, variant["rv"])
    tensors = {"q": p.q, "k": p.k, "v": p.v, "do": do}
    q, k, v = [tensors[name] for name in role.operands]
    o_dual = None if v_dual is None else tensors[role.dual]
    gk, gv = (p.gv, p.gk) if role.transposed else (p.gk, p.gv)
    start, end, start_dual = [split_state(x, role.transposed, rk, rv) for x in (start, end, start_dual)]
    launch.run(
        build(KERNEL, choice.config, launch.device_at(launch.index_of(p.q))[2]),
        split(q, rk), split(k, rk), split(v, rv), split(out, rv),
        None if p.g is None else p.g.flatten(0, 1), p.g_gamma, split(gk, rk), split(gv, rv),
        start, end, split(v_dual, rv), split(o_dual, rv), start_dual, split(dgv, rv), dg,
        p.cu_seqlens, p.sequences, p.q.size(1), p.scale,
        variant["count"], p.reverse != role.late, role.late,
    )  # fmt: skip


def walk_o(
    p: Problem, start: Some, end: Some, dtype: torch.dtype | None = None, choice: Choice | None = None
) -> torch.Tensor:
    """o, of the dtype of v or the one given."""
    o = torch.empty_like(p.v, dtype=dtype)
    walk(p, choice or p.chosen("o"), "o", o, start=start, end=end)
    return o


def walk_dq(
    p: Problem, do: torch.Tensor, start: Some, end: Some, choice: Choice | None = None
) -> torch.Tensor:
    """dq, not rounded where the gates will sum it up."""
    dq = torch.empty_like(p.q, dtype=WIDE if p.gates else None)
    walk(p, choice or p.chosen("dq"), "dq", dq, do, start, end)
    return dq


def walk_dk(
    p: Problem, do: torch.Tensor, dend: Some, dq: torch.Tensor, end: Some, choice: Choice | None = None
) -> tuple[torch.Tensor, Some, Some]:
    """(dk, dgk, dg (B T, H) in float32), those gates that are there."""
    choice = choice or p.chosen("dk")
    dk, dgk, dg = torch.empty_like(p.k), None, None
    if p.gk is not None:
        dgk = torch.empty_like(p.gk)
    if p.g is not None or p.g_gamma is not None:
        dg = torch.empty(tiles_of(p, choice), *p.k.flatten(0, 1).shape[:2], dtype=WIDE, device=p.k.device)
    gathers = dgk is not None or dg is not None
    walk(p, choice, "dk", dk, do, dend, None, dq if gathers else None, end if gathers else None, dgk, dg)
    return dk, dgk, None if dg is None else dg.sum(0)


def tiles_of(p: Problem, choice: Choice) -> int:
    """Tiles that the walk of dk cuts Dk into, each with its own part of dg."""
    if launch.device_at(launch.index_of(p.q))[2]:
        return 1
    units = p.k.size(-1) // largest_run(p.k.size(-1), dict(choice.variant)["rv"])
    return -(-units // dict(choice.config)["block_sizes"][0])


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
    walk(p, choice or p.chosen("dv"), "dv", dv, do, dend, dstart, o, None if o is None else end, dgv)
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, last state); the contract is linear_attention.recurrent_linear_attention's."""
    sides = q.size(-1), v.size(-1)
    p = Problem.fitting(q, k, v, g, g_gamma, gk, gv, scale, reverse, cu_seqlens)
    end = p.new_state()
    o = walk_o(p, grown(initial_state, *p.sides), end)
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
) -> list[torch.Tensor]:
    """Gradients of q, k, v and of each of g, g_gamma, gk, gv, initial_state that is there, in this order."""
    dk_size, dv_size = sides = q.size(-1), v.size(-1)
    p = Problem.fitting(q, k, v, g, g_gamma, gk, gv, scale, reverse, cu_seqlens)
    do = torch.zeros_like(p.v) if do is None else grown(do, p.sides[1]).contiguous()
    start, dend = grown(initial_state, *p.sides), grown(dend, *p.sides)
    # gates sum up what reaches a state: for the last one that is the state and its gradient
    end = p.new_state() if p.gates and dend is not None else None
    dq = walk_dq(p, do, start, end)
    dk, dgk, dg = walk_dk(p, do, dend, dq, end)
    # again and not rounded, for the same sums
    o = None if gv is None else walk_o(p, start, None, WIDE)
    dstart = None if initial_state is None else p.new_state()
    dv, dgv = walk_dv(p, do, dend, dstart, o, end)
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
