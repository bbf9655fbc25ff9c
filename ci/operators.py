"""OPERATORS: what the gate judges.  A new operator is a module of truths, one of faults, and a row here."""

from __future__ import annotations

import implicit_faults
import implicit_gate
import sinkhorn_faults
import sinkhorn_gate
from gate import Operator

OPERATORS = {
    "sinkhorn": Operator(
        takes=lambda w: w.backward == "exact",
        inputs=sinkhorn_gate.inputs,
        truths=sinkhorn_gate.truths,
        candidates=sinkhorn_gate.candidates,
        good=sinkhorn_faults.GOOD,
        faults=sinkhorn_faults.FAULTS,
        baseline=sinkhorn_faults.BASELINE,
        vendors=sinkhorn_faults.VENDORS,
        compiled=sinkhorn_gate.compiled,
    ),
    "implicit": Operator(
        takes=lambda w: w.backward == "implicit",
        inputs=implicit_gate.inputs,
        truths=implicit_gate.truths,
        candidates=implicit_gate.candidates,
        good=implicit_faults.GOOD,
        faults=implicit_faults.FAULTS,
        baseline=implicit_faults.BASELINE,
        vendors=implicit_faults.VENDORS,
    ),
}


def operator_of(workload) -> Operator:
    """The row whose workload this is."""
    (operator,) = (o for o in OPERATORS.values() if o.takes(workload))
    return operator
