"""What rounding may add to a result of linear attention: a share of the sum of its absolute terms.

Every result is a sum of products of inputs and decays.  The sum of their absolute values is the same
result for absolute inputs, and each term passes a bounded number of roundings (docs/linear_attention.md).
"""

from __future__ import annotations

import torch

from helion_sinkhorn import reference

UNIT = 2.0**-24
UNDERFLOW = 2.0**-100
"""Decays lose digits below the normal range of float32, which entries near 1 do not bring back."""
CHUNK_ROUNDINGS = 4
"""Of operands, that a term passes: two factors, their product A or the state, and a sum for the gates."""
Named = dict[str, torch.Tensor]
GATES = ("g", "g_gamma", "gk")


def results(inputs: Named, do: torch.Tensor, dend: torch.Tensor | None, **options) -> Named:
    """o, the last state `end`, and the gradient "d" + name of every input, by autograd."""
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    o, end = reference.recurrent_linear_attention(**leaves, **options, output_final_state=True)
    total = (o * do).sum() + (0 if dend is None else (end * dend).sum())
    gradients = torch.autograd.grad(total, list(leaves.values()))
    return {"o": o.detach(), "end": end.detach()} | {
        "d" + name: x for name, x in zip(leaves, gradients, strict=True)
    }


def wide(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.detach().to("cpu", torch.float64)


def truth(inputs: Named, do: torch.Tensor, dend: torch.Tensor | None, **options) -> Named:
    """`results` in float64."""
    return results({name: wide(x) for name, x in inputs.items()}, wide(do), wide(dend), **options)


def chunked_budgets(
    inputs: Named, do: torch.Tensor, dend: torch.Tensor | None, chunk: int, operand: str, **options
) -> Named:
    """The largest error of each of `results` by chunks; `operand` is the dtype of what is multiplied."""
    absolute = {name: wide(x) if name in GATES else wide(x).abs() for name, x in inputs.items()}
    sizes = results(absolute, wide(do).abs(), None if dend is None else wide(dend).abs(), **options)
    q = absolute["q"]
    # the gate of a step sums q dq - k dk over its chunk, where pairs on one side of the step cancel
    pairs = q * sizes["dq"] + absolute["k"] * sizes["dk"]
    steps = q.size(1)
    pairs = torch.cat([x.sum(1, keepdim=True).expand_as(x) for x in pairs.split(chunk, 1)], 1)
    for name, summed in {"dgk": pairs, "dg": pairs.sum(-1), "dg_gamma": pairs.sum((0, 1, 3))}.items():
        if name in sizes:
            sizes[name] = sizes[name] + summed
    # three parts of float32 without the smallest products; exponents and sums of gates; sums over steps
    single = 182 + chunk + -(-steps // chunk)
    roundoff = 2.0**-9 if operand == "bfloat16" else 0.0
    share = CHUNK_ROUNDINGS * roundoff + single * UNIT
    return {name: share * x + UNDERFLOW for name, x in sizes.items()}
