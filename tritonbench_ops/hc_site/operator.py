"""The operator as tritonbench imports it: tritonbench.operators.hc_site.operator."""

from __future__ import annotations

import torch
from tritonbench.utils.triton_op import register_x_val

from tritonbench_ops.hc_site import cases as parts
from tritonbench_ops.judged import JudgedByLeaves, add_backends, add_metrics


class Operator(JudgedByLeaves):
    """What mHC does before a sublayer; an input is (x, fn, scale, base, upstream gradients)."""

    parts = parts
    DEFAULT_PRECISION = "bf16"

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.of_tokens = {}

    def required(self):
        must, judged = super().required()
        sums_round = self.device == "cpu" and self.dtype != torch.float32 and self.mode.value.endswith("bwd")
        return must, judged - {parts.MADE_OF_PARTS} if sums_round else judged

    def get_input_iter(self):
        for case in self.cases:
            tensors = parts.inputs(case, self.device)
            leaves = [t.requires_grad_(self.requires_grad) for t in tensors[:4]]
            self.of_tokens[leaves[0].shape] = case
            # of the results in their order: y, post, comb, residual
            yield *leaves, (*tensors[5:], tensors[4])

    def case_of(self, x):
        """The workload of an input: no two have x of one shape."""
        return self.of_tokens[x.shape]

    @register_x_val(label="TxnxC")
    def get_x_val(self, inputs):
        return parts.x_value(inputs[0])

    def share_of(self, name, *results):
        *leaves, (*others, dresidual) = self.example_inputs
        case = self.case_of(leaves[0])
        return parts.share_of_budget(case, (*leaves, dresidual, *others), *results)

    def operations(self, inputs):
        return parts.operations(self.case_of(inputs[0]))

    def moved(self):
        return parts.bytes_moved(self.case_of(self.example_inputs[0]), self.mode.value)

    def timed(self, function, x, fn, scale, base, grads):
        options = self.case_of(x).options
        return lambda: function(x, fn, scale, base, **options)


add_metrics(Operator)
add_backends(Operator, "hc_site")
