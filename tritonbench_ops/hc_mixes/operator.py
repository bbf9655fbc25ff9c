"""The operator as tritonbench imports it: tritonbench.operators.hc_mixes.operator."""

from __future__ import annotations

import dataclasses

from tritonbench.utils.triton_op import register_x_val

from tritonbench_ops.hc_mixes import cases as parts
from tritonbench_ops.judged import JudgedByLeaves, add_backends, add_metrics


class Operator(JudgedByLeaves):
    """The projection of mHC; an input is (x, fn, dmixes)."""

    parts = parts
    DEFAULT_PRECISION = "bf16"

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.of_shape = {}

    def get_input_iter(self):
        for case in self.cases:
            x, fn, dmixes = parts.inputs(case, self.device)
            self.of_shape[x.shape, fn.shape] = case
            yield *(t.requires_grad_(self.requires_grad) for t in (x, fn)), dmixes

    def case_of(self, x, fn, *rest):
        """The workload of an input: no two have x and fn of one shape."""
        return self.of_shape[x.shape, fn.shape]

    @register_x_val(label="TxnxC M")
    def get_x_val(self, inputs):
        return parts.x_value(inputs[0], self.case_of(*inputs))

    def held_to(self, name):
        return name in parts.TF32

    def share_of(self, name, *results):
        case = self.case_of(*self.example_inputs)
        if self.held_to(name):
            case = dataclasses.replace(case, precision="tf32")
        return parts.share_of_budget(case, self.example_inputs, *results)

    def operations(self, inputs):
        return parts.operations(self.case_of(*inputs))

    def moved(self):
        x = self.example_inputs[0]
        return parts.bytes_moved(x, self.case_of(*self.example_inputs), self.mode.value)

    def timed(self, function, x, fn, dmixes):
        options = self.case_of(x, fn).options
        return lambda: function(x, fn, **options)


add_metrics(Operator)
add_backends(Operator, "hc_mixes")
