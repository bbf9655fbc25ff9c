"""The largest errors of hc_post: a rounding of each product and of each sum, and one to the result's dtype.

Everything before the last rounding is float32, so the deviation of an entry follows from its terms, whose
errors are `chain` or `tree` units of roundoff.  The gradient of the bias is a sum of df before its rounding.
The budget is five deviations, and half a unit in the last place of a narrow result.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.rounding import SIGMAS, UNIT, chain, half_ulp, tree
from helion_sinkhorn.ops.mhc.post import reference

RESULTS = ("out", "df", "dx", "dpost", "dcomb", "dbias")
Named = dict[str, torch.Tensor]


def exact(
    f, x, post, comb, grad, bias=None, comb_order: str = "io", dtype: torch.dtype = torch.float64
) -> Named:
    """The results in float64, or another dtype: the specification and autograd.

    Args:
        f: (K, G, C), K elements of G tokens; x and grad (K, G, n, C), post (K, G, n), comb (K, G, n, n).
        bias: (K, C), that of each element, or None.

    Returns:
        "out" and the gradients, "dbias" (K, 1, C) where there is a bias.
    """
    given = (f, x, post, comb) if bias is None else (f, x, post, comb, bias)
    leaves = [t.detach().to(dtype).requires_grad_() for t in given]
    each = None if bias is None else leaves[4].unsqueeze(1)
    out = reference.hc_post(*leaves[:4], each, comb_order=comb_order)
    gradients = torch.autograd.grad(out, leaves, grad.to(dtype))
    results = dict(zip(RESULTS, (out.detach(), *gradients), strict=False))
    if bias is not None:
        results["dbias"] = results["dbias"].unsqueeze(1)
    return results


def deviation(f, x, post, comb, grad, bias=None, comb_order: str = "io") -> Named:
    """The standard deviation of each entry before its last rounding; arguments as in `exact`.

    A sum over streams may take them in order; one over C entries or G tokens adds at most twice the root of
    their number in a chain, as a loop over tiles does and a tree within each.
    """
    f, x, post, comb, grad = (t.detach().double() for t in (f, x, post, comb, grad))
    n, c = x.shape[-2:]
    given, with_bias = (f, 0.0) if bias is None else (f + bias.double().unsqueeze(1), 1.0)
    # one more rounding of each term with f + bias in it
    weights = (comb if comb_order == "io" else comb.mT).square()
    x2, given2, grad2 = x.square(), given.square().unsqueeze(-2), grad.square()
    own = post.square().unsqueeze(-1) * given2
    dcomb = tree(c) * (x2 @ grad2.mT).sqrt()
    units = {
        "out": (chain(n + 1) ** 2 * (weights.mT @ x2) + (chain(n + 1) + with_bias) ** 2 * own).sqrt(),
        "df": chain(n) * (post.square().unsqueeze(-2) @ grad2).squeeze(-2).sqrt(),
        "dx": chain(n) * (weights @ grad2).sqrt(),
        "dpost": (tree(c) + with_bias) * (grad2 * given2).sum(-1).sqrt(),
        "dcomb": dcomb if comb_order == "io" else dcomb.mT,
    }
    deviations = {name: UNIT * t for name, t in units.items()}
    if bias is not None:
        df = (post.unsqueeze(-2) @ grad).squeeze(-2)
        additions = UNIT * tree(df.size(1)) * df.abs()
        terms = deviations["df"].square() + additions.square()
        deviations["dbias"] = terms.sum(1, keepdim=True).sqrt()
    return deviations


def error_budget(f, x, post, comb, grad, bias=None, comb_order: str = "io") -> Named:
    """The largest error that an implementation may have on these inputs, entry by entry, for each result.

    Arguments are as in `exact`, each in the dtype in which it is given.
    """
    inputs = f, x, post, comb, grad, bias, comb_order
    truth, sigma = exact(*inputs), deviation(*inputs)
    dtypes = {"out": x.dtype, "df": f.dtype, "dx": x.dtype, "dpost": post.dtype, "dcomb": comb.dtype}
    if bias is not None:
        dtypes["dbias"] = bias.dtype
    return {name: SIGMAS * sigma[name] + half_ulp(t, dtypes[name]) for name, t in truth.items()}
