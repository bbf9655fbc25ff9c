"""The operator as tritonbench imports it: tritonbench.operators.hc_mixes.operator."""

from __future__ import annotations

import dataclasses

from tritonbench_ops.hc_mixes import cases as parts
from tritonbench_ops.judged import JudgedByLeaves


class Operator(JudgedByLeaves, label="TxnxC M", backends=parts.BACKENDS):
    """The projection of mHC; an input is (x, fn, (dmixes,))."""

    parts = parts
    with_options = True

    def held_to(self, name):
        return name in parts.TF32

    def share_of(self, name, *results):
        case = dataclasses.replace(self.case, precision="tf32") if self.held_to(name) else self.case
        return parts.share_of_budget(case, self.given(), *results)
