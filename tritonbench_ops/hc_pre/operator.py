"""The operator as tritonbench imports it: tritonbench.operators.hc_pre.operator."""

from __future__ import annotations

from tritonbench.utils.triton_op import register_x_val

from tritonbench_ops.hc_pre import cases as parts
from tritonbench_ops.judged import JudgedByLeaves, add_backends, add_metrics


class Operator(JudgedByLeaves):
    """The collapse of mHC's streams; an input is (x, pre, dy)."""

    parts = parts
    DEFAULT_PRECISION = "bf16"

    def get_input_iter(self):
        for case in self.cases:
            *leaves, dy = parts.inputs(case, self.device)
            yield *(t.requires_grad_(self.requires_grad) for t in leaves), dy

    @register_x_val(label="TxnxC")
    def get_x_val(self, inputs):
        return parts.x_value(inputs[0])

    def share_of(self, name, *results):
        return parts.share_of_budget(self.example_inputs, *results)

    def operations(self, inputs):
        return parts.operations(inputs[0])

    def moved(self):
        return parts.bytes_moved(*self.example_inputs[:2], self.mode.value)


add_metrics(Operator)
add_backends(Operator, "hc_pre")
