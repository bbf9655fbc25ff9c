"""The inputs of `--op hc_site`, its backends, and the bounds of their results."""

from __future__ import annotations

import math
from functools import partial

import torch

from helion_sinkhorn import hc_mixes, hc_pre, hc_site, hc_split_sinkhorn, reference
from helion_sinkhorn.lab.site.budget import RESULTS, Site, evaluated, site_of
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.lab.split import budget as of_split
from tritonbench_ops import flags
from tritonbench_ops.bounds import PIECE_ENTRIES, Sums, Tensors, largest_share, pieces
from tritonbench_ops.hc_mixes.cases import variance_of_dfn
from tritonbench_ops.hc_split_sinkhorn.cases import by_part, variance_of_sum
from tritonbench_ops.judged import Backends, Judged, of_pytorch
from tritonbench_ops.measure import of_mode

OF_TOKENS, SUMS = RESULTS[:4], RESULTS[4:]

parse = flags.parser("hc_site").parse_args
cases = partial(flags.bench, "hc_site", HcSiteWorkload)
LEAVES = 4
x_value = "{0.batch}x{0.n}x{0.c}".format


def inputs(case: HcSiteWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(x (T, n, C), fn, scale, base, dy, dpost, dcomb, dresidual), upstream as results are in order."""
    x, fn, _, scale, base, dresidual, *upstream = case.make_inputs(device=device)
    return x.flatten(0, 1), fn, scale, base, *(t.flatten(0, 1) for t in (*upstream, dresidual))


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


BACKENDS: Backends = {
    **of_pytorch(in_float32),
    "helion_parts": lambda: by_parts,
    "helion_hc_site": lambda: hc_site,
}


class Operator(Judged):
    """What mHC does before a sublayer; an input is (x, fn, scale, base, upstream gradients)."""

    label = "TxnxC"
    with_options = True
    # autograd rounds their sums of dx to the dtype of x
    UNJUDGED = (*Judged.UNJUDGED, "helion_parts")

    def required(self):
        must, judged = super().required()
        # without a GPU, where it has no kernels, it is its parts
        is_parts = self.device == "cpu" and self.dtype != torch.float32 and self.mode.value.endswith("bwd")
        return must, judged - {"helion_hc_site"} if is_parts else judged


def share_of_budget(
    case: HcSiteWorkload, given: Tensors, out: Tensors | None, gradients: Tensors | None
) -> float:
    """The largest error of y, post, comb and the gradients; the residual is x itself, to the bit."""
    given = [t.detach() for t in given]
    results = dict(zip(OF_TOKENS[:3], out or (), strict=False))
    results |= dict(zip(RESULTS[3:], gradients or (), strict=False))
    x, parameters, (*others, dresidual) = given[0], given[1:4], given[4:]
    shares, sums = [0.0 if out is None or torch.equal(out[3], x) else math.inf], Sums()
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
            variance = variance - of_additions(case, piece["y"].value.size(1), name, value, terms[name])
            sums.add(name, value, terms[name], variance.clamp(min=0))
    return max([*shares, *sums.shares(results, partial(of_additions, case, len(x)))])


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
    case: HcSiteWorkload, tokens: int, name: str, value: torch.Tensor, squares: torch.Tensor
) -> torch.Tensor:
    """The variance that the additions of a sum over so many tokens bring."""
    if name == "dfn":
        return variance_of_dfn(case.of_mixes, value, squares, tokens)
    return variance_of_sum(case.of_split, tokens, name, value, squares)
