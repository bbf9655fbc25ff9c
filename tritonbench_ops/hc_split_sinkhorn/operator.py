"""The operator as tritonbench imports it: tritonbench.operators.hc_split_sinkhorn.operator."""

from tritonbench_ops.hc_split_sinkhorn import cases as parts
from tritonbench_ops.judged import JudgedByLeaves


class Operator(JudgedByLeaves, label="TxC n T", backends=parts.BACKENDS):
    """The coefficients of mHC; an input is (mixes, scale, base, (dpre, dpost, dcomb))."""

    parts = parts
    DEFAULT_PRECISION = "fp32"
    with_options = True
