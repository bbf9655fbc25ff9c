"""The arguments of one call of recurrent linear attention, which its launches and its CPU path take."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

from helion_sinkhorn.ops.linear_attention.recurrent.space import SPAN, WalkCall
from helion_sinkhorn.runtime.space import power_of_two
from helion_sinkhorn.runtime.wanted import Some

WIDE = torch.float32
"""The dtype of states and of sums over time."""
GATES = "g", "g_gamma", "gk", "gv"


def padded_side(size: int) -> int:
    """The padded entries of a side of the state in a walk, since Helion confuses other sizes."""
    return max(8, power_of_two(size))


def pad_to(x: Some, *sizes: int, value: float = 0.0) -> Some:
    """x padded with this value at the end of its last axes, so that nothing is added to a state there.

    For gates the value is -inf, since with 0 an infinite g would make NaN of the padding's zeros.
    """
    if x is None or x.shape[-len(sizes) :] == sizes:
        return x
    behind = [(0, size - have) for have, size in zip(x.shape[-len(sizes) :], sizes, strict=True)]
    return torch.nn.functional.pad(x, [n for pair in reversed(behind) for n in pair], value=value)


def unpad(x: Some, *sizes: int) -> Some:
    """Slice off what `pad_to` padded."""
    return None if x is None else x[(..., *map(slice, sizes))].contiguous()


@functools.cache
def walk_call(result: str, dtype: torch.dtype, dk: int, dv: int, gates: str) -> WalkCall:
    return WalkCall(result, str(dtype)[6:], dk, dv, gates)


class Problem(NamedTuple):
    """The operator's arguments, in its order."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: Some
    g_gamma: Some
    gk: Some
    gv: Some
    scale: float
    initial_state: Some = None
    reverse: bool = False
    cu_seqlens: Some = None

    def contiguous(self) -> Problem:
        """The same with contiguous tensors, but for the initial state, which each walk lays out."""
        start = self.initial_state
        made = [x.contiguous() if isinstance(x, torch.Tensor) and x is not start else x for x in self]
        return Problem(*made)

    def fitting(self) -> Problem:
        """The contiguous problem with its sides padded to sizes that a walk takes."""
        dk, dv = map(padded_side, self.sides)
        return Problem(
            pad_to(self.q, dk), pad_to(self.k, dk), pad_to(self.v, dv), self.g, self.g_gamma,
            pad_to(self.gk, dk, value=-math.inf), pad_to(self.gv, dv, value=-math.inf),
            self.scale, pad_to(self.initial_state, dk, dv), self.reverse, self.cu_seqlens,
        ).contiguous()  # fmt: skip

    @property
    def differentiable(self) -> tuple[Some, ...]:
        """The tensors that have gradients, in the order of the gradients."""
        return *self[:7], self.initial_state

    @property
    def sides(self) -> tuple[int, int]:
        """Dk and Dv."""
        return self.q.size(-1), self.v.size(-1)

    @property
    def sequences(self) -> int:
        return self.q.size(0) if self.cu_seqlens is None else self.cu_seqlens.numel() - 1

    @property
    def batch(self) -> int:
        """The number of states that are computed independently."""
        return self.sequences * self.q.size(2)

    @property
    def gates(self) -> str:
        return " ".join([name for name, x in zip(GATES, self[3:7], strict=True) if x is not None])

    def call(self, result: str) -> WalkCall:
        """What the config of one walk is chosen for."""
        return walk_call(result, self.q.dtype, *self.sides, self.gates)

    def new_like(self, x: torch.Tensor) -> torch.Tensor:
        """A result in the shape of x, filled with zeros if offsets may leave steps out."""
        return torch.empty_like(x) if self.cu_seqlens is None else torch.zeros_like(x)

    def new_state(self) -> torch.Tensor:
        """(N, H, Dk, Dv), not yet written."""
        shape = self.sequences, *self.q.shape[2:], self.v.size(3)
        return torch.empty(shape, dtype=WIDE, device=self.q.device)

    def kept_states(self) -> torch.Tensor:
        """(slots, H, Dk, Dv), one for every SPAN steps of each sequence, not yet written."""
        batch, steps, heads, dk = self.q.shape
        slots = batch * -(-steps // SPAN) if self.cu_seqlens is None else steps // SPAN + self.sequences
        return torch.empty((slots, heads, dk, self.v.size(3)), dtype=WIDE, device=self.q.device)
