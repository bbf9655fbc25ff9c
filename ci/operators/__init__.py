"""OPERATORS: what the gate judges.  A new operator is a module of truths, one of faults, and a row here."""

from __future__ import annotations

from ci.gate.gate import Operator
from ci.operators.dot_compress import faults as dot_compress_faults
from ci.operators.dot_compress import truths as dot_compress_truths
from ci.operators.implicit import faults as implicit_faults
from ci.operators.implicit import truths as implicit_truths
from ci.operators.linear_attention import faults as linear_attention_faults
from ci.operators.linear_attention import truths as linear_attention_truths
from ci.operators.sinkhorn import faults as sinkhorn_faults
from ci.operators.sinkhorn import truths as sinkhorn_truths
from helion_sinkhorn.ops.dot_compress.workloads import DotWorkload
from helion_sinkhorn.ops.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.sinkhorn.workloads import SinkhornWorkload

OPERATORS = {
    "sinkhorn": Operator(
        takes=lambda w: isinstance(w, SinkhornWorkload) and w.backward == "exact",
        inputs=sinkhorn_truths.inputs,
        truths=sinkhorn_truths.truths,
        candidates=sinkhorn_truths.candidates,
        good=sinkhorn_faults.GOOD,
        faults=sinkhorn_faults.FAULTS,
        baseline=sinkhorn_faults.BASELINE,
        vendors=sinkhorn_faults.VENDORS,
        compiled=sinkhorn_truths.compiled,
    ),
    "implicit": Operator(
        takes=lambda w: isinstance(w, SinkhornWorkload) and w.backward == "implicit",
        inputs=implicit_truths.inputs,
        truths=implicit_truths.truths,
        candidates=implicit_truths.candidates,
        good=implicit_faults.GOOD,
        faults=implicit_faults.FAULTS,
        baseline=implicit_faults.BASELINE,
        vendors=implicit_faults.VENDORS,
    ),
    "dot_compress": Operator(
        takes=lambda w: isinstance(w, DotWorkload),
        inputs=dot_compress_truths.inputs,
        truths=dot_compress_truths.truths,
        candidates=dot_compress_truths.candidates,
        good=dot_compress_faults.GOOD,
        faults=dot_compress_faults.FAULTS,
        baseline=dot_compress_faults.BASELINE,
        vendors=dot_compress_faults.VENDORS,
    ),
    "linear_attention": Operator(
        takes=lambda w: isinstance(w, AttentionWorkload),
        inputs=linear_attention_truths.inputs,
        truths=linear_attention_truths.truths,
        candidates=linear_attention_truths.candidates,
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
            f"{workload.name} has the tag ci and is taken by {found or 'no operator'} of ci/operators; "
            "give its operator a row there that takes it alone"
        )
    return OPERATORS[found[0]]
