"""Training on paths of a Markov chain, its picture, and what a step costs on a GPU."""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass

import torch

from benchmarks.demo_model import compare
from benchmarks.demo_model.model import Chain, make_model
from benchmarks.memory import most_allocated
from helion_sinkhorn.integrations.transformers import patch
from helion_sinkhorn.lab.tuning.timing import timed

BATCH, LENGTH = 8, 32
WIDE, TOKENS = 2048, 4096
"""Hidden size and tokens of the step that is timed."""
LEARNING_RATE, RUNS = 3e-3, 5


@dataclass(frozen=True)
class Run:
    """Losses of a training, the experts that its tokens took, and seconds a step."""

    losses: torch.Tensor
    experts: torch.Tensor
    """(steps, tokens, CHOSEN), ascending: a tie of two that rounding decides moves a loss by some 1e-5."""
    seconds: float


Curves = dict[str, Run]


def train(model: torch.nn.Module, chain: Chain, steps: int, moved: bool = False) -> Run:
    """AdamW on paths of the chain, the same ones for every model.

    Args:
        moved: move the parameters by a unit in the last place before each step.
    """
    generator, ulps = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses, experts, start = [], [], time.perf_counter()
    router = model.model.layers[-1].mlp.gate
    hook = router.register_forward_hook(lambda _, given, chosen: experts.append(chosen[-1].sort(-1).values))
    for _ in range(steps):
        tokens = chain.draw(BATCH, LENGTH, generator).to(model.device)
        if moved:
            compare.move(model, ulps)
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    hook.remove()
    return Run(torch.stack(losses).cpu(), torch.stack(experts).cpu(), (time.perf_counter() - start) / steps)


def same_experts(one: Run, other: Run) -> int:
    """Steps before a token takes another expert."""
    differs = (one.experts != other.experts).flatten(1).any(1)
    return int(differs.int().argmax()) if differs.any() else len(differs)


def draw(path: str, curves: Curves, entropy: float) -> None:
    """Losses of both models, and below how far they and the moved one are from the original."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    original = curves["original"].losses
    above.plot(original, label="transformers", linewidth=3, alpha=0.4)
    above.plot(curves["patched"].losses, label="patched with helion_sinkhorn", linewidth=1)
    above.axhline(entropy, color="gray", linestyle=":", label="entropy of the chain")
    above.set(ylabel="loss, nats a token", title="A tiny DeepseekV4 learning a Markov chain, float32")
    above.legend()
    for name, label in (("patched", "patched"), ("moved", "transformers, parameters moved by 1 ulp a step")):
        below.semilogy((curves[name].losses - original).abs().clamp(min=1e-8), label=label, linewidth=1)
    below.set(ylabel="|loss - loss of transformers|", xlabel="step")
    below.set_ylim(top=1e-4)
    below.legend()
    figure.savefig(path, dpi=110)


def step_costs(device: str, steps: int = 10) -> dict[str, tuple[float, float]]:
    """(milliseconds, peak MiB) of forward and backward of a wider model in bfloat16, original and patched.

    Milliseconds are the median of RUNS runs of `steps`, after three steps that are not counted.
    """
    original = compare.narrowed(make_model(1024, hidden=WIDE)).to(device)
    patched = copy.deepcopy(original)
    patch(patched)
    tokens = torch.randint(1024, (8, TOKENS // 8), generator=torch.Generator().manual_seed(0)).to(device)
    costs = {}
    for name, model in (("original", original), ("patched", patched)):

        def step(model: torch.nn.Module = model) -> None:
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
            model.zero_grad()

        for _ in range(3):
            step()
        runs = [timed(lambda step=step: [step() for _ in range(steps)]) for _ in range(RUNS)]
        costs[name] = statistics.median(runs) / 1e3 / steps, most_allocated(step)[0] / 2**20
    return costs
