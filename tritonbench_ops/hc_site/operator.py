"""The operator as tritonbench imports it: tritonbench.operators.hc_site.operator."""

from __future__ import annotations

import math

import torch
from tritonbench.utils.triton_op import register_benchmark, register_metric, register_x_val

from tritonbench_ops import measure
from tritonbench_ops.hc_site.cases import (
    BACKENDS,
    BASELINE,
    UNJUDGED,
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
    """What mHC does before a sublayer; an input is (x, fn, scale, base, upstream gradients)."""

    DEFAULT_PRECISION = "bf16"
    DEFAULT_METRICS = ["latency", "speedup", "accuracy", "x_floor"]  # noqa: RUF012

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.cases = cases(parse(self.extra_args or []), self.dtype)
        self.of_tokens = {}

    def get_input_iter(self):
        for case in self.cases:
            tensors = inputs(case, self.device)
            leaves = [t.requires_grad_(self.requires_grad) for t in tensors[:4]]
            self.of_tokens[leaves[0].shape] = case
            # of the results in their order: y, post, comb, residual
            yield *leaves, (*tensors[5:], tensors[4])

    def case_of(self, x):
        """The workload of an input: no two have x of one shape."""
        return self.of_tokens[x.shape]

    @register_x_val(label="TxnxC")
    def get_x_val(self, inputs):
        return x_value(inputs[0])

    def results(self, fn):
        """((y, post, comb, residual), gradients) of the mode's closure; None for what it lacks."""
        if self.mode.value == "fwd_no_grad":
            with torch.no_grad():
                return self.forward(fn._name)(), None
        for leaf in self.leaves():
            leaf.grad = torch.full_like(leaf, math.nan)
        found = fn()
        gradients = tuple(leaf.grad for leaf in self.leaves())
        if self.mode.value == "fwd":
            return [t.detach() for t in found], None
        return ([t.detach() for t in found[0]] if self.mode.value == "fwd_bwd" else None), gradients

    def accuracy(self, fn, baseline_fn):
        """Whether every token's results and the sums are within the error budget against float64."""
        *leaves, (*others, dresidual) = self.example_inputs
        case = self.case_of(leaves[0])
        right = share_of_budget(case, (*leaves, dresidual, *others), *self.results(fn)) <= 1
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
        return operations(self.case_of(inputs[0])) * measure.PASSES[self.mode.value]

    def moved(self):
        return bytes_moved(self.case_of(self.example_inputs[0]), self.mode.value)

    def required(self):
        must = self.named or [name for name in BACKENDS if name not in (self._skip or [])]
        return must, set(must) - set(UNJUDGED)


def method(name, build):
    """The method that tritonbench calls with an input to get the closure it times."""

    def backend(self, x, fn, scale, base, grads):
        function, options = build(), self.case_of(x).options
        return lambda: function(x, fn, scale, base, **options)

    backend.__name__ = name
    return backend


for _name, _build in BACKENDS.items():
    _register = register_benchmark(operator_name="hc_site", func_name=_name, baseline=_name == BASELINE)
    setattr(Operator, _name, _register(method(_name, _build)))
