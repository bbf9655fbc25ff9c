"""The inputs of `--op hc_split_sinkhorn`, its backends, and the bounds of their results.

Liger's `liger_mhc_coeffs` is no backend: it takes the residual streams and makes the mixes itself.
"""

from __future__ import annotations

from functools import partial

import torch

from helion_sinkhorn import hc_split_sinkhorn, reference
from helion_sinkhorn.lab.rounding import SIGMAS, UNIT, tree
from helion_sinkhorn.lab.split.budget import RESULTS, error_budget, exact
from helion_sinkhorn.lab.split.workloads import HcWorkload
from tritonbench_ops import flags
from tritonbench_ops.bounds import Sums, Tensors, largest_share, pieces
from tritonbench_ops.judged import Backends, Judged, of_pytorch
from tritonbench_ops.measure import of_mode

PIECE_ENTRIES = 1 << 20
"""Entries of mixes computed in float64 at a time: autograd keeps a hundred tensors of this size."""
SUMS = ("dscale", "dbase")
"""Sums over tokens."""

parse = flags.parser("hc_split_sinkhorn").parse_args
cases = partial(flags.bench, "hc_split_sinkhorn", HcWorkload)
LEAVES = 3
x_value = "{0.batch}x{0.columns} n={0.n} T={0.n_iters}".format


def inputs(case: HcWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(mixes (T, n^2 + 2n), scale, base, dpre, dpost, dcomb)."""
    mixes, scale, base, *grads = case.make_inputs(device=device)
    return mixes.flatten(0, 1), scale, base, *(t.flatten(0, 1) for t in grads)


def bytes_moved(case: HcWorkload, mode: str) -> int:
    """Bytes of every tensor of tokens moved once: mixes, coefficients; gradients, mixes, dmixes."""
    entries = case.batch * case.columns
    mixes, coefficients = entries * case.dtype.itemsize, 4 * entries
    forward, backward = mixes + coefficients, coefficients + 2 * mixes
    return of_mode(mode, forward, backward)


def operations(case: HcWorkload) -> float:
    """Floating-point operations of forward: a product and an addition an entry of comb in each half-step."""
    return 4.0 * case.batch * case.n * case.n * case.n_iters


def in_float32(mixes, scale, base, *arguments, **options):
    return reference.hc_split_sinkhorn(mixes.float(), scale.float(), base.float(), *arguments, **options)


BACKENDS: Backends = {**of_pytorch(in_float32), "helion_hc_split_sinkhorn": lambda: hc_split_sinkhorn}


class Operator(Judged):
    """The coefficients of mHC; an input is (mixes, scale, base, (dpre, dpost, dcomb))."""

    label = "TxC n T"
    DEFAULT_PRECISION = "fp32"
    with_options = True


def share_of_budget(
    case: HcWorkload, given: Tensors, out: Tensors | None, gradients: Tensors | None
) -> float:
    """The largest error of pre, post, comb and the gradients of mixes, scale and base."""
    mixes, scale, base, *grads = (t.detach() for t in given)
    results = dict(zip(RESULTS, out or (), strict=False))
    results |= dict(zip(("dmixes", *SUMS), gradients or (), strict=False))
    shares, sums = [0.0], Sums()
    for at in pieces(len(mixes), PIECE_ENTRIES, case.columns):
        tokens = [t[at, None] for t in (mixes, *grads)]
        # every token with parameters of its own, so that their gradients are the terms of the sums
        each = [t.float().expand(len(tokens[0]), -1) for t in (scale, base)]
        truth, budgets = exact(case, *tokens, *each), error_budget(case, *tokens, *each)
        shares += [
            largest_share(t[at], truth[name][:, 0], budgets[name][:, 0])
            for name, t in results.items()
            if name not in SUMS
        ]
        da = truth["dbase"]
        squares = {"dbase": da.square(), "dscale": by_part(case, (da * tokens[0]).square())}
        for name in SUMS:
            terms = truth[name], squares[name], (budgets[name] / SIGMAS).square()
            sums.add(name, *(t.sum((0, 1)) for t in terms))
    return max([*shares, *sums.shares(results, partial(variance_of_sum, case, len(mixes)))])


def variance_of_sum(
    case: HcWorkload, tokens: int, name: str, value: torch.Tensor, squares: torch.Tensor
) -> torch.Tensor:
    """The variance that the additions of a sum over so many tokens bring."""
    terms = (case.n, case.n, case.n**2) if name == "dscale" else [1] * case.columns
    units = [UNIT * tree(tokens * count) for count in terms]
    return torch.tensor(units, dtype=torch.float64, device=squares.device).square() * squares


def by_part(case: HcWorkload, t: torch.Tensor) -> torch.Tensor:
    """Sums of the columns of pre, post and comb."""
    return torch.stack([part.sum(-1) for part in t.split((case.n, case.n, case.n**2), -1)], -1)
