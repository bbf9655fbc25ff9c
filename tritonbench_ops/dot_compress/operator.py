"""The operator as tritonbench imports it, under the name tritonbench.operators.dot_compress.operator."""

from __future__ import annotations

from tritonbench.utils.triton_op import register_benchmark, register_metric, register_x_val

from tritonbench_ops import measure
from tritonbench_ops.dot_compress.cases import (
    BACKENDS,
    BASELINE,
    PYTORCH,
    bytes_moved,
    cases,
    mismatched,
    operations,
    parse,
    share_of_budget,
    x_value,
)
from tritonbench_ops.judged import JudgedByLeaves


class Operator(JudgedByLeaves):
    """Dot compress; an input is (x, y, z or None, upstream gradient)."""

    DEFAULT_PRECISION = "bf16"
    DEFAULT_METRICS = ["latency", "speedup", "accuracy", "reported_mismatch", "x_floor"]  # noqa: RUF012

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.cases = cases(parse(self.extra_args or []), self.dtype)

    def get_input_iter(self):
        for case in self.cases:
            *tensors, grad = case.make_inputs(device=self.device)
            leaves = (t if t is None else t.requires_grad_(self.requires_grad) for t in tensors)
            yield *leaves, grad

    @register_x_val(label="BxMxD K")
    def get_x_val(self, inputs):
        return x_value(*inputs[:3])

    def accuracy(self, fn, baseline_fn):
        """Whether the result is within the error budget against float64; no baseline decides."""
        out, gradients = self.results(fn)
        right = share_of_budget(self.example_inputs[:3], self.example_inputs[3], out, gradients) <= 1
        self.accurate[self.get_x_val(self.example_inputs), fn._name] = right
        return right

    @register_metric()
    def reported_mismatch(self, fn, inputs, metrics):
        """The share of entries beyond 0.2 + 1 % of eager's; shown, never judged."""
        eager = self.once("eager", lambda: self.forward(BASELINE)().detach())
        return mismatched(self.forward(fn._name)().detach(), eager)

    @register_metric()
    def x_floor(self, fn, inputs, metrics):
        return None if metrics.latency is None else metrics.latency / self.floor()

    @register_metric()
    def gbps(self, fn, inputs, metrics):
        return measure.gigabytes_a_second(self.moved(), metrics.latency)

    @register_metric()
    def flops(self, fn, inputs, metrics):
        return operations(*inputs[:2]) * measure.PASSES[self.mode.value]

    def moved(self):
        x, y, *_ = self.example_inputs
        return bytes_moved(x, y, self.mode.value)

    def required(self):
        must = self.named or [name for name in BACKENDS if name not in (self._skip or [])]
        return must, set(must) - set(PYTORCH)


def method(name, build):
    """The method that tritonbench calls with an input to get the closure it times."""

    def backend(self, x, y, z, grad):
        function = build()
        return lambda: function(x, y, z)

    backend.__name__ = name
    return backend


for _name, _build in BACKENDS.items():
    _register = register_benchmark(operator_name="dot_compress", func_name=_name, baseline=_name == BASELINE)
    setattr(Operator, _name, _register(method(_name, _build)))
