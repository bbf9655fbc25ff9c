"""The arguments of one call of recurrent linear attention, as its launches take them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from helion_sinkhorn.ops.linear_attention.recurrent.space import SPAN, WalkCall
from helion_sinkhorn.runtime.space import power_of_two

WIDE = torch.float32
"""The dtype of states and of sums over time."""
Some = torch.Tensor | None


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


@dataclass(frozen=True)
class Problem:
    """What all walks of one call share: the operator's arguments, contiguous."""

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
        """The problem with its sides padded to sizes that a walk takes."""
        dk, dv = padded_side(q.size(-1)), padded_side(v.size(-1))
        vectors = pad_to(q, dk), pad_to(k, dk), pad_to(v, dv)
        gates = g, g_gamma, pad_to(gk, dk, value=-math.inf), pad_to(gv, dv, value=-math.inf)
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
        """The number of states that are computed independently."""
        return self.sequences * self.q.size(2)

    @functools.cached_property
    def gates(self) -> str:
        """The names of the given gates."""
        return " ".join(name for name in ("g", "g_gamma", "gk", "gv") if getattr(self, name) is not None)

    def call(self, result: str) -> WalkCall:
        """What the config of one walk is chosen for."""
        return WalkCall(result, str(self.q.dtype)[6:], self.k.size(-1), self.v.size(-1), self.gates)

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
