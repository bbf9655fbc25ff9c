"""The largest errors of P and its gradients, from the roundings of exponents and sums.

An exponent x / t + f + g is rounded where it is added up, by half a unit in the last place of its largest
part.  A sum of k numbers has an error of `tree(k)` units, and its logarithm too.  Errors do not add up over
iterations, since f and g, or u and v, are computed again from the logits.  A term that the gradient subtracts
is at most a sum of |P dY| over a line, distributed along P, and has the errors of its exponents.
"""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.lab.evidence import Tensors
from helion_sinkhorn.lab.rounding import SIGMAS, UNIT, half_ulp, tree
from helion_sinkhorn.ops.sinkhorn import reference

RESULTS = "P", "dX", "drows", "dcolumns"


def exact(
    x: torch.Tensor,
    marginals: Tensors,
    dy: torch.Tensor,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> dict[str, torch.Tensor]:
    """The results in float64, or another dtype: the specification and autograd, of the deepseek form without
    marginals."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in (x, *marginals)]
    named = dict(zip(("log_row_marginals", "log_col_marginals"), leaves[1:], strict=False))
    p = reference.sinkhorn(leaves[0], **options, **named)
    return dict(zip(RESULTS, (p.detach(), *torch.autograd.grad(p, leaves, dy.to(dtype))), strict=False))


def error_budget(
    x: torch.Tensor,
    marginals: Tensors,
    dy: torch.Tensor,
    n_iters: int,
    form: str,
    first: str,
    truth: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """The largest error that an implementation may have on these inputs, entry by entry, for each result."""
    z = x.double()
    if form == "log":
        f, g = reference.potentials(z, n_iters, *(t.double() for t in marginals), first=first)
        size = z.abs() + f.abs().unsqueeze(-1) + g.abs().unsqueeze(-2)
    else:
        # u and v are factors, and not in the exponent
        size = (z.amax(-1 if first == "rows" else -2, keepdim=True) - z).abs()
    p, dy = truth["P"], dy.double()
    units = 2 * size + 4 + tree(x.size(-1)) + tree(x.size(-2))
    moved = (p * dy).abs()
    r, c = p.sum(-1, keepdim=True), p.sum(-2, keepdim=True)
    # the terms of an iteration are distributed along its own matrix; the sums of an iteration are at most
    # those of the next one, and most are far smaller, so twice the last ones suffice
    most = largest_share(z, marginals, n_iters, form, first)
    taken = 2 * most * (moved.sum(-1, keepdim=True) / r + moved.sum(-2, keepdim=True) / c)
    sigma = {
        "P": units * p,
        "dX": units * (moved + taken),
        "drows": (units * (moved + taken)).sum(-1),
        "dcolumns": (units * (moved + taken)).sum(-2),
    }
    dtypes = {"P": x.dtype, "dX": x.dtype}
    return {
        name: SIGMAS * UNIT * sigma[name] + half_ulp(t, dtypes.get(name, torch.float32))
        for name, t in truth.items()
    }


def largest_share(z: torch.Tensor, marginals: Tensors, n_iters: int, form: str, first: str) -> torch.Tensor:
    """The largest value of each entry after any half-step.

    Each half-step is the end of a call with fewer iterations, or of one that begins with the other side.
    """
    lead = -1 if first == "rows" else -2
    names = "log_row_marginals", "log_col_marginals"
    named = dict(zip(names, (t.double() for t in marginals), strict=False))
    start = z.softmax(lead)
    own = named[names[0 if first == "rows" else 1]].exp() if named else torch.ones_like(start.sum(lead))
    shares = [start * own.unsqueeze(lead)]
    for t in range(1, n_iters + 1):
        p = reference.sinkhorn(z, t, form=form, first=first, **named)
        shares += p, p * (own / p.sum(lead)).unsqueeze(lead)
    return torch.stack(shares).amax(0)
