"""Faults tested twice, in every bit and by the gate: python -m ci.equal.faults [--operators ...]

The faults are those rows of ci/operators/<operator>/wrong.py that change what a right implementation takes or
returns: here that is the machine code in the ring, emulated.  The gate tests the same faults of the CPU path
(ci/attack.py).  Prints who found which; the exit status is 1 where neither did, without a reason in the row,
or where the gate finds a term changed by one part in 10^7 or equality does not.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ci.equal.faults", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--operators", nargs="+", choices=ON, default=list(ON))
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this in their name")
    parser.add_argument("--device", default="mi350", help="of AMD")
    parser.add_argument("--cache", type=Path, default=ROOT / ".emulated", help="folder of compiled programs")
    return parser


class On(NamedTuple):
    """Where faults of an operator are planted."""

    workload: str
    """A workload of float32: elsewhere one part in 10^7 is lost."""
    of: str
    """The result that shows what any kernel may do wrong."""
    inputs: str
    """Their names, in order."""
    upstream: str | None
    """The upstream gradient among them."""


ON = {
    "sinkhorn": On("two_matrices", "P", "x dy", "dy"),
    "implicit": On("implicit_two", "implicit dX (direct)", "p dy", "dy"),
    "sinkhorn_large": On("large_one_iteration", "P", "x log_rows log_columns dy", "dy"),
    "hc_split_sinkhorn": On("hc_one_iteration", "comb", "mixes dpre dpost dcomb scale base", "dcomb"),
    "hc_pre": On("hc_pre_odd_fp32", "y", "x pre dy", "dy"),
    "hc_pre_normed": On("hc_pre_normed_odd_fp32", "u", "x pre du weight", "du"),
    "hc_post": On("hc_post_fp32", "out", "f x post comb grad", "grad"),
    "sinkhorn_balance": On("balance_sinkgd", "u", "update", None),
    "sinkhorn_balance_step": On("balance_step_two_rows", "weight", "update average weight", None),
}
FOLDERS = {"sinkhorn_balance": "balance", "sinkhorn_balance_step": "balance_step"}
"""Folders of ci/operators that have another name than their operator."""
TINY = 1 + 2.0**-23
"""One part in 10^7."""
OPTIONS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "sinkhorn": {
        "eps scaled by 1 + 2^-23": lambda w: replace(w, eps=w.eps * TINY),
        "eps left out": lambda w: replace(w, eps=0.0),
        "one iteration too many": lambda w: replace(w, n_iters=w.n_iters + 1),
        "columns before rows": lambda w: replace(w, first="cols"),
        "the log form": lambda w: replace(w, form="log"),
    }
}
"""Calls with another option than requested, by their first result only."""
RIGHT = ("right", "EXACT")
"""What right implementations are called in ci/operators/<operator>/steps.py."""
IMPLICIT = "helion_sinkhorn.lab.sinkhorn.implicit.evidence"
"""What the right implementation of implicit gradients, which has no such module, calls."""

if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    make_parser().parse_args()

import torch

from ci import attack
from ci.equal import run
from ci.gate import markdown, wrong
from ci.gate.wrong import Results, Run, Wrong
from ci.operators import OPERATORS
from helion_sinkhorn.lab.operators import operator_for
from helion_sinkhorn.lab.workloads import WORKLOADS


def nudged(t: torch.Tensor) -> torch.Tensor:
    """One part in 10^7 on one entry of every element, or row of it; of all, the gate would find the bias."""
    t = t.clone()
    t[(..., *[slice(1)] * min(2, t.dim() - 1))] *= TINY
    return t


def planted(operator: str, right: Run) -> list[Wrong]:
    """The operator's faults, another correct implementation, and one term changed by one part in 10^7."""
    folder = f"ci.operators.{FOLDERS.get(operator, operator)}"
    module = sys.modules[f"{folder}.wrong"]
    spec = importlib.util.spec_from_file_location(f"{operator}_faults", module.__file__)
    again = importlib.util.module_from_spec(spec)
    if operator == "implicit":
        its = sys.modules[IMPLICIT], {"run": lambda w, choices, of, *tensors: right(w, *tensors, of=of)}
    else:
        steps = sys.modules[f"{folder}.steps"]
        its = steps, {name: right for name in RIGHT if hasattr(steps, name)}
    with mock.patch.multiple(its[0], **its[1]):
        spec.loader.exec_module(again)
    on = ON[operator]
    names = on.inputs.split()
    return [
        *again.WRONG,
        *wrong.of_any(right, on.workload, on.of, on.upstream and names.index(on.upstream)),
        *(Wrong(name, lambda w, *t, other=other: right(other(w), *t, of=(on.of,)), (on.of,), on.workload)
          for name, other in OPTIONS.get(operator, {}).items()),
        *(Wrong(f"a term of {name} scaled by 1 + 2^-23", wrong.given(right, names, **{name: nudged}), (),
                on.workload)
          for name in names),
    ]  # fmt: skip


def seen(fault: Wrong, workload, inputs, expected: dict[str, str], launched: list) -> bool | None:
    """Whether bits differ in one of two calls on the same inputs; None where no kernel ran."""
    inputs = [t.clone() for t in inputs]
    before = len(launched)
    both = [fault.run(workload, *inputs) for _ in range(2)]
    if len(launched) == before:
        return None
    return any(run.digest(results[of]) != expected[of] for results in both for of in fault.of or expected)


def by_equality(operator: str, only: str, device: str, cache: Path) -> dict[str, bool]:
    """Which faults show in bits, of those that are planted in a kernel's call."""
    workload = WORKLOADS[ON[operator].workload]
    evidence = operator_for(workload)
    names = list(evidence.results(workload))
    inputs = evidence.inputs(workload, run.STEPS)

    def right(w, *tensors: torch.Tensor, of: Sequence[str] = names) -> Results:
        # faults of the truth make float64 of an input
        given = [
            t.to(i.dtype) if t.dtype == torch.float64 else t for t, i in zip(tensors, inputs, strict=True)
        ]
        return evidence.run(w, {}, of, *given)

    shown = {}
    with run.emulated(device, cache), run.recorded() as launched:
        expected = {of: run.digest(t) for of, t in right(workload, *inputs).items()}
        for fault in planted(operator, right):
            if only in fault.name and (fault.shows(workload) or fault.on == workload.name):
                differs = seen(fault, workload, inputs, expected, launched)
                shown |= {} if differs is None else {fault.name: differs}
    return shown


def by_gate(operator: str, of: Callable[[str], bool]) -> dict[str, str]:
    """The failures that the gate finds for each of these faults of the CPU path."""
    name = ON[operator].workload
    right = OPERATORS[operator].right
    faults = planted(operator, lambda w, *t, of=(): right(w, *t))
    # the CPU path has not every result
    names = tuple(right(WORKLOADS[name], *attack.ground(name).full))
    return {f.name: ", ".join(attack.verdicts(f.run, name, f.of or names)) for f in faults if of(f.name)}


def main() -> int:
    options = make_parser().parse_args()
    wrong_verdicts = []
    for operator in options.operators:
        bits = by_equality(operator, options.only, options.device, options.cache.resolve())
        gate = by_gate(operator, bits.__contains__)
        table = [{"fault": name, "by bits": "yes" if differs else "", "by the gate": gate[name]}
                 for name, differs in bits.items()]  # fmt: skip
        counts = {(a, b): sum((bool(bits[n]), bool(gate[n])) == (a, b) for n in bits)
                  for a in (True, False) for b in (True, False)}  # fmt: skip
        print(markdown.table(table))
        print(
            f"\n{operator}, {options.device} emulated: {counts[True, True]} by both, "
            f"{counts[True, False]} only by equality, {counts[False, True]} only by the gate, "
            f"{counts[False, False]} by neither\n"
        )
        reasons = {fault.name: fault.hidden for fault in attack.WRONG[operator]}
        wrong_verdicts += [f"{operator}: {n}" for n in bits if not (bits[n] or gate[n] or reasons.get(n))]
        wrong_verdicts += [f"{operator}: {n}" for n in bits if "2^-23" in n and (gate[n] or not bits[n])]
    print(*wrong_verdicts, sep="\n", file=sys.stderr)
    return bool(wrong_verdicts)


if __name__ == "__main__":
    sys.exit(main())
