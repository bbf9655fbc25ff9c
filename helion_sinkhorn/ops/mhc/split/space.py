"""The properties of a call that choose configs of hc_split_sinkhorn, the defaults, and what the tuner tries.

The iterations take most of the time, so the defaults are those of Sinkhorn's kernels for n x n matrices.  A
token has the same bits in any batch, since a call fixes how the entries of its matrix lie in threads, and so
the order of sums.  Configs differ in the number of tokens a program takes and in what it computes twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.ops.sinkhorn import space as sinkhorn
from helion_sinkhorn.runtime.space import Grid, Items

ONE_SEGMENT = 19
"""The most iterations whose vectors a thread keeps at once.

With 19 a gradient of four streams takes up to 255 registers (compiled for sm_90).
"""


@dataclass(frozen=True)
class HcCall(Keyed):
    """The dtype of the mixes, the number of streams and of iterations; deepseek is False without eps."""

    dtype: str
    n: int
    n_iters: int
    deepseek: bool

    @property
    def m(self) -> int:
        """Columns of the matrix, as Sinkhorn's calls name them."""
        return self.n

    @property
    def steps(self) -> int:
        """The number of iterations; the first of the deepseek form is the softmax and one column step."""
        return self.n_iters - 1 if self.deepseek else self.n_iters

    def __str__(self) -> str:
        return f"{self.dtype} n={self.n} T={self.n_iters}{'' if self.deepseek else ' without eps'}"


def without_order(variant: Items) -> Items:
    """A variant of Sinkhorn's kernels without its order of sums, of which these bodies have one."""
    return tuple((k, v) for k, v in variant if k != "ordered")


def forward_default(call: HcCall, device: Device) -> tuple[Items, Items]:
    """The default of Sinkhorn's forward."""
    config, variant = sinkhorn.forward_default(call, device)
    return config, without_order(variant)


def forward_space(call: HcCall, device: Device) -> tuple[Grid, ...]:
    return (blocks(call, device, *forward_default(call, device)),)


def backward_default(call: HcCall, device: Device) -> tuple[Items, Items]:
    """The default of Sinkhorn's backward without pairs of reciprocals; four streams have one segment.

    On an H200 under Triton 3.9, four streams take 7.6, 8.7 and 220 us for 128, 8,192 and 2^20 tokens with
    all iterations in one segment, and 8.1, 9.0 and 207 us in segments of 7 that one loop replays.  All
    batches have one segment: under 3.9 LLVM fuses one sum of the loop differently, which would change a
    token's bits.  Pairs of reciprocals take 3 % more time, and two threads a token 252 us for 2^20 tokens.
    """
    config, variant = sinkhorn.backward_default(call, device)
    chosen = dict(without_order(variant), paired=False)
    fits = chosen["thread"] == (4, 4) and 0 < call.steps <= ONE_SEGMENT
    if fits and device.vendor == "nvidia":
        chosen["length"] = call.steps
    return config, tuple(chosen.items())


def backward_space(call: HcCall, device: Device) -> tuple[Grid, ...]:
    return (blocks(call, device, *backward_default(call, device)),)


def blocks(call: HcCall, device: Device, config: Items, variant: Items) -> Grid:
    """The default with one warp a program and with more; only the default where Triton places the entries."""
    rows, columns = dict(variant)["thread"]
    configs = [sinkhorn.over_threads(call, device, rows, columns, warps) for warps in (1, 2, 4) if rows]
    return {"config": tuple(dict.fromkeys([config, *configs])), **{k: (v,) for k, v in variant}}
