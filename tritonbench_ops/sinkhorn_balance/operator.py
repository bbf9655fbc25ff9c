"""The operator as tritonbench imports it: tritonbench.operators.sinkhorn_balance.operator."""

from __future__ import annotations

from tritonbench.utils.triton_op import register_x_val

from tritonbench_ops.judged import JudgedByLeaves, add_backends, add_metrics
from tritonbench_ops.sinkhorn_balance import cases as parts


class Operator(JudgedByLeaves):
    """An update balanced by the norms of its rows and columns; an input is (update,)."""

    parts = parts
    DEFAULT_PRECISION = "bf16"

    def get_input_iter(self):
        for case in self.cases:
            yield parts.inputs(case, self.device)

    @register_x_val(label="MxN")
    def get_x_val(self, inputs):
        return parts.x_value(*inputs)

    def timed(self, function, *inputs):
        return lambda: function(*inputs)

    def leaves(self):
        return []

    def upstreams(self):
        return [self.example_inputs[0]]

    def get_bwd_fn(self, forward):
        raise NotImplementedError("sinkhorn_balance has no gradient; use --mode fwd or fwd_no_grad")

    def share_of(self, name, out, gradients):
        return parts.share_of_budget(*self.example_inputs, out)

    def operations(self, inputs):
        return parts.operations(*inputs)

    def moved(self):
        return parts.bytes_moved(*self.example_inputs)


add_metrics(Operator)
add_backends(Operator, "sinkhorn_balance")
