"""The inputs of `--op hc_mixes`, its backends, and what their results are held to."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from helion_sinkhorn import hc_mixes, reference
from helion_sinkhorn.ops.hc_mixes.budget import evaluated, sum_with_x, variance_of_norm
from helion_sinkhorn.ops.hc_mixes.workloads import MixesWorkload
from helion_sinkhorn.testing.rounding import SIGMAS, half_ulp, worst
from tritonbench_ops import flags
from tritonbench_ops.bounds import relative, share_beyond
from tritonbench_ops.hc_mixes.arguments import FIELDS, PARSER
from tritonbench_ops.inductor import compiled
from tritonbench_ops.measure import of_mode

Tensors = Sequence[torch.Tensor]
SAMPLED = 64
"""Tokens held to budgets of their own, the first and the last among them."""
PIECE_ENTRIES = 1 << 24
"""Entries of x computed in float64 at a time."""

parse = PARSER.parse_args


def cases(options: argparse.Namespace, dtype: torch.dtype) -> list[MixesWorkload]:
    """The bench workloads as `options` change them, each once."""
    return flags.bench(MixesWorkload, options, FIELDS, dtype)


def inputs(case: MixesWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(x (T, n C), fn, dmixes (T, M))."""
    x, fn, _, dmixes = case.make_inputs(device=device)
    return x.view(case.batch, case.columns), fn, dmixes.flatten(0, 1)


def x_value(x: torch.Tensor, case: MixesWorkload) -> str:
    """An input as tables show it."""
    return f"{len(x)}x{case.n}x{case.c} M={case.m}"


def bytes_moved(x: torch.Tensor, case: MixesWorkload, mode: str) -> int:
    """Bytes of every tensor moved once: x and mixes; dmixes, mixes, x, dx; fn and dfn."""
    mixes, fn = 4 * len(x) * case.m, 4 * case.m * case.columns
    forward, backward = x.nbytes + mixes + fn, 2 * (x.nbytes + mixes + fn)
    return of_mode(mode, forward, backward)


def operations(case: MixesWorkload) -> float:
    """Floating-point operations of forward: a product and an addition for each row and entry."""
    return 2.0 * case.batch * case.m * case.columns


def in_float32(x, fn, precision="float32", **options):
    """The specification; `precision` is a matter of kernels."""
    return reference.hc_mixes(x.float(), fn.float(), **options)


def in_tf32(x, fn, precision="float32", **options):
    return hc_mixes(x, fn, precision="tf32", **options)


BASELINE = "eager"
BACKENDS: dict[str, Callable[[], Callable[..., torch.Tensor]]] = {
    BASELINE: lambda: in_float32,
    "torch_compile": functools.partial(compiled, in_float32),
    "helion_hc_mixes": lambda: hc_mixes,
    "helion_hc_mixes_tf32": lambda: in_tf32,
}
"""name -> what builds the function; it takes x, fn and the options of a workload."""
UNJUDGED = (BASELINE, "torch_compile")
"""Those that need not keep the budget: PyTorch's products may be TF32."""
TF32 = ("helion_hc_mixes_tf32",)
"""Those that are held to the budget of TF32."""


def share_of_budget(
    case: MixesWorkload, given: Tensors, mixes: torch.Tensor | None, gradients: Tensors | None
) -> float:
    """The largest error in units of its budget: of SAMPLED tokens entry by entry, of all tokens, of dfn.

    All other tokens have one bound a result, from the budgets of the sample.

    Args:
        given: of `inputs`.
        mixes: or None where the mode has none.
        gradients: dx and dfn, or None.
    """
    x, fn, dmixes = (t.detach() for t in given)
    found = dict(zip(("dx", "dfn"), gradients or (), strict=False)) | (
        {} if mixes is None else {"mixes": mixes}
    )
    tokens = [name for name in found if name != "dfn"]
    few = torch.linspace(0, len(x) - 1, min(SAMPLED, len(x)), dtype=torch.float64).long().to(x.device)
    sample = evaluated(case, x[few][None], dmixes[few][None], fn[None])
    shares = [worst(found[name][few], sample[name].value[0], sample[name].budget[0]) for name in tokens]
    within = {name: relative(e.budget - e.half, e.value) for name, e in sample.items()}
    dfn, squares = 0.0, 0.0
    for at, results, terms in exact_tokens(case, x, fn, dmixes):
        shares += [share_beyond(found[name][at], results[name], within[name]) for name in tokens]
        dfn, squares = dfn + terms[0], squares + terms[1]
    if "dfn" in found:
        of_sum = sum_with_x(case, dfn, squares, len(x))
        variance = of_sum.variance + variance_of_norm(case.columns) * squares
        bound = SIGMAS * variance.sqrt() + half_ulp(dfn, found["dfn"].dtype)
        shares.append(worst(found["dfn"], dfn.cpu(), bound.cpu()))
    return max(shares)


def exact_tokens(case: MixesWorkload, x, fn, dmixes) -> Iterator[tuple[slice, dict, tuple]]:
    """(tokens, their results in float64 on the device, their share of dfn and of the sum of its squares)."""
    step = max(1, PIECE_ENTRIES // case.columns)
    for first in range(0, len(x), step):
        at = slice(first, first + step)
        leaves = [x[at].double().requires_grad_(), fn.double().requires_grad_()]
        mixes = reference.hc_mixes(*leaves, case.norm_eps, eps_outside=case.eps_outside)
        dx, dfn = torch.autograd.grad(mixes, leaves, dmixes[at].double())
        wide = leaves[0].detach()
        square = wide.square()
        mean = square.mean(-1, keepdim=True)
        r = 1 / (mean.sqrt() + case.norm_eps) if case.eps_outside else 1 / (mean + case.norm_eps).sqrt()
        squares = (r * dmixes[at]).square().mT @ square
        yield at, {"mixes": mixes.detach(), "dx": dx}, (dfn, squares)
