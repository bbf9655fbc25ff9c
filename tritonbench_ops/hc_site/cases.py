"""The inputs of `--op hc_site`, its backends, and what their results are held to."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from helion_sinkhorn import hc_mixes, hc_pre, hc_site, hc_split_sinkhorn, reference
from helion_sinkhorn.ops.hc_site.budget import RESULTS, evaluated
from helion_sinkhorn.ops.hc_site.workloads import HcSiteWorkload
from helion_sinkhorn.testing.rounding import worst
from tritonbench_ops import flags
from tritonbench_ops.bounds import relative, share_beyond
from tritonbench_ops.hc_site.arguments import FIELDS, PARSER
from tritonbench_ops.inductor import compiled
from tritonbench_ops.measure import of_mode

Tensors = Sequence[torch.Tensor]
OF_TOKENS, SUMS = RESULTS[:4], RESULTS[4:]
SAMPLED = 16
"""Tokens that are judged entry by entry."""
PIECE_ENTRIES = 1 << 24
"""Entries of x computed in float64 at a time."""

parse = PARSER.parse_args


def cases(options: argparse.Namespace, dtype: torch.dtype) -> list[HcSiteWorkload]:
    """The bench workloads as `options` change them, each once."""
    return flags.bench(HcSiteWorkload, options, FIELDS, dtype)


def inputs(case: HcSiteWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(x (T, n, C), fn, scale, base, dresidual, dy, dpost, dcomb)."""
    x, fn, _, scale, base, *upstream = case.make_inputs(device=device)
    return x.flatten(0, 1), fn, scale, base, *(t.flatten(0, 1) for t in upstream)


def x_value(x: torch.Tensor) -> str:
    """An input as tables show it."""
    return "x".join(map(str, x.shape))


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


BASELINE = "eager"
BACKENDS: dict[str, Callable[[], Callable[..., Tensors]]] = {
    BASELINE: lambda: in_float32,
    "torch_compile": functools.partial(compiled, in_float32),
    "helion_parts": lambda: by_parts,
    "helion_hc_site": lambda: hc_site,
}
"""name -> what builds the function; it takes x, fn, scale, base and the options of a workload."""
UNJUDGED = (BASELINE, "torch_compile", "helion_parts")
"""Those that need not keep the budget: autograd rounds their sums of dx to the dtype of x."""
MADE_OF_PARTS = "helion_hc_site"
"""The same without a GPU, where it has no kernels."""


def share_of_budget(
    case: HcSiteWorkload, given: Tensors, found: Tensors | None, gradients: Tensors | None
) -> float:
    """The largest error in units of its budget: of SAMPLED tokens entry by entry, of all, of the sums.

    All other tokens, and the sums over them, have one bound a result, from the budgets of the sample.

    Args:
        given: of `inputs`.
        found: (y, post, comb, residual), or None where the mode has none.
        gradients: dx, dfn, dscale and dbase, or None.
    """
    given = [t.detach() for t in given]
    results = dict(zip(OF_TOKENS[:3], found or (), strict=False))
    results |= dict(zip(RESULTS[3:], gradients or (), strict=False))
    x, parameters, upstream = given[0], given[1:4], given[4:]
    few = torch.linspace(0, len(x) - 1, min(SAMPLED, len(x)), dtype=torch.float64).long().to(x.device)
    sample = evaluated(case, *(t[few][None] for t in (x, *upstream)), *(t[None] for t in parameters))
    within = {name: relative(e.budget - e.half, e.value) for name, e in sample.items()}
    shares, sums = [0.0], {}
    for name in OF_TOKENS:
        if name in results:
            shares.append(worst(results[name][few], sample[name].value[0], sample[name].budget[0]))
    for at, truth in exact_tokens(case, x, parameters, upstream):
        for name, t in truth.items():
            if name in SUMS:
                sums[name] = sums.get(name, 0.0) + t
            elif name in results:
                shares.append(share_beyond(results[name][at], t, within[name]))
    shares += [share_beyond(results[name], t, within[name]) for name, t in sums.items() if name in results]
    return max(shares)


def exact_tokens(case: HcSiteWorkload, x, parameters, upstream) -> Iterator[tuple[slice, dict]]:
    """(tokens, RESULTS of them in float64 on the device), sums over these tokens alone."""
    step = max(1, PIECE_ENTRIES // (case.n * case.c))
    for first in range(0, len(x), step):
        at = slice(first, first + step)
        leaves = [t.double().requires_grad_() for t in (x[at], *parameters)]
        y, post, comb, residual = reference.hc_site(*leaves, **case.of_reference)
        of = [t[at].double() for t in upstream]
        gradients = torch.autograd.grad((residual * 1, y, post, comb), leaves, of)
        found = y.detach(), post.detach(), comb.detach(), *gradients
        yield at, dict(zip(RESULTS, found, strict=True))
