"""The operator as tritonbench imports it: tritonbench.operators.hc_post.operator."""

from __future__ import annotations

from tritonbench.utils.triton_op import register_metric, register_x_val

from tritonbench_ops import measure
from tritonbench_ops.hc_post import cases as parts
from tritonbench_ops.judged import JudgedByLeaves, add_backends


class Operator(JudgedByLeaves):
    """The expansion of mHC's streams; an input is (f, x, post, comb, upstream gradient)."""

    parts = parts
    DEFAULT_PRECISION = "bf16"
    DEFAULT_METRICS = ["latency", "speedup", "accuracy", "x_floor"]  # noqa: RUF012

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.cases = parts.cases(parts.parse(self.extra_args or []), self.dtype)

    def get_input_iter(self):
        for case in self.cases:
            *leaves, grad = parts.inputs(case, self.device)
            yield *(t.requires_grad_(self.requires_grad) for t in leaves), grad

    @register_x_val(label="TxnxC")
    def get_x_val(self, inputs):
        return parts.x_value(inputs[1])

    def accuracy(self, fn, baseline_fn):
        """Whether every entry is within its error budget against float64; no baseline decides."""
        right = parts.share_of_budget(self.example_inputs, *self.results(fn)) <= 1
        self.accurate[self.get_x_val(self.example_inputs), fn._name] = right
        return right

    @register_metric()
    def x_floor(self, fn, inputs, metrics):
        return None if metrics.latency is None else metrics.latency / self.floor()

    @register_metric()
    def gbps(self, fn, inputs, metrics):
        return measure.gigabytes_a_second(self.moved(), metrics.latency)

    @register_metric()
    def flops(self, fn, inputs, metrics):
        return parts.operations(inputs[1]) * measure.PASSES[self.mode.value]

    def moved(self):
        return parts.bytes_moved(*self.example_inputs[:4], self.mode.value)


add_backends(Operator, "hc_post")
