"""The inputs of `--op hc_pre`, its backends, and the bounds of their results."""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn import hc_pre, reference
from helion_sinkhorn.lab.pre.budget import RESULTS, error_budget, exact
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from tritonbench_ops import flags
from tritonbench_ops.bounds import PIECE_ENTRIES, Tensors, largest_of_tokens
from tritonbench_ops.judged import Backends, Judged, of_pytorch
from tritonbench_ops.measure import of_mode

parse = flags.parser("hc_pre").parse_args
cases = functools.partial(flags.bench, "hc_pre", HcPreWorkload)
LEAVES = 2
x_value = "{0.batch}x{0.n}x{0.c}".format


def inputs(case: HcPreWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(x (T, n, C), pre (T, n), dy (T, C))."""
    return tuple(t.flatten(0, 1) for t in case.make_inputs(device=device))


def bytes_moved(case: HcPreWorkload, mode: str) -> int:
    """Bytes of every tensor moved once: x, pre and y; dy, x and dx, pre and dpre."""
    row, pre = case.batch * case.c * case.dtype.itemsize, 4 * case.batch * case.n
    forward, backward = (case.n + 1) * row + pre, (2 * case.n + 1) * row + 2 * pre
    return of_mode(mode, forward, backward)


def operations(case: HcPreWorkload) -> float:
    """Floating-point operations of forward: a product and an addition an entry."""
    return 2.0 * case.batch * case.n * case.c


def in_float32(x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """The specification in float32, rounded once."""
    return reference.hc_pre(x.float(), pre.float()).to(x.dtype)


BACKENDS: Backends = {**of_pytorch(in_float32), "helion_hc_pre": lambda: hc_pre}


class Operator(Judged):
    """The collapse of mHC's streams; an input is (x, pre, (dy,))."""

    label = "TxnxC"


def share_of_budget(
    case: HcPreWorkload, given: Tensors, y: torch.Tensor | None, gradients: Tensors | None
) -> float:
    """The largest error of y, dx and dpre."""
    results = dict(zip(RESULTS, (y, *(gradients or ())), strict=False))
    return largest_of_tokens(given, results, exact, error_budget, PIECE_ENTRIES)
