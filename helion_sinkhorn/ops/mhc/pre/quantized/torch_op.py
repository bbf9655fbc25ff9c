"""The torch operator of quantize by its kernel: `helion_sinkhorn::quantize` returns (values, scales).

It has no gradient.  By PyTorch the function is no operator, so that a compiler sees its parts.
"""

from __future__ import annotations

from helion_sinkhorn.ops.mhc.pre.quantized import eager
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import Implementations, define

NAME = "quantize"
implementations = Implementations("helion_sinkhorn.ops.mhc.pre.quantized.launch", eager)


def forward(u, *rest, **out):
    """(values, scales); see mhc.quantized.quantize."""
    with implementations.chosen_for(u, "helion") as module:
        return module.forward(u, *rest) if module is eager else module.forward(u, *rest, **out)


def _empty_results(u, group, scales, layout, floor):
    return implementations.launcher.results(u, group, scales, layout)


call = define(
    NAME,
    "(Tensor u, int group, str scales, str layout, float floor) -> (Tensor, Tensor)",
    forward, _empty_results, 1,
)  # fmt: skip
roles(NAME, "t -> tt", _empty_results, before(1))
