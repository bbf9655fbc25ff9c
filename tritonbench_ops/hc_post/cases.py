"""The inputs of `--op hc_post`, its backends, and the bounds of their results."""

from __future__ import annotations

import dataclasses
import functools

import torch

from helion_sinkhorn import hc_post, reference
from helion_sinkhorn.lab.post.budget import RESULTS, error_budget, exact
from helion_sinkhorn.lab.post.workloads import HcPostWorkload
from tritonbench_ops import flags
from tritonbench_ops.bounds import PIECE_ENTRIES, Tensors, largest_of_tokens
from tritonbench_ops.judged import Backends, Judged, of_pytorch
from tritonbench_ops.measure import of_mode

parse = flags.parser("hc_post").parse_args
cases = functools.partial(flags.bench, "hc_post", HcPostWorkload)
LEAVES = 4
x_value = "{0.batch}x{0.n}x{0.c}".format


def inputs(case: HcPostWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(f (T, C), x (T, n, C), post (T, n), comb (T, n, n), upstream gradient like x); no bias."""
    f, x, post, comb, _, grad = dataclasses.replace(case, has_bias=False).make_inputs(device=device)
    return tuple(t.flatten(0, 1) for t in (f, x, post, comb, grad))


def bytes_moved(case: HcPostWorkload, mode: str) -> int:
    """Bytes of every tensor moved once: f, x, the weights and the new streams; in the backward the upstream
    gradient, f, x and the weights, and their gradients."""
    row, weights = case.batch * case.c * case.dtype.itemsize, 4 * case.batch * case.n * (case.n + 1)
    forward, backward = (2 * case.n + 1) * row + weights, (3 * case.n + 2) * row + 2 * weights
    return of_mode(mode, forward, backward)


def operations(case: HcPostWorkload) -> float:
    """Floating-point operations of forward: n + 1 products and additions an entry."""
    return 2.0 * (case.n + 1) * case.batch * case.n * case.c


def in_float32(f, x, post, comb) -> torch.Tensor:
    """The specification in float32, rounded once."""
    return reference.hc_post(f.float(), x.float(), post.float(), comb.float()).to(x.dtype)


BACKENDS: Backends = {**of_pytorch(in_float32), "helion_hc_post": lambda: hc_post}


class Operator(Judged):
    """The expansion of mHC's streams; an input is (f, x, post, comb, (upstream gradient,))."""

    label = "TxnxC"


def share_of_budget(
    case: HcPostWorkload, given: Tensors, out: torch.Tensor | None, gradients: Tensors | None
) -> float:
    """The largest error of the new streams, df, dx, dpost and dcomb."""
    results = dict(zip(RESULTS, (out, *(gradients or ())), strict=False))
    return largest_of_tokens(given, results, exact, error_budget, PIECE_ENTRIES)
