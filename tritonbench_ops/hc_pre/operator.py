"""The operator as tritonbench imports it: tritonbench.operators.hc_pre.operator."""

from tritonbench_ops.hc_pre import cases as parts
from tritonbench_ops.judged import JudgedByLeaves, complete


class Operator(JudgedByLeaves):
    """The collapse of mHC's streams; an input is (x, pre, (dy,))."""

    parts = parts


complete(Operator, "hc_pre", "TxnxC", parts.BACKENDS)
