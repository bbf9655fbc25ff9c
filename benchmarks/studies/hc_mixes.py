"""What the projection of mHC loses where its factors are rounded, on a CPU against float64.

x is bfloat16 randn, fn float32 of deviation 0.01
at C = 4096 and 0.03 at C = 7168, four streams, 512 tokens.  A factor is replaced by what a matrix unit would
be given, and its products are summed in float64, but for the rows that say float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from helion_sinkhorn import reference
from helion_sinkhorn.lab.rounding import bfloat16_parts, tf32, tf32_cut
from helion_sinkhorn.lab.tuning import markdown

TOKENS, STREAMS, ROWS = 512, 4, 24
SIZES = ((4096, 0.01), (7168, 0.03))
Change = Callable[[torch.Tensor], torch.Tensor]


def parts(count: int) -> Change:
    return lambda x: sum(bfloat16_parts(x, count))


FACTORS: dict[str, Change] = {
    "bfloat16": parts(1),
    "TF32, cut": tf32_cut,
    "TF32, rounded": tf32,
    "two bfloat16 parts": parts(2),
    "three bfloat16 parts": parts(3),
}


def results(x, fn, dmixes, change: Change) -> dict[str, torch.Tensor]:
    """mixes, comb, dx and dfn with every float32 factor of a product changed."""
    r = 1 / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    mixes = r * (x @ change(fn).mT)
    g = change(r * dmixes)
    along = (dmixes * mixes).sum(-1, keepdim=True)
    ones, zeros = mixes.new_ones(3), mixes.new_zeros(ROWS)
    return {
        "mixes": mixes,
        "comb": reference.hc_split_sinkhorn(mixes, ones, zeros)[2],
        "dx": g @ change(fn) - r.square() / x.size(-1) * along * x,
        "dfn": g.mT @ x,
    }


def table(c: int, deviation: float) -> str:
    generator = torch.Generator().manual_seed(0)
    k = STREAMS * c
    x = torch.randn(TOKENS, k, generator=generator).bfloat16()
    fn = deviation * torch.randn(ROWS, k, generator=generator)
    dmixes = torch.randn(TOKENS, ROWS, generator=generator)
    exact = results(x.double(), fn.double(), dmixes.double(), lambda t: t)

    def row(said: str, tensors: dict[str, torch.Tensor]) -> list[str]:
        wrong = [(tensors[name].double() - t).abs().max() for name, t in exact.items()]
        sizes = [1.0 if name == "comb" else float(t.square().mean().sqrt()) for name, t in exact.items()]
        return [said, *(f"{e / s:.1e}" for e, s in zip(wrong, sizes, strict=True))]

    rows = [
        row(said, results(x.double(), fn.double(), dmixes.double(), change))
        for said, change in FACTORS.items()
    ]
    rows.append(row("float32, and sums in float32", results(x.float(), fn, dmixes, lambda t: t)))
    rounded = {"dx": exact["dx"].bfloat16()}
    rows.append(row("the exact results, dx in bfloat16", exact | rounded))
    return markdown.table((f"C = {c}: float32 factors as", *exact), rows)


def main(options: argparse.Namespace) -> None:
    print("Largest error relative to the root mean square of the result, of comb absolute.\n")
    for c, deviation in SIZES:
        print(table(c, deviation), "\n", flush=True)
