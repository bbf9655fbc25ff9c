"""Train a small transformer whose residual path is mHC.

    python examples/train_mhc.py          # 15 s on one CPU core; a GPU is taken where there is one

A block of an ordinary transformer adds its output to one residual stream.  With mHC there are n streams.  A
site collapses them to the input of its sublayer; after the sublayer they are mixed by a doubly stochastic
matrix of each token, and the output is added to each.  Here that is `HyperConnection.enter` before a sublayer
and `hc_post` after it.  The task is to repeat the first half of a sequence.  SinkhornBalanced trains the
embedding and the output, whose updates it balances, and AdamW all else.
"""

from __future__ import annotations

import argparse

STREAMS, HEADS, SYMBOLS, HALF = 4, 4, 16, 8


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python examples/train_mhc.py", description=__doc__.splitlines()[0])
    for name, default in (("steps", 200), ("hidden", 64), ("blocks", 1), ("batch", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(words)
    for name, value in vars(args).items():
        if value < 1:
            parser.error(f"argument --{name}: {value} is no int of at least 1")
    if args.hidden % HEADS:
        parser.error(f"--hidden is a multiple of the {HEADS} heads")
    return args


if __name__ == "__main__":  # before torch is imported, which takes seconds
    parsed()

import torch
from torch.nn import functional

from helion_sinkhorn import hc_expand, hc_post, nn
from helion_sinkhorn.optim import SinkhornBalanced


class Attention(torch.nn.Module):
    """Causal self-attention after a norm."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(hidden)
        self.qkv = torch.nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = torch.nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


def mlp(hidden: int) -> torch.nn.Module:
    up, down = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)
    return torch.nn.Sequential(torch.nn.RMSNorm(hidden), up, torch.nn.SiLU(), down)


class Transformer(torch.nn.Module):
    """Blocks of attention and MLP, a site of mHC at each."""

    def __init__(self, hidden: int, blocks: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(SYMBOLS, hidden)
        self.position = torch.nn.Parameter(0.02 * torch.randn(2 * HALF, hidden))
        self.sublayers = torch.nn.ModuleList(f(hidden) for _ in range(blocks) for f in (Attention, mlp))
        self.sites = torch.nn.ModuleList(nn.HyperConnection(hidden, STREAMS) for _ in self.sublayers)
        self.head = nn.HyperHead(hidden, STREAMS)
        self.output = torch.nn.Sequential(torch.nn.RMSNorm(hidden), torch.nn.Linear(hidden, SYMBOLS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, T) token ids to (batch, T, SYMBOLS) logits."""
        streams = hc_expand(self.embedding(tokens) + self.position[: tokens.size(1)], STREAMS)
        for site, sublayer in zip(self.sites, self.sublayers, strict=True):
            y, post, comb, residual = site.enter(streams)
            streams = hc_post(sublayer(y), residual, post, comb)
        return self.output(self.head(streams))


def draw(batch: int, device: str) -> torch.Tensor:
    """(batch, 2 HALF) token ids; the second half repeats the first."""
    return torch.randint(SYMBOLS, (batch, HALF), device=device).repeat(1, 2)


def main(words: list[str] | None = None) -> list[float]:
    """Losses of the repeated half, a number a step, in nats a token."""
    args = parsed(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        # with more threads such small tensors take longer: 72 s instead of 14 on two cores
        torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer(args.hidden, args.blocks).to(device)
    tables = [model.embedding.weight, model.output[1].weight]
    rest = [p for p in model.parameters() if all(p is not table for table in tables)]
    optimizers = SinkhornBalanced(tables, lr=1e-2), torch.optim.AdamW(rest, lr=1e-2)
    losses = []
    for step in range(args.steps):
        tokens = draw(args.batch, device)
        logits = model(tokens[:, :-1])[:, HALF - 1 :]
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, HALF:].flatten())
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step:4}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
