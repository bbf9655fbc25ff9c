"""The inputs of `--op hc_site`, its backends, and the bounds of their results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from helion_sinkhorn import hc_mixes, hc_pre, hc_site, hc_split_sinkhorn, reference
from helion_sinkhorn.lab.mixes.budget import sum_with_x, variance_of_norm
from helion_sinkhorn.lab.rounding import SIGMAS, UNIT
from helion_sinkhorn.lab.site.budget import RESULTS, Site, evaluated, site_of
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.lab.split import budget as of_split
from tritonbench_ops import flags
from tritonbench_ops.bounds import largest_share, pieces
from tritonbench_ops.hc_site.arguments import FIELDS, PARSER
from tritonbench_ops.hc_split_sinkhorn.cases import by_part, units
from tritonbench_ops.inductor import BASELINE, INDUCTOR, of_pytorch
from tritonbench_ops.measure import of_mode

Tensors = Sequence[torch.Tensor]
OF_TOKENS, SUMS = RESULTS[:4], RESULTS[4:]
PIECE_ENTRIES = 1 << 24
"""Entries of x computed in float64 at a time."""

parse = PARSER.parse_args
cases = functools.partial(flags.bench, HcSiteWorkload, FIELDS)
"""(options of `parse`, dtype) -> the bench workloads as the options change them, each once."""


LEAVES = 4
"""Inputs that have gradients; the others are upstream gradients."""


def inputs(case: HcSiteWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(x (T, n, C), fn, scale, base, dy, dpost, dcomb, dresidual), upstream as results are in order."""
    x, fn, _, scale, base, dresidual, *upstream = case.make_inputs(device=device)
    return x.flatten(0, 1), fn, scale, base, *(t.flatten(0, 1) for t in (*upstream, dresidual))


def x_value(case: HcSiteWorkload) -> str:
    """An input as tables show it."""
    return f"{case.batch}x{case.n}x{case.c}"


def bytes_moved(case: HcSiteWorkload, mode: str) -> int:
    """Bytes of every tensor moved once.

    Forward: x, fn, y, post, comb.  Backward: x, dresidual, dx, dy; coefficients, mixes and their gradients;
    fn and dfn.
    """
    row = case.batch * case.c * case.dtype.itemsize
    fn, mixes = 4 * case.m * case.n * case.c, 4 * case.batch * case.m
    forward, backward = (case.n + 1) * row + mixes + fn, (3 * case.n + 1) * row + 4 * mixes + 2 * fn
    return of_mode(mode, forward, backward)


def operations(case: HcSiteWorkload) -> float:
    """Floating-point operations of forward: a product and an addition for each row of fn, and for pre."""
    return 2.0 * case.batch * (case.m + 1) * case.n * case.c


def in_float32(x, fn, scale, base, precision="float32", **options):
    """The specification; `precision` is a matter of kernels."""
    y, post, comb, _ = reference.hc_site(x.float(), fn, scale, base, **options)
    return y.to(x.dtype), post, comb, x


def by_parts(x, fn, scale, base, norm_eps, eps_outside, precision, **options):
    """The three operators, the gradients of x added by autograd."""
    mixes = hc_mixes(x, fn, norm_eps, precision=precision, eps_outside=eps_outside)
    pre, post, comb = hc_split_sinkhorn(mixes, scale, base, x.size(-2), **options)
    return hc_pre(x, pre), post, comb, x


BACKENDS: dict[str, Callable[[], Callable[..., Tensors]]] = {
    **of_pytorch(in_float32),
    "helion_parts": lambda: by_parts,
    "helion_hc_site": lambda: hc_site,
}
"""name -> what builds the function; it takes x, fn, scale, base and the options of a workload."""
UNJUDGED = (BASELINE, INDUCTOR, "helion_parts")
"""Those that need not keep the budget: autograd rounds their sums of dx to the dtype of x."""
MADE_OF_PARTS = "helion_hc_site"
"""The same without a GPU, where it has no kernels."""


def share_of_budget(
    case: HcSiteWorkload, given: Tensors, found: Tensors | None, gradients: Tensors | None
) -> float:
    """The largest error of all entries, each in units of its own budget, computed where the tensors are.

    Args:
        given: of `inputs`.
        found: (y, post, comb, residual), or None where the mode has none.
        gradients: dx, dfn, dscale and dbase, or None.
    """
    given = [t.detach() for t in given]
    results = dict(zip(OF_TOKENS[:3], found or (), strict=False))
    results |= dict(zip(RESULTS[3:], gradients or (), strict=False))
    x, parameters, (*others, dresidual) = given[0], given[1:4], given[4:]
    # x itself, of which no bit may change
    shares = [0.0 if found is None or torch.equal(found[3], x) else math.inf]
    values, squares, variances = ({name: 0.0 for name in SUMS} for _ in range(3))
    for at in pieces(len(x), PIECE_ENTRIES, case.n * case.c):
        inputs = *(t[at][None] for t in (x, dresidual, *others)), *(t[None] for t in parameters)
        piece = evaluated(case, *inputs, device=x.device)
        shares += [
            largest_share(results[name][at], piece[name].value[0], piece[name].budget[0])
            for name in OF_TOKENS
            if name in results
        ]
        if gradients is None:
            continue
        terms = squares_of_terms(site_of(case, *inputs, device=x.device))
        for name, parameter in zip(SUMS, parameters, strict=True):
            value = piece[name].value.reshape(parameter.shape)
            variance = piece[name].deviation.square().reshape(parameter.shape)
            # without the rounding of its additions, which is added for all tokens in the end
            variance = variance - of_additions(case, name, value, terms[name], piece["y"].value.size(1))
            values[name], squares[name] = values[name] + value, squares[name] + terms[name]
            variances[name] = variances[name] + variance.clamp(min=0)
    for name in SUMS if gradients is not None else ():
        variance = variances[name] + of_additions(case, name, values[name], squares[name], len(x))
        shares.append(largest_share(results[name], values[name], SIGMAS * variance.sqrt()))
    return max(shares)


def squares_of_terms(site: Site) -> dict[str, torch.Tensor]:
    """The squares of what each token adds to each of SUMS, added up."""
    mixes, dpre, dpost, dcomb, *parameters = site.of_split(site.mixes, site.dpre)
    # every token with parameters of its own
    tokens = [t[0][:, None] for t in (mixes, dpre, dpost, dcomb)]
    workload, each = site.workload.of_split, [t.expand(len(tokens[0]), -1) for t in parameters]
    da = of_split.exact(workload, *tokens, *each)["dbase"]
    g = (site.norm[0] * site.made["dmixes"])[0]
    return {
        "dfn": g.square().mT @ site.streams[0].square(),
        "dscale": by_part(workload, (da * tokens[0]).square()).sum((0, 1)),
        "dbase": da.square().sum((0, 1)),
    }


def of_additions(
    case: HcSiteWorkload, name: str, value: torch.Tensor, squares: torch.Tensor, tokens: int
) -> torch.Tensor:
    """The variance of a sum over tokens that its own arithmetic makes."""
    if name == "dfn":
        of_sum = sum_with_x(case.of_mixes, value, squares, tokens)
        return of_sum.variance + variance_of_norm(case.n * case.c) * squares
    return (UNIT * units(case.of_split, name, tokens).to(squares.device)).square() * squares
