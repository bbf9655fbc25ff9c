"""The operator as tritonbench imports it: tritonbench.operators.hc_post.operator."""

from __future__ import annotations

from tritonbench.utils.triton_op import register_x_val

from tritonbench_ops.hc_post import cases as parts
from tritonbench_ops.judged import JudgedByLeaves, add_backends, add_metrics


class Operator(JudgedByLeaves):
    """The expansion of mHC's streams; an input is (f, x, post, comb, upstream gradient)."""

    parts = parts
    DEFAULT_PRECISION = "bf16"

    def get_input_iter(self):
        for case in self.cases:
            *leaves, grad = parts.inputs(case, self.device)
            yield *(t.requires_grad_(self.requires_grad) for t in leaves), grad

    @register_x_val(label="TxnxC")
    def get_x_val(self, inputs):
        return parts.x_value(inputs[1])

    def share_of(self, name, *results):
        return parts.share_of_budget(self.example_inputs, *results)

    def operations(self, inputs):
        return parts.operations(inputs[1])

    def moved(self):
        return parts.bytes_moved(*self.example_inputs[:4], self.mode.value)


add_metrics(Operator)
add_backends(Operator, "hc_post")
