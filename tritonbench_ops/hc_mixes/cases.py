"""The inputs of `--op hc_mixes`, its backends, and the bounds of their results."""

from __future__ import annotations

import dataclasses
import functools

import torch

from helion_sinkhorn import hc_mixes, reference
from helion_sinkhorn.lab.mixes.budget import RESULTS, evaluated, sum_with_x, variance_of_norm
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from tritonbench_ops import flags
from tritonbench_ops.bounds import PIECE_ENTRIES, Sums, Tensors, largest_share, pieces
from tritonbench_ops.judged import Backends, Judged, of_pytorch
from tritonbench_ops.measure import of_mode

parse = flags.parser("hc_mixes").parse_args
cases = functools.partial(flags.bench, "hc_mixes", MixesWorkload)
LEAVES = 2
x_value = "{0.batch}x{0.n}x{0.c} M={0.m}".format


def inputs(case: MixesWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(x (T, n C), fn, dmixes (T, M))."""
    x, fn, _, dmixes = case.make_inputs(device=device)
    return x.view(case.batch, case.columns), fn, dmixes.flatten(0, 1)


def bytes_moved(case: MixesWorkload, mode: str) -> int:
    """Bytes of every tensor moved once: x and mixes; dmixes, mixes, x, dx; fn and dfn."""
    x, mixes = case.batch * case.columns * case.dtype.itemsize, 4 * case.batch * case.m
    forward = x + mixes + 4 * case.m * case.columns
    return of_mode(mode, forward, 2 * forward)


def operations(case: MixesWorkload) -> float:
    """Floating-point operations of forward: a product and an addition for each row and entry."""
    return 2.0 * case.batch * case.m * case.columns


def in_float32(x, fn, precision="float32", **options):
    """The specification; `precision` is a matter of kernels."""
    return reference.hc_mixes(x.float(), fn.float(), **options)


def in_tf32(x, fn, precision="float32", **options):
    return hc_mixes(x, fn, precision="tf32", **options)


BACKENDS: Backends = {
    **of_pytorch(in_float32),
    "helion_hc_mixes": lambda: hc_mixes,
    "helion_hc_mixes_tf32": lambda: in_tf32,
}


class Operator(Judged):
    """The projection of mHC; an input is (x, fn, (dmixes,))."""

    label = "TxnxC M"
    with_options = True

    def held_to(self, name):
        return "tf32" if name == "helion_hc_mixes_tf32" else self.case.precision

    def errors_of(self, name, *results):
        case = dataclasses.replace(self.case, precision=self.held_to(name))
        return share_of_budget(case, self.given(), *results)


def share_of_budget(
    case: MixesWorkload, given: Tensors, mixes: torch.Tensor | None, gradients: Tensors | None
) -> float:
    """The largest error of mixes, dx and dfn."""
    x, fn, dmixes = (t.detach() for t in given)
    results = dict(zip(RESULTS, (mixes, *(gradients or ())), strict=False))
    tokens = {name: t for name, t in results.items() if t is not None and name != "dfn"}
    shares, sums = [0.0], Sums()
    for at in pieces(len(x), PIECE_ENTRIES, case.columns):
        piece = evaluated(case, x[at][None], dmixes[at][None], fn[None], device=x.device)
        shares += [
            largest_share(t[at], piece[name].value[0], piece[name].budget[0]) for name, t in tokens.items()
        ]
        sums.add("dfn", piece["dfn"].value[0], squares_of_dfn(case, x[at], dmixes[at]), 0.0)
    return max([*shares, *sums.shares(results, lambda _, *terms: variance_of_dfn(case, *terms, len(x)))])


def variance_of_dfn(
    case: MixesWorkload, value: torch.Tensor, squares: torch.Tensor, tokens: int
) -> torch.Tensor:
    """The variance of a sum over so many tokens, from its value and the sum of the squares of its terms."""
    return sum_with_x(case, value, squares, tokens).variance + variance_of_norm(case.columns) * squares


def squares_of_dfn(case: MixesWorkload, x: torch.Tensor, dmixes: torch.Tensor) -> torch.Tensor:
    """The squares of the products that these tokens add to dfn, added up (M, n C)."""
    square = x.double().square()
    mean = square.mean(-1, keepdim=True)
    r = 1 / (mean.sqrt() + case.norm_eps) if case.eps_outside else 1 / (mean + case.norm_eps).sqrt()
    return (r * dmixes).square().mT @ square
