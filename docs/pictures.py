"""The pictures of the pages, from committed files: python -m docs.numbers --pictures"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.sinkhorn.report import COLORS
from helion_sinkhorn.lab.operators import OPERATORS, operator_for
from helion_sinkhorn.lab.workloads import WORKLOADS

Artefacts = dict[str, dict[str, Any]]
PANELS = {"float32": "float32 results", "16 bits": "bfloat16 and float16 results"}


def results(artefacts: Artefacts) -> Iterator[tuple[str, str, str, float]]:
    """Device, operator, kind of dtype and error over budget of each tested result."""
    for device, artefact in artefacts.items():
        for name, record in artefact["workloads"].items():
            operator = operator_for(WORKLOADS[name]).name
            for result in record["results"]:
                kind = "float32" if result["dtype"] == "float32" else "16 bits"
                yield device, operator, kind, result["worst"]


def accuracy(artefacts: Artefacts, path: Path) -> None:
    """A row for each operator, a dot for each result: its largest error in units of the budget."""
    every = list(results(artefacts))
    names = [name for name in OPERATORS if any(operator == name for _, operator, _, _ in every)]
    figure = Figure(figsize=(9, 1.6 + 0.42 * len(names)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    random = np.random.default_rng(0)
    worst = dict(markersize=6, markeredgecolor="black")
    for axis, (kind, title) in zip(axes, PANELS.items(), strict=True):
        for (k, device), (row, name) in itertools.product(enumerate(artefacts), enumerate(names)):
            errors = [error for *where, error in every if where == [device, name, kind]]
            if errors:
                middle = row + (k + 0.5) / len(artefacts) - 0.5
                spread = random.uniform(-0.28, 0.28, len(errors)) / len(artefacts)
                axis.plot(errors, middle + spread, ".", color=COLORS[k], alpha=0.35, markersize=4)
                axis.plot([max(errors)], [middle], "D", color=COLORS[k], **worst)
        axis.axvline(1.0, color="#D55E00", linewidth=1.5)
        axis.text(1.015, -0.42, "limit", color="#D55E00", fontsize=11, va="center")
        axis.set(title=title, xlim=(0, 1.15), ylim=(len(names) - 0.4, -0.7))
        axis.grid(axis="x", alpha=0.3)
        axis.tick_params(labelsize=11)
    axes[0].set_yticks(range(len(names)), names)
    figure.supxlabel("largest error of a result / its budget", fontsize=12)
    handles = [
        axes[0].plot([], [], "D", color=COLORS[k], markeredgecolor="black", label=f"worst, {device}")[0]
        for k, device in enumerate(artefacts)
    ]
    handles += axes[0].plot([], [], ".", color="0.4", label="each result")
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=11)
    figure.savefig(path, dpi=110)
