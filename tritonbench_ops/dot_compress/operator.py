"""The operator as tritonbench imports it, under the name tritonbench.operators.dot_compress.operator."""

from __future__ import annotations

from tritonbench.utils.triton_op import register_metric, register_x_val

from tritonbench_ops.dot_compress import cases as parts
from tritonbench_ops.judged import JudgedByLeaves, add_backends, add_metrics


class Operator(JudgedByLeaves):
    """Dot compress; an input is (x, y, z or None, upstream gradient)."""

    parts = parts
    DEFAULT_PRECISION = "bf16"
    DEFAULT_METRICS = ["latency", "speedup", "accuracy", "reported_mismatch", "x_floor"]  # noqa: RUF012

    def get_input_iter(self):
        for case in self.cases:
            *tensors, grad = case.make_inputs(device=self.device)
            leaves = (t if t is None else t.requires_grad_(self.requires_grad) for t in tensors)
            yield *leaves, grad

    @register_x_val(label="BxMxD K")
    def get_x_val(self, inputs):
        return parts.x_value(*inputs[:3])

    def accuracy(self, fn, baseline_fn):
        """Whether the result is within the error budget against float64; no baseline decides."""
        out, gradients = self.results(fn)
        return self.is_right(
            fn, parts.share_of_budget(self.example_inputs[:3], self.example_inputs[3], out, gradients)
        )

    @register_metric()
    def reported_mismatch(self, fn, inputs, metrics):
        """The share of entries beyond 0.2 + 1 % of eager's; shown, never judged."""
        eager = self.once("eager", lambda: self.forward(parts.BASELINE)().detach())
        return parts.mismatched(self.forward(fn._name)().detach(), eager)

    def operations(self, inputs):
        return parts.operations(*inputs[:2])

    def moved(self):
        x, y, *_ = self.example_inputs
        return parts.bytes_moved(x, y, self.mode.value)


add_metrics(Operator)
add_backends(Operator, "dot_compress")
