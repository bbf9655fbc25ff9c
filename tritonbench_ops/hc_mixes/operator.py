"""The operator as tritonbench imports it: tritonbench.operators.hc_mixes.operator."""

from __future__ import annotations

import dataclasses

from tritonbench.utils.triton_op import register_benchmark, register_metric, register_x_val

from tritonbench_ops import measure
from tritonbench_ops.hc_mixes.cases import (
    BACKENDS,
    BASELINE,
    PYTORCH,
    TF32,
    bytes_moved,
    cases,
    inputs,
    operations,
    parse,
    share_of_budget,
    x_value,
)
from tritonbench_ops.judged import JudgedByLeaves


class Operator(JudgedByLeaves):
    """The projection of mHC; an input is (x, fn, dmixes)."""

    DEFAULT_PRECISION = "bf16"
    DEFAULT_METRICS = ["latency", "speedup", "accuracy", "x_floor"]  # noqa: RUF012

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.cases = cases(parse(self.extra_args or []), self.dtype)
        self.of_shape = {}

    def get_input_iter(self):
        for case in self.cases:
            x, fn, dmixes = inputs(case, self.device)
            self.of_shape[x.shape, fn.shape] = case
            yield *(t.requires_grad_(self.requires_grad) for t in (x, fn)), dmixes

    def case_of(self, x, fn, *rest):
        """The workload of an input: no two have x and fn of one shape."""
        return self.of_shape[x.shape, fn.shape]

    @register_x_val(label="TxnxC M")
    def get_x_val(self, inputs):
        return x_value(inputs[0], self.case_of(*inputs))

    def accuracy(self, fn, baseline_fn):
        """Whether every token's results and dfn are within the error budget against float64."""
        case = self.case_of(*self.example_inputs)
        if fn._name in TF32:
            case = dataclasses.replace(case, precision="tf32")
        right = share_of_budget(case, self.example_inputs, *self.results(fn)) <= 1
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
        return operations(self.case_of(*inputs)) * measure.PASSES[self.mode.value]

    def moved(self):
        x = self.example_inputs[0]
        return bytes_moved(x, self.case_of(*self.example_inputs), self.mode.value)

    def required(self):
        must = self.named or [name for name in BACKENDS if name not in (self._skip or [])]
        return must, set(must) - set(PYTORCH)


def method(name, build):
    """The method that tritonbench calls with an input to get the closure it times."""

    def backend(self, x, fn, dmixes):
        function, options = build(), self.case_of(x, fn).options
        return lambda: function(x, fn, **options)

    backend.__name__ = name
    return backend


for _name, _build in BACKENDS.items():
    _register = register_benchmark(operator_name="hc_mixes", func_name=_name, baseline=_name == BASELINE)
    setattr(Operator, _name, _register(method(_name, _build)))
