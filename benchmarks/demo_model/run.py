"""What the demo prints: comparisons before training, and loss curves."""

from __future__ import annotations

import argparse
import copy
import os
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table

from benchmarks.demo import versions
from benchmarks.demo_model import compare, training
from benchmarks.demo_model.model import Chain, make_model
from benchmarks.jobs import Table as Rows
from benchmarks.jobs import of_now
from benchmarks.timing import conditions
from helion_sinkhorn.integrations.transformers import patch

VOCABULARY = 32
BATCHES, NO_WORSE = 8, 1.03
"""Batches in bfloat16, and the factor over the original's error that is allowed: it is a random draw too."""
LAST, LEARNED = 20, 0.25
"""Losses that are averaged, and how much of the way to the chain's entropy may be left."""
console = Console(highlight=False, width=110)


def table_of(title: str, *headings: str, caption: str | None = None) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(title=title, caption=caption, min_width=72)
    for k, heading in enumerate(headings):
        table.add_column(heading, justify="right" if k else "left")
    return table


def verdict(passed: bool) -> str:
    return "[green]ok[/]" if passed else "[red]FAILED[/]"


def compare_float32(original: torch.nn.Module, patched: torch.nn.Module, tokens: torch.Tensor) -> bool:
    """Logits and every gradient of both, against what a unit in the last place of the parameters makes."""
    expected, results = compare.results(original, tokens), compare.results(patched, tokens)
    moved, apart = compare.sensitivity(original, tokens), compare.differences(results, expected)
    title = f"float32: logits and all {len(results) - 1} gradients"
    table = table_of(title, "of the largest entry", "difference", "one ulp of parameters", "")
    rows = {"logits": ["logits"]}
    for name in results:
        if name != "logits":
            parts = name.split(".")
            path = next((part for part in parts if "hc" in part), None)
            rows.setdefault(f"d {path}.{parts[-1]}" if path else "d of all others", []).append(name)
    passed = True
    for label, names in rows.items():
        fine = all(apart[name] <= compare.TIMES * moved[name] for name in names)
        passed &= fine
        worst = max(names, key=lambda name: apart[name] / max(moved[name], 1e-38))
        largest = float(expected[worst].abs().max())
        table.add_row(
            f"{label} ({len(names)})" if len(names) > 1 else label,
            f"{apart[worst] / largest:.1e}", f"{moved[worst] / largest:.1e}", verdict(fine),
        )  # fmt: skip
    console.print(table)
    return passed


def compare_bfloat16(original: torch.nn.Module, chain: Chain) -> bool:
    """Errors of both in bfloat16, against float32 of the same weights."""
    exact = compare.narrowed(original, exact=True)
    narrow = compare.narrowed(original)
    patched = copy.deepcopy(narrow)
    patch(patched)
    generator = torch.Generator().manual_seed(3)
    batches = [
        chain.draw(training.BATCH, training.LENGTH, generator).to(original.device) for _ in range(BATCHES)
    ]
    truth, *others = ([compare.results(m, tokens) for tokens in batches] for m in (exact, narrow, patched))
    groups = {
        "logits": ["logits"],
        "gradients of mHC": [name for name in truth[0] if "hc" in name],
        "all other gradients": [name for name in truth[0] if "hc" not in name and name != "logits"],
    }
    table = table_of(
        f"bfloat16: relative error against float32, {BATCHES} batches", "", "original", "patched", "",
        caption="transformers rounds post, comb, both products and their sum; hc_post rounds once",
    )  # fmt: skip
    passed = True
    for label, names in groups.items():
        errors = [compare.error(each, truth, names) for each in others]
        fine = errors[1] <= NO_WORSE * errors[0]
        passed &= fine
        table.add_row(label, *(f"{e:.2e}" for e in errors), verdict(fine))
    console.print(table)
    return passed


def compare_training(curves: training.Curves, entropy: float) -> bool:
    """Loss curves of both, against one whose parameters move by a unit in the last place before each step.

    They are compared until a token takes another expert, at least over half of the steps.
    """
    original = curves["original"].losses
    steps = {name: training.same_experts(curves[name], curves["original"]) for name in ("patched", "moved")}
    apart, moved = (
        max((curves[name].losses - original)[:count].abs().tolist(), default=0.0)
        for name, count in steps.items()
    )
    allowed = compare.TIMES * moved
    learned = (original[-LAST:].mean() - entropy) / (original[0] - entropy)
    table = table_of(
        f"{len(original)} steps of AdamW, float32", "", "first loss", f"mean of last {LAST}", "s a step",
        caption=f"the chain's entropy is {entropy:.3f}",
    )  # fmt: skip
    for name, run in curves.items():
        first, last = run.losses[0].item(), run.losses[-LAST:].mean().item()
        table.add_row(name, f"{first:.6f}", f"{last:.6f}", f"{run.seconds:.3f}")
    console.print(table)
    long = 2 * min(steps.values()) >= len(original)
    same, useful = long and apart <= allowed, bool(learned < LEARNED)
    console.print(
        f"all tokens take the same experts for {steps['patched']} steps; until then the curves differ by at "
        f"most {apart:.1e}, allowed {allowed:.1e}: {verdict(same)}"
    )
    console.print(f"{100 * (1 - learned):.0f} % of what there is to learn was learned: {verdict(useful)}")
    return same and useful


def print_costs(device: str, write: Path | None = None) -> int:
    """Step time and memory of a wider model in bfloat16, as CSV too."""
    transformers.utils.logging.set_verbosity_error()
    title = f"forward and backward in bfloat16: hidden {training.WIDE}, 2 layers, {training.TOKENS} tokens"
    table = table_of(title, "", "ms", "peak MiB")
    about = {**of_now(), **conditions(torch.device(device)), "transformers_version": transformers.__version__}
    rows = Rows(write, about)
    for name, (milliseconds, mebibytes) in training.step_costs(device).items():
        table.add_row(name, f"{milliseconds:.2f}", f"{mebibytes:.0f}")
        rows.add({"model": name, "ms": f"{milliseconds:.4g}", "peak_mib": round(mebibytes)})
    console.print(table)
    rows.write()
    return 0


def run(args: argparse.Namespace) -> int:
    """The exit status."""
    transformers.utils.logging.set_verbosity_error()
    # tensors are tiny: threads would wait for one another longer than they compute
    torch.set_num_threads(1)
    console.print(f"{versions(torch.device(args.device))}\ntransformers {transformers.__version__}")
    original = make_model(VOCABULARY).to(args.device)
    patched = copy.deepcopy(original)
    console.print(f"patch: {patch(patched)}, {sum(p.numel() for p in patched.parameters())} parameters\n")
    chain = Chain(VOCABULARY)
    tokens = chain.draw(training.BATCH, training.LENGTH, torch.Generator().manual_seed(0)).to(args.device)
    passed = compare_float32(original, patched, tokens)
    passed &= compare_bfloat16(original, chain)
    curves = {
        "original": training.train(copy.deepcopy(original), chain, args.steps),
        "patched": training.train(patched, chain, args.steps),
        "moved": training.train(original, chain, args.steps, moved=True),
    }
    passed &= compare_training(curves, chain.entropy)
    training.draw(args.output, curves, chain.entropy)
    console.print(f"loss curves: {os.path.abspath(args.output)}")
    if args.device != "cpu":
        print_costs(args.device)
    return 0 if passed else 1
