"""The operator as tritonbench imports it: tritonbench.operators.hc_post.operator."""

from tritonbench_ops.hc_post import cases as parts
from tritonbench_ops.judged import JudgedByLeaves


class Operator(JudgedByLeaves, label="TxnxC", backends=parts.BACKENDS):
    """The expansion of mHC's streams; an input is (f, x, post, comb, (upstream gradient,))."""

    parts = parts
