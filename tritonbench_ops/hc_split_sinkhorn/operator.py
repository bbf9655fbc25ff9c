"""The operator as tritonbench imports it: tritonbench.operators.hc_split_sinkhorn.operator."""

from __future__ import annotations

from tritonbench.utils.triton_op import register_x_val

from tritonbench_ops.hc_split_sinkhorn import cases as parts
from tritonbench_ops.judged import JudgedByLeaves, add_backends, add_metrics


class Operator(JudgedByLeaves):
    """The coefficients of mHC; an input is (mixes, scale, base, (dpre, dpost, dcomb))."""

    parts = parts
    DEFAULT_PRECISION = "fp32"

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.of_tokens = {}

    def get_input_iter(self):
        for case in self.cases:
            *leaves, dpre, dpost, dcomb = parts.inputs(case, self.device)
            leaves = [t.requires_grad_(self.requires_grad) for t in leaves]
            self.of_tokens[leaves[0].shape] = case
            yield *leaves, (dpre, dpost, dcomb)

    def case_of(self, mixes):
        """The workload of an input: no two have mixes of one shape."""
        return self.of_tokens[mixes.shape]

    @register_x_val(label="TxC n T")
    def get_x_val(self, inputs):
        return parts.x_value(inputs[0], self.case_of(inputs[0]))

    def share_of(self, name, *results):
        *leaves, grads = self.example_inputs
        return parts.share_of_budget(self.case_of(leaves[0]), (*leaves, *grads), *results)

    def operations(self, inputs):
        return parts.operations(self.case_of(inputs[0]))

    def moved(self):
        return parts.bytes_moved(self.example_inputs[0], self.mode.value)

    def timed(self, function, mixes, scale, base, grads):
        options = self.case_of(mixes).options
        return lambda: function(mixes, scale, base, **options)


add_metrics(Operator)
add_backends(Operator, "hc_split_sinkhorn")
