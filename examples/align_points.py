"""Find which of 1000 points is which after an unknown map, by Gumbel-Sinkhorn.

    python examples/align_points.py          # 15 s on one CPU core

The second cloud is the first one, mapped linearly, with noise, in another order.  From a guess of the map,
scores of all pairs of points with Gumbel noise become an almost doubly stochastic matrix, a soft permutation
(Mena et al., Learning Latent Permutations with Gumbel-Sinkhorn Networks, arXiv 1802.08665).  The loss is the
squared distance that matched points still have; its gradient moves the map, and the temperature falls.
Beyond 128 points the gradient keeps two vectors an iteration and no matrix of it.
"""

from __future__ import annotations

import argparse


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python examples/align_points.py", description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1000, help="points")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args(words)
    for name, value in vars(args).items():
        if value < 1:
            parser.error(f"argument --{name}: {value} is no int of at least 1")
    return args


if __name__ == "__main__":  # before torch is imported, which takes seconds
    parsed()

import torch

from helion_sinkhorn import sinkhorn

DIMENSIONS = 6


def scores(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Minus the squared distances of all pairs of points."""
    return -(a.square().sum(-1, keepdim=True) + b.square().sum(-1) - 2 * a @ b.mT)


def soft_permutation(scores: torch.Tensor, temperature: float, noise: float, n_iters: int) -> torch.Tensor:
    """Scores with Gumbel noise to a matrix whose columns have the sum 1 and whose rows almost do."""
    gumbel = -torch.empty_like(scores).exponential_().log()
    return sinkhorn(scores + noise * gumbel, n_iters, form="log", temperature=temperature)


def main(words: list[str] | None = None) -> float:
    """Share of points that are matched with their own image."""
    args = parsed(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    a = torch.randn(args.n, DIMENSIONS, device=device)
    true = torch.eye(DIMENSIONS, device=device) + 0.4 * torch.randn(DIMENSIONS, DIMENSIONS, device=device)
    order = torch.randperm(args.n, device=device)
    b = (a @ true + 0.02 * torch.randn_like(a))[order]
    guess = torch.nn.Parameter(torch.eye(DIMENSIONS, device=device))
    optimizer = torch.optim.Adam([guess], lr=0.05)

    @torch.no_grad()
    def matched() -> float:
        p = soft_permutation(scores(a @ guess, b), 0.1, 0.0, 30)
        return float((order[p.argmax(-1)] == torch.arange(args.n, device=device)).float().mean())

    print(f"{100 * matched():.1f} % of {args.n} points are matched with their own image before")
    for step in range(args.steps):
        of_pairs = scores(a @ guess, b)
        p = soft_permutation(of_pairs, 0.1 ** (step / args.steps), 0.1, 20)
        loss = -(p * of_pairs).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == args.steps - 1:
            print(f"step {step:3}: loss {loss.item():.4f}")
    right = matched()
    print(f"{100 * right:.1f} % afterwards")
    return right


if __name__ == "__main__":
    main()
