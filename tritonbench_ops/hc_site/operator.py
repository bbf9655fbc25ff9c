"""The operator as tritonbench imports it: tritonbench.operators.hc_site.operator."""

from __future__ import annotations

import torch

from tritonbench_ops.hc_site import cases as parts
from tritonbench_ops.judged import JudgedByLeaves


class Operator(JudgedByLeaves, label="TxnxC", backends=parts.BACKENDS):
    """What mHC does before a sublayer; an input is (x, fn, scale, base, upstream gradients)."""

    parts = parts
    with_options = True
    # autograd rounds their sums of dx to the dtype of x
    UNJUDGED = (*JudgedByLeaves.UNJUDGED, "helion_parts")

    def required(self):
        must, judged = super().required()
        sums_round = self.device == "cpu" and self.dtype != torch.float32 and self.mode.value.endswith("bwd")
        return must, judged - {parts.MADE_OF_PARTS} if sums_round else judged
