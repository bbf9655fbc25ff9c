"""The operator as tritonbench imports it: tritonbench.operators.recurrent_linear_attention.operator."""

from __future__ import annotations

from tritonbench_ops.judged import JudgedByLeaves, say_missing
from tritonbench_ops.recurrent_linear_attention import cases as parts
from tritonbench_ops.recurrent_linear_attention.cases import BACKENDS


class Operator(JudgedByLeaves, label="BxTxHxDk Dv gates", backends=BACKENDS):
    """Recurrent linear attention; an input is (q, k, v, g, g_gamma, gk, gv, (upstream gradient,))."""

    parts = parts

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.refused = set()
        say_missing(BACKENDS)

    def held_to(self, name):
        # of a plugin's backend nothing is known
        return BACKENDS[name].method if name in BACKENDS else "recurrent"

    def share_of(self, name, *results):
        *inputs, (do,) = self.example_inputs
        method = self.held_to(name)
        exact = self.once("exact", lambda: parts.exact_results(inputs, do))
        allowed = self.once(("budgets", method), lambda: parts.budgets(inputs, do, method))
        return parts.share_of_budget(inputs, exact, allowed, *results)

    def built(self, name, backend, *inputs):
        why = backend.missing or backend.refuses(*inputs[:-1])
        if why:
            self.refused.add(name)
            raise NotImplementedError(why)
        return super().built(name, backend.build, *inputs)

    def required(self):
        must, judged = super().required()
        left = [n for n in must if self.named or (n not in self.refused and not BACKENDS[n].peer)]
        return left, judged.intersection(left)
