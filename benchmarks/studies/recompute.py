"""What `recompute_streams` saves: memory of a deep stack of mHC sites, for several k.

    python -m benchmarks.studies.recompute                      # 80 updates, two a layer; 40 s on one core
    python -m benchmarks.studies.recompute --write docs/bench/recompute.csv

On a GPU or a CPU.  A sublayer is one linear map, which keeps its input: the figures are those of the residual
path, and not of attention and MLP.  Bytes are counted storage by storage, without parameters and gradients.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from benchmarks import command


def make_parser() -> argparse.ArgumentParser:
    parser = command.parser("studies.recompute", __doc__)
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 2, 4, 8, 16, 40])
    parser.add_argument("--write", type=Path, metavar="FILE", help="as CSV")
    return parser


if __name__ == "__main__":
    # what follows imports torch, which takes seconds
    make_parser().parse_args()

import torch

from benchmarks.jobs import Table, of_now
from benchmarks.live_bytes import LiveBytes
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
    """Held behind the forward, and the most at any time."""
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


def main(words: list[str] | None = None) -> list[dict[str, object]]:
    parser = make_parser()
    args = parser.parse_args(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16
    torch.manual_seed(0)
    model = Stack(args.updates, args.hidden, dtype).to(device)
    h = torch.randn(args.tokens, args.hidden, device=device, dtype=dtype)
    table = Table(args.write, {**of_now(), **conditions(h.device)})
    sizes = {"updates": args.updates, "tokens": args.tokens, "hidden": args.hidden, "dtype": "bfloat16"}
    for every in args.every:
        held, peak = bytes_a_token(model, h, every)
        table.add({**sizes, "every": every, "held": round(held), "peak": round(peak)})
        print(f"every {every:3}: {held:9.0f} bytes a token held, {peak:9.0f} at most")
    if args.write:
        table.write()
    return table.rows


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
