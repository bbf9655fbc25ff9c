"""The difference of two models on the same tokens, and the difference that float32 allows."""

from __future__ import annotations

import copy
import math

import torch

TIMES = 4.0
"""Differences allowed, in units of `sensitivity`: two evaluations, each of which may err by a few units."""
DRAWS = 6

Results = dict[str, torch.Tensor]


def results(model: torch.nn.Module, tokens: torch.Tensor) -> Results:
    """The logits, and the gradient of every parameter that has one, of the loss of the next token."""
    model.zero_grad()
    out = model(input_ids=tokens, labels=tokens, use_cache=False)
    out.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": out.logits.detach(), **gradients}


@torch.no_grad()
def move(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Each number of each parameter by one unit in the last place, up or down at random."""
    for p in model.parameters():
        up = torch.randint(0, 2, p.shape, generator=generator).bool().to(p.device)
        p.copy_(torch.nextafter(p, torch.where(up, math.inf, -math.inf)))


def sensitivity(model: torch.nn.Module, tokens: torch.Tensor) -> dict[str, float]:
    """The most that each result moves when parameters are moved, in DRAWS draws.

    No float32 evaluation can be held to less, because rounding the parameters alone does as much.
    """
    exact, largest = results(model, tokens), dict[str, float]()
    for seed in range(DRAWS):
        moved = copy.deepcopy(model)
        move(moved, torch.Generator().manual_seed(seed))
        for name, difference in differences(results(moved, tokens), exact).items():
            largest[name] = max(largest.get(name, 0.0), difference)
    return largest


def differences(tensors: Results, expected: Results) -> dict[str, float]:
    """The largest absolute difference of each result."""
    if tensors.keys() != expected.keys():
        raise ValueError(f"only one has {sorted(tensors.keys() ^ expected.keys())}")
    return {name: float((tensors[name].double() - y.double()).abs().max()) for name, y in expected.items()}


def error(rounded: list[Results], exact: list[Results], names: list[str]) -> float:
    """The norm of the errors of the results named over the norm of these results, all as one vector."""
    pairs = [
        (f[name].double(), e[name].double()) for f, e in zip(rounded, exact, strict=True) for name in names
    ]
    squared_error = sum(float((f - e).square().sum()) for f, e in pairs)
    return math.sqrt(squared_error / sum(float(e.square().sum()) for _, e in pairs))


def narrowed(model: torch.nn.Module, exact: bool = False) -> torch.nn.Module:
    """A copy in bfloat16 as from_pretrained makes it, mHC modules and norms float32.

    Args:
        exact: keep the dtype float32, with the same values.
    """
    made = copy.deepcopy(model)
    for name, p in made.named_parameters():
        if not any(f".{kept}." in f".{name}." for kept in model._keep_in_fp32_modules_strict):
            p.data = p.data.bfloat16().float() if exact else p.data.bfloat16()
    return made
