"""What `recompute_streams` saves: memory of a deep stack of mHC sites, for several k.

It runs on a GPU or a CPU.  A sublayer is one linear map, which keeps its input: the figures are for the
residual path without attention and MLP.  Bytes are counted storage by storage, without parameters and
gradients.
"""

from __future__ import annotations

import argparse
import gc

import torch

from benchmarks.jobs import Table, of_now
from benchmarks.memory import LiveBytes
from benchmarks.timing import conditions
from helion_sinkhorn import hc_expand, hc_post, nn, recompute_streams

N = 4


class Stack(torch.nn.Module):
    """Sites of mHC around linear sublayers."""

    def __init__(self, updates: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.sites = torch.nn.ModuleList(nn.HyperConnection(hidden, N) for _ in range(updates))
        self.sublayers = torch.nn.ModuleList(
            torch.nn.Linear(hidden, hidden, bias=False, dtype=dtype) for _ in range(updates)
        )

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        x = hc_expand(h, N)
        for site, sublayer in zip(self.sites, self.sublayers, strict=True):
            y, post, comb, residual = site.enter(x)
            x = hc_post(sublayer(y), residual, post, comb)
        return x.mean(-2)


def bytes_a_token(model: Stack, h: torch.Tensor, every: int) -> tuple[float, float]:
    """Held after the forward, and the most at any time."""
    # gradients exist before, so that they are not counted
    model(h).backward(h)
    gc.collect()
    with LiveBytes() as live:
        with recompute_streams(every):
            out = model(h)
        held = live.held
        out.backward(h)
    model.zero_grad(set_to_none=False)
    tokens = h.numel() // h.size(-1)
    return held / tokens, live.peak / tokens


def main(options: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = Stack(options.updates, options.hidden, torch.bfloat16).to(device)
    h = torch.randn(options.tokens, options.hidden, device=device, dtype=torch.bfloat16)
    table = Table(options.write, {**of_now(), **conditions(device)})
    sizes = {k: getattr(options, k) for k in ("updates", "tokens", "hidden")}
    for every in options.every:
        held, peak = bytes_a_token(model, h, every)
        table.add({**sizes, "dtype": "bfloat16", "every": every, "held": round(held), "peak": round(peak)})
        print(f"every {every:3}: {held:9.0f} bytes a token held, {peak:9.0f} at most")
    table.write()
