"""The operator as tritonbench imports it: tritonbench.operators.recurrent_linear_attention.operator."""

from __future__ import annotations

from tritonbench.utils.triton_op import register_benchmark, register_x_val

from tritonbench_ops.judged import JudgedByLeaves, add_metrics, say_missing
from tritonbench_ops.recurrent_linear_attention import cases as parts
from tritonbench_ops.recurrent_linear_attention.cases import BACKENDS, BASELINE, NAMES, UNJUDGED


class Operator(JudgedByLeaves):
    """Recurrent linear attention; an input is (q, k, v, g, g_gamma, gk, gv, upstream gradient)."""

    parts = parts
    DEFAULT_PRECISION = "bf16"

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.refused = set()
        say_missing(BACKENDS)

    def get_input_iter(self):
        for case in self.cases:
            tensors, do, _ = case.make_inputs(device=self.device)
            leaves = {name: x.requires_grad_(self.requires_grad) for name, x in tensors.items()}
            yield *(leaves.get(name) for name in NAMES), do

    @register_x_val(label="BxTxHxDk Dv gates")
    def get_x_val(self, inputs):
        return parts.x_value(*inputs[:-1])

    def held_to(self, name):
        # of a plugin's backend nothing is known
        return BACKENDS[name].method if name in BACKENDS else "recurrent"

    def share_of(self, name, *results):
        inputs, do, method = self.example_inputs[:-1], self.example_inputs[-1], self.held_to(name)
        exact = self.once("exact", lambda: parts.exact_results(inputs, do))
        allowed = self.once(("budgets", method), lambda: parts.budgets(inputs, do, method))
        return parts.share_of_budget(inputs, exact, allowed, *results)

    def operations(self, inputs):
        return parts.operations(*inputs[1:3])

    def moved(self):
        return parts.bytes_moved(self.example_inputs[:-1], self.mode.value)

    def required(self):
        must = self.named or [
            name
            for name, backend in BACKENDS.items()
            if name not in (self._skip or []) and name not in self.refused and not backend.peer
        ]
        return must, set(must) - set(UNJUDGED)


def method(name, backend):
    """The method that tritonbench calls with an input to get the closure it times."""

    def build(self, *tensors):
        inputs = tensors[:-1]
        why = backend.missing or backend.refuses(*inputs)
        if why:
            self.refused.add(name)
            raise NotImplementedError(why)
        function = backend.build()
        return lambda: function(*inputs)

    build.__name__ = name
    return build


add_metrics(Operator)
for _name, _backend in BACKENDS.items():
    _register = register_benchmark(
        operator_name="recurrent_linear_attention",
        func_name=_name,
        baseline=_name == BASELINE,
        enabled=not _backend.missing,
    )
    setattr(Operator, _name, _register(method(_name, _backend)))
