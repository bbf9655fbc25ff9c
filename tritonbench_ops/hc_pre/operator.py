"""The operator as tritonbench imports it: tritonbench.operators.hc_pre.operator."""

from tritonbench_ops.hc_pre import cases as parts
from tritonbench_ops.judged import JudgedByLeaves


class Operator(JudgedByLeaves, label="TxnxC", backends=parts.BACKENDS):
    """The collapse of mHC's streams; an input is (x, pre, (dy,))."""

    parts = parts
