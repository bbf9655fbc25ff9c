"""The gate's verdicts on correct implementations, which it must pass, and on faults, which it must find.

Correct implementations of an operator differ in what vendors, compilers and kernels may choose.  Faults are
what none may do.

    python -m ci.fault_tables [--write docs/dev/results.md]    what is caught, by which rule
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def make_parser(names=None) -> argparse.ArgumentParser:
    """The command line; names and defaults that need torch are passed in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1 << 18, help="entries times iterations for a workload")
    parser.add_argument("--out", type=Path, default=Path("accuracy"), help="folder of faults.md, every table")
    parser.add_argument("--write", type=Path, help="a page with a row of counts for each operator, renewed")
    parser.add_argument("--operators", nargs="+", choices=names, default=names)
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # the next lines import torch, which takes seconds; --help then has all names
    make_parser().parse_args()

import torch

from ci.gate import markdown as report
from ci.gate.gate import Operator
from ci.gate.wrong import Results, Run
from ci.operators import OPERATORS, operator_of
from helion_sinkhorn.lab.truth import Statistics, Truth
from helion_sinkhorn.lab.tuning import markdown
from helion_sinkhorn.lab.workloads import tagged


@dataclass(frozen=True)
class Opinion:
    """The verdicts of the gate and of rules in common use on one implementation and one workload."""

    gate: bool
    """Accepted by the gate."""
    statistics: dict[str, Statistics]
    assert_close: bool | None = None
    cosine: bool | None = None
    twice: bool | None = None
    """Accepted by the rules in common use; None if these were not applied."""

    def within(self, most: dict[str, tuple[float, ...]]) -> bool:
        """Whether no statistic is larger than for correct implementations on the same inputs."""
        return all(
            v <= limit for q, s in self.statistics.items() for v, limit in zip(size(s), most[q], strict=True)
        )


def size(s: Statistics) -> tuple[float, ...]:
    return s.worst, s.rms, abs(s.bias)


def opinion(truth: dict[str, Truth], results: Results, baseline: Results | None) -> Opinion:
    """Which rules reject one implementation's results; the other rules compare with `baseline`, if given."""
    statistics = {name: truth[name].judge(result) for name, result in results.items()}
    accepted = all(s.passes for s in statistics.values())
    if baseline is None:
        return Opinion(accepted, statistics)
    close, cosine, twice = True, True, True
    for name, result in results.items():
        other = baseline[name]
        try:
            torch.testing.assert_close(result, other)
        except AssertionError:
            close = False
        a, b = result.double().flatten(), other.double().flatten()
        cosine &= torch.nn.functional.cosine_similarity(a, b, dim=0).item() >= 0.99
        exact = truth[name].exact.flatten()
        twice &= (a - exact).abs().max().item() <= 2 * (b - exact).abs().max().item()
    return Opinion(accepted, statistics, close, cosine, twice)


def opinions(
    workload: Any, steps: int, others: bool = True
) -> tuple[dict[str, Opinion], dict[str, Opinion], set[str]]:
    """(verdicts on correct implementations, verdicts on faults, faults that rounding hides) of a workload.

    Args:
        others: whether the rules in common use are applied too.
    """
    operator = operator_of(workload)
    inputs = operator.inputs(workload, steps)
    truth = operator.truths(workload, *inputs)
    baseline = operator.baseline(workload, *inputs) if others else None

    def of(run: Run, names: Collection[str]) -> Opinion | None:
        results = {q: t for q, t in run(workload, *inputs).items() if q in names}
        return opinion(truth, results, baseline) if results else None

    good = {name: verdict for name, run in operator.good.items() if (verdict := of(run, truth))}
    most = {
        q: tuple(
            map(max, zip(*(size(o.statistics[q]) for o in good.values() if q in o.statistics), strict=True))
        )
        for q in truth
    }
    faulty = {
        w.name: verdict
        for w in operator.wrong
        if w.shows(workload) and (verdict := of(w.run, truth.keys() & (w.of or truth)))
    }
    return good, faulty, {name for name, o in faulty.items() if o.gate and o.within(most)}


def tables(operator: Operator, steps: int) -> tuple[str, list[object]]:
    """Its two tables, and its counts in the columns of docs/dev/results.md."""
    rows = [w for w in tagged("ci", object) if operator.takes(w)]
    everything = {w.name: opinions(w, steps) for w in rows}
    wide = {w.name for w in rows if w.dtype == torch.float32}
    rules = "gate", "assert_close", "cosine", "twice"
    titles = "this gate", "`assert_close`", "cosine >= 0.99", "2 x baseline"
    good, cases, wrongly = [], 0, Counter()
    for name in operator.good:
        verdicts = {w: g[name] for w, (g, _, _) in everything.items() if name in g}
        sizes = [size(s) for w, o in verdicts.items() if w in wide for s in o.statistics.values()]
        largest = dict(zip(("worst", "rms", "bias"), map(max, zip(*sizes, strict=True)), strict=True))
        rejected = [sum(not getattr(o, r) for o in verdicts.values()) for r in rules]
        cases += len(verdicts)
        wrongly.update(dict(zip(titles, rejected, strict=True)))
        good.append({
            "correct implementation": name, **{k: f"{v:.3f}" for k, v in largest.items()},
            **{t: f"{v} of {len(verdicts)}" for t, v in zip(titles, rejected, strict=True)},
        })  # fmt: skip
    faulty, finders = [], Counter()
    for fault in operator.on_many:
        verdicts = [f[fault.name] for _, f, hidden in everything.values() if fault.name in f.keys() - hidden]
        hidden = sum(fault.name in h for _, _, h in everything.values())
        caught = (sum(not getattr(o, r) for o in verdicts) for r in rules)
        by = [r for o in verdicts for s in o.statistics.values() for r in s.reasons]
        finders.update(by)
        faulty.append({
            "fault": fault.name, "workloads": len(verdicts), "hidden": hidden,
            **{t: c for t, c in zip(titles, caught, strict=True)},
            "found by": ", ".join(f"{r} {by.count(r)}" for r in ("worst", "rms", "bias") if r in by),
        })  # fmt: skip
    counts = ("workloads", "hidden", *titles)
    together = {c: sum(row[c] for row in faulty) for c in counts}
    row = [
        f"{len(operator.good)} in {cases:,}", *(wrongly[t] for t in titles),
        f"{len(operator.on_many)} in {together['workloads']:,}", *(together[t] for t in titles),
        together["hidden"], "/".join(f"{finders[r]}" for r in ("worst", "rms", "bias")),
    ]  # fmt: skip
    faulty.append({"fault": "all together", **together})
    return report.table(good) + "\n\n" + report.table(faulty), row


def with_row(page: str, name: str, row: list[object]) -> str:
    """A page with this row for an operator in its table of counts."""
    wanted = rf"^\| `{name}` \| \d+ in .*$"
    changed, count = re.subn(wanted, markdown.line([f"`{name}`", *row]), page, flags=re.M)
    if count != 1:
        raise ValueError(f"the page has {count} rows of counts for `{name}`: it needs one")
    return changed


if __name__ == "__main__":
    options = make_parser(list(OPERATORS)).parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    parts = []
    for name in options.operators:
        text, row = tables(OPERATORS[name], options.steps)
        parts.append(f"## {name}\n\n{text}\n")
        (options.out / "faults.md").write_text("\n".join(parts))
        if options.write:
            options.write.write_text(with_row(options.write.read_text(), name, row))
        print(text, end="\n\n")
