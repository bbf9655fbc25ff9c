"""The inputs of `--op hc_split_sinkhorn`, its backends, and what their results are held to.

Liger's `liger_mhc_coeffs` is no backend: it takes the residual streams and makes the mixes itself.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Sequence

import torch

from helion_sinkhorn import hc_split_sinkhorn, reference
from helion_sinkhorn.ops.hc_split_sinkhorn.budget import RESULTS, error_budget, exact
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import HcWorkload
from helion_sinkhorn.testing.rounding import SIGMAS, UNIT, half_ulp, worst
from tritonbench_ops import flags
from tritonbench_ops.bounds import BEYOND_SAMPLE, relative, share_beyond
from tritonbench_ops.hc_split_sinkhorn.arguments import FIELDS, PARSER
from tritonbench_ops.inductor import compiled
from tritonbench_ops.measure import of_mode

Tensors = Sequence[torch.Tensor]
SAMPLED = 64
"""Tokens held to budgets of their own, the first and the last among them."""
PIECE_ENTRIES = 1 << 20
"""Entries of mixes computed in float64 at a time: autograd keeps a hundred tensors of this size."""

parse = PARSER.parse_args


def cases(options: argparse.Namespace, dtype: torch.dtype) -> list[HcWorkload]:
    """The bench workloads as `options` change them, each once."""
    return flags.bench(HcWorkload, options, FIELDS, dtype)


def inputs(case: HcWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(mixes (T, n^2 + 2n), scale, base, dpre, dpost, dcomb)."""
    mixes, scale, base, *grads = case.make_inputs(device=device)
    return mixes.flatten(0, 1), scale, base, *(t.flatten(0, 1) for t in grads)


def x_value(mixes: torch.Tensor, case: HcWorkload) -> str:
    """An input as tables show it."""
    return f"{len(mixes)}x{case.columns} n={case.n} T={case.n_iters}"


def bytes_moved(mixes: torch.Tensor, mode: str) -> int:
    """Bytes of every tensor of tokens moved once: mixes, coefficients; gradients, mixes, dmixes."""
    coefficients = 4 * mixes.numel()
    forward, backward = mixes.nbytes + coefficients, coefficients + 2 * mixes.nbytes
    return of_mode(mode, forward, backward)


def operations(case: HcWorkload) -> float:
    """Floating-point operations of forward: a product and an addition an entry of comb in each half-step."""
    return 4.0 * case.batch * case.n * case.n * case.n_iters


def in_float32(mixes, scale, base, *arguments, **options):
    return reference.hc_split_sinkhorn(mixes.float(), scale.float(), base.float(), *arguments, **options)


BASELINE = "eager"
BACKENDS: dict[str, Callable[[], Callable[..., Tensors]]] = {
    BASELINE: lambda: in_float32,
    "torch_compile": functools.partial(compiled, in_float32),
    "helion_hc_split_sinkhorn": lambda: hc_split_sinkhorn,
}
"""name -> what builds the function; it takes the arguments of `hc_split_sinkhorn`."""
UNJUDGED = (BASELINE, "torch_compile")
"""Those that need not keep the budget: their gates' gradient takes 1 - sigmoid(a)."""


def share_of_budget(
    case: HcWorkload, given: Tensors, out: Tensors | None, gradients: Tensors | None
) -> float:
    """The largest error in units of its budget: of SAMPLED tokens entry by entry, of all tokens, of the sums.

    All other tokens have one bound a result, from the budgets of the sample.

    Args:
        given: of `inputs`.
        out: (pre, post, comb), or None where the mode has none.
        gradients: of mixes, scale and base, or None.
    """
    mixes, scale, base, *grads = (t.detach() for t in given)
    found = dict(zip(RESULTS, out or (), strict=False))
    found |= dict(zip(("dmixes", "dscale", "dbase"), gradients or (), strict=False))
    # one token is all there is to a sum of the sample
    tokens = [name for name in found if name not in ("dscale", "dbase")]
    few = torch.linspace(0, len(mixes) - 1, min(SAMPLED, len(mixes)), dtype=torch.float64).long()
    few = few.to(mixes.device)
    sample = [t[few, None].cpu() for t in (mixes, *grads)]
    sample += [t.cpu().float().expand(len(few), -1) for t in (scale, base)]
    truth, budgets = exact(case, *sample), error_budget(case, *sample)
    shares = [worst(found[name][few], truth[name][:, 0], budgets[name][:, 0]) for name in tokens]
    budgets["dmixes"] = budgets["dmixes"] - half_ulp(truth["dmixes"], case.dtype)
    within = {name: relative(budgets[name], truth[name]) for name in truth}
    sums = torch.zeros(2, case.columns, dtype=torch.float64, device=mixes.device)
    squares, largest = torch.zeros_like(sums), 0.0
    for at in torch.arange(len(mixes), device=mixes.device).split(max(1, PIECE_ENTRIES // case.columns)):
        results, terms = exact_tokens(case, *(t[at] for t in (mixes, *grads)), scale, base)
        shares += [share_beyond(found[name][at], results[name], within[name]) for name in tokens]
        sums, squares = sums + terms.sum(1), squares + terms.square().sum(1)
        largest = max(largest, float(terms.abs().max()))
    for name, of in (("dbase", lambda t: t[0]), ("dscale", lambda t: parts_of(case, t[1]))):
        if name in found:
            bound = allowed(len(mixes), of(squares), within["dmixes"] * largest)
            shares.append(worst(found[name], of(sums).cpu(), bound.cpu()))
    return max(shares)


def allowed(tokens: int, squares: torch.Tensor, of_a_term: float) -> torch.Tensor:
    """What a sum over tokens may be off by: its additions (as budget.added), and the errors of its terms."""
    additions = SIGMAS * UNIT * (1.0 + 2.0 * math.sqrt(tokens)) * squares.sqrt()
    return additions + BEYOND_SAMPLE * math.sqrt(tokens) * of_a_term


def exact_tokens(case, mixes, dpre, dpost, dcomb, scale, base) -> tuple[dict, torch.Tensor]:
    """The results of tokens in float64 on their device, and the terms (2, tokens, columns) of the sums."""
    wide = mixes.double()
    s = scale.double().repeat_interleave(torch.tensor((case.n, case.n, case.n**2), device=scale.device))
    a = (wide * s + base.double()).requires_grad_()
    out = reference.hc_split_sinkhorn(a, a.new_ones(3), a.new_zeros(case.columns), **case.options)
    (da,) = torch.autograd.grad(out, a, [t.double() for t in (dpre, dpost, dcomb)])
    results = dict(zip(RESULTS, (*(t.detach() for t in out), da * s), strict=False))
    return results, torch.stack([da, da * wide])


def parts_of(case: HcWorkload, t: torch.Tensor) -> torch.Tensor:
    """Sums of the columns of pre, post and comb."""
    return torch.stack([part.sum() for part in t.split((case.n, case.n, case.n**2))])
