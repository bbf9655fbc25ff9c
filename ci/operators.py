"""OPERATORS: what the gate judges.  A new operator is a module of truths, one of faults, and a row here."""

from __future__ import annotations

import dot_compress_faults
import dot_compress_gate
import implicit_faults
import implicit_gate
import linear_attention_faults
import linear_attention_gate
import sinkhorn_faults
import sinkhorn_gate
from gate import Operator

from helion_sinkhorn.ops.dot_compress.workloads import DotWorkload
from helion_sinkhorn.ops.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.sinkhorn.workloads import Workload

OPERATORS = {
    "sinkhorn": Operator(
        takes=lambda w: isinstance(w, Workload) and w.backward == "exact",
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
        takes=lambda w: isinstance(w, Workload) and w.backward == "implicit",
        inputs=implicit_gate.inputs,
        truths=implicit_gate.truths,
        candidates=implicit_gate.candidates,
        good=implicit_faults.GOOD,
        faults=implicit_faults.FAULTS,
        baseline=implicit_faults.BASELINE,
        vendors=implicit_faults.VENDORS,
    ),
    "dot_compress": Operator(
        takes=lambda w: isinstance(w, DotWorkload),
        inputs=dot_compress_gate.inputs,
        truths=dot_compress_gate.truths,
        candidates=dot_compress_gate.candidates,
        good=dot_compress_faults.GOOD,
        faults=dot_compress_faults.FAULTS,
        baseline=dot_compress_faults.BASELINE,
        vendors=dot_compress_faults.VENDORS,
    ),
    "linear_attention": Operator(
        takes=lambda w: isinstance(w, AttentionWorkload),
        inputs=linear_attention_gate.inputs,
        truths=linear_attention_gate.truths,
        candidates=linear_attention_gate.candidates,
        good=linear_attention_faults.GOOD,
        faults=linear_attention_faults.FAULTS,
        baseline=linear_attention_faults.BASELINE,
        vendors=linear_attention_faults.VENDORS,
    ),
}


def operator_of(workload) -> Operator:
    """The row whose workload this is.

    Raises:
        LookupError: none takes it, or several do.
    """
    found = [name for name, operator in OPERATORS.items() if operator.takes(workload)]
    if len(found) != 1:
        raise LookupError(
            f"{workload.name} has the tag ci and is taken by {found or 'no operator'} of ci/operators.py; "
            "give its operator a row there that takes it alone"
        )
    return OPERATORS[found[0]]
