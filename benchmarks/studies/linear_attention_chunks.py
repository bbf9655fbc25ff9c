"""What each rounding of chunked linear attention costs: its equations in float64, some factors in bfloat16.

Inputs in bfloat16 as `benchmarks.bench linear_attention` draws them, T 2048, 4 heads, Dk 64, Dv 128, gk.
Errors are root mean squares relative to the result's root mean square, before its own rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from helion_sinkhorn.lab.tuning import markdown

STEPS, HEADS, DK, DV, CHUNK = 2048, 4, 64, 128, 64
POINTS = {
    "Q, K": "what the walks multiply the state by",
    "A": "the scores, what the walks multiply V and dO by",
    "states": "h and dh as operands",
    "scores": "q and k relative to the middle of the chunk, the factors of A",
    "pairs": "dA and those factors, in dq and dk",
    "gates": "q dq - k dk, summed over a chunk",
}
Rounding = Callable[[str, torch.Tensor], torch.Tensor]


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).double()


def in_pieces(x: torch.Tensor) -> torch.Tensor:
    """x as the sum of two bfloat16 numbers."""
    return rounded(x) + rounded(x - rounded(x))


def inputs() -> tuple[torch.Tensor, ...]:
    """q, k, v, do, gk, each (H, N, C, width)."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, do, gk = (
        torch.randn((HEADS, STEPS // CHUNK, CHUNK, d), generator=generator) for d in (DK, DK, DV, DV, DK)
    )
    return tuple(rounded(x) for x in (q, k, v, do, torch.nn.functional.logsigmoid(gk) / 8))


def results(r: Rounding, q, k, v, do, gk) -> dict[str, torch.Tensor]:
    """o and gradients by the equations of docs/dev/linear_attention.md; r rounds a factor of a name."""
    scale, lower = DK**-0.5, torch.ones(CHUNK, CHUNK).tril().bool()
    sums = gk.cumsum(2)
    middle = sums[:, :, CHUNK // 2 - 1].unsqueeze(2)
    up, down = (sums - middle).exp(), (middle - sums).exp()
    left, right, kept = middle.exp(), (sums[:, :, -1:] - middle).exp(), sums[:, :, -1].exp()
    x, y = scale * q * up, k * down
    qs, ks = r("Q, K", x * left), r("Q, K", y * right)
    a = r("A", torch.where(lower, r("scores", x) @ r("scores", y).mT, 0.0))

    before, o = walk(r, qs, ks, a, v, kept)
    after, dv = (t.flip(1) for t in walk(r, *(t.flip(1) for t in (ks, qs, a.mT, do, kept))))

    before, after = r("states", before), r("states", after)
    pairs = r("pairs", torch.where(lower, do @ v.mT, 0.0))
    dq = (do @ before.mT * left + pairs @ r("pairs", y)) * up
    dk = v @ after.mT * right
    leaving = (y * dk).sum(2) + (before * after).sum(-1) * kept
    dk = (dk + pairs.mT @ r("pairs", x)) * down
    dw = r("gates", scale * q * dq - k * dk)
    dgk = dw.flip(2).cumsum(2).flip(2) + leaving.unsqueeze(2)
    return {"o": o, "dq": dq * scale, "dk": dk, "dv": dv, "dgk": dgk}


def walk(r: Rounding, x, y, a, v, kept) -> tuple[torch.Tensor, torch.Tensor]:
    """(the state before every chunk, outputs)."""
    s = v.new_zeros(HEADS, DK, DV)
    states, outputs = [], []
    for c in range(v.size(1)):
        states.append(s)
        outputs.append(x[:, c] @ r("states", s) + a[:, c] @ v[:, c])
        s = kept[:, c].unsqueeze(-1) * s + y[:, c].mT @ v[:, c]
    return torch.stack(states, 1), torch.stack(outputs, 1)


def main(options: argparse.Namespace) -> None:
    tensors = inputs()
    exact = results(lambda _, x: x, *tensors)

    def row(said: str, r: Rounding, last=lambda x: x) -> None:
        found = results(r, *tensors)
        errors = [(last(found[n]) - e).norm() / e.norm() for n, e in exact.items()]
        print(markdown.line((said, *(f"{1e3 * e:.1f}" for e in errors))), flush=True)

    print(markdown.head(("rounded once", *exact)))
    for point, what in POINTS.items():
        row(f"{point}: {what}", lambda name, x, point=point: rounded(x) if name == point else x)
    once = {"Q, K", "A", "states"}
    row("all of these", lambda _, x: rounded(x))
    row("the first three, the others in two pieces", lambda n, x: rounded(x) if n in once else in_pieces(x))
    row("the same, A in two pieces too", lambda n, x: rounded(x) if n in once - {"A"} else in_pieces(x))
    row("the results alone", lambda _, x: x, rounded)
