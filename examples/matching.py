"""Learn to sort numbers with Gumbel-Sinkhorn, a differentiable stand-in for a permutation.

    python examples/matching.py          # 15 s on one CPU core

A network gives number i a score for each rank j.  Sinkhorn turns the scores, with Gumbel noise and divided
by a temperature, into a doubly stochastic matrix, which approaches a permutation as the temperature
approaches 0 (Mena et al., Learning Latent Permutations with Gumbel-Sinkhorn Networks, arXiv 1802.08665).
The loss compares the list that this matrix makes of the numbers with the sorted list.  The log form has no
eps; -inf forbids a pair.
"""

from __future__ import annotations

import argparse


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python examples/matching.py", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--n", type=int, default=8, help="numbers of a list")
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args(words)
    for name, value in vars(args).items():
        if value < 1:
            parser.error(f"argument --{name}: {value} is no int of at least 1")
    return args


if __name__ == "__main__":  # before torch is imported, which takes seconds
    parsed()

import torch

from helion_sinkhorn import sinkhorn


def soft_permutation(scores: torch.Tensor, temperature: float, noise: float, n_iters: int) -> torch.Tensor:
    """(..., n, n) scores to a doubly stochastic matrix of the same shape."""
    gumbel = -torch.empty_like(scores).exponential_().log()
    return sinkhorn((scores + noise * gumbel) / temperature, n_iters, form="log")


def main(words: list[str] | None = None) -> float:
    """Share of numbers that are moved to their place."""
    args = parsed(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # from a number to its score for each rank
    network = torch.nn.Linear(1, args.n).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.3)
    for step in range(args.steps):
        x = torch.rand(args.batch, args.n, 1, device=device)
        p = soft_permutation(network(x), temperature=1.0, noise=1.0, n_iters=20)
        # row i of p says which rank number i takes
        loss = (p.mT @ x - x.sort(-2).values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step:4}: loss {loss.item():.5f}")
    x = torch.rand(1000, args.n, 1, device=device)
    with torch.no_grad():
        # the lower the temperature, the more iterations it takes to converge
        ranks = soft_permutation(network(x), temperature=0.05, noise=0.0, n_iters=1000).argmax(-1)
    right = float((ranks == x.squeeze(-1).argsort(-1).argsort(-1)).float().mean())
    print(f"{100 * right:.1f} % of the numbers of 1000 lists are moved to their place")
    return right


if __name__ == "__main__":
    main()
