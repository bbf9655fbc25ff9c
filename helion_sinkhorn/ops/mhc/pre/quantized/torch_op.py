"""The torch operator of quantize by its kernel: `helion_sinkhorn::quantize` returns (values, scales).

It has no gradient.  By PyTorch the function is no operator, so that a compiler sees its parts.
"""

from __future__ import annotations

import functools

from helion_sinkhorn.ops.mhc.pre.quantized import eager
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import define, on_device

NAME = "quantize"


@functools.cache
def _launch():
    """The launcher, imported by the first call that needs it."""
    from helion_sinkhorn.ops.mhc.pre.quantized import launch

    return launch


def forward(u, *rest):
    """(values, scales); see mhc.quantized.quantize."""
    if u.numel() == 0:
        return eager.forward(u, *rest)
    with on_device(u):
        return _launch().forward(u, *rest)


def _empty_results(u, group, scales, layout, floor):
    values, made = _launch().room(u, group, scales, layout)
    return values, _launch().as_returned(made, u, layout)


call = define(
    NAME,
    "(Tensor u, int group, str scales, str layout, float floor) -> (Tensor, Tensor)",
    forward, _empty_results, 1,
)  # fmt: skip
roles(NAME, "t -> tt", _empty_results, before(1))
