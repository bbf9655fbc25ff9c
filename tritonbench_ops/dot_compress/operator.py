"""The operator as tritonbench imports it, under the name tritonbench.operators.dot_compress.operator."""

from __future__ import annotations

from tritonbench.utils.triton_op import register_metric, register_x_val

from tritonbench_ops.dot_compress import cases as parts
from tritonbench_ops.judged import METRICS, JudgedByLeaves, add_backends, add_metrics


class Operator(JudgedByLeaves):
    """Dot compress; an input is (x, y, z or None, upstream gradient)."""

    parts = parts
    DEFAULT_PRECISION = "bf16"
    DEFAULT_METRICS = [  # noqa: RUF012
        *METRICS, "max_abs_err", "shares", "inductor_mismatches", "inductor_max_diff",
    ]  # fmt: skip

    def get_input_iter(self):
        for case in self.cases:
            *tensors, grad = case.make_inputs(device=self.device)
            leaves = (t if t is None else t.requires_grad_(self.requires_grad) for t in tensors)
            yield *leaves, grad

    @register_x_val(label="BxMxD K")
    def get_x_val(self, inputs):
        return parts.x_value(*inputs[:3])

    def share_of(self, name, *results):
        return max(found.share for found in parts.figures(*self.given(), *results).values())

    def given(self):
        return self.example_inputs[:3], self.example_inputs[3]

    def figures(self, fn):
        """How each result compares with float64, and with Inductor's where that runs."""

        def judge():
            results = self.results(fn)
            found, theirs = parts.figures(*self.given(), *results), self.results_of_inductor()
            self.is_right(fn, max(of.share for of in found.values()))
            return found, {} if theirs is None else parts.differences(results, theirs)

        return self.once(("figures", fn._name), judge)

    def share(self, fn):
        return max(found.share for found in self.figures(fn)[0].values())

    @register_metric()
    def max_abs_err(self, fn, inputs, metrics):
        """The largest error of each result against float64."""
        return parts.written({name: found.error for name, found in self.figures(fn)[0].items()})

    @register_metric()
    def shares(self, fn, inputs, metrics):
        """The largest error of each result in units of its budget."""
        return parts.written({name: found.share for name, found in self.figures(fn)[0].items()})

    @register_metric()
    def inductor_mismatches(self, fn, inputs, metrics):
        """How many entries of each result pytorch/helion#1661 rejects beside Inductor's; no criterion."""
        return parts.written({name: count for name, (count, _) in self.figures(fn)[1].items()})

    @register_metric()
    def inductor_max_diff(self, fn, inputs, metrics):
        """The largest difference of each result from Inductor's; no criterion."""
        return parts.written({name: most for name, (_, most) in self.figures(fn)[1].items()})

    def operations(self, inputs):
        return parts.operations(*inputs[:2])

    def moved(self):
        x, y, *_ = self.example_inputs
        return parts.bytes_moved(x, y, self.mode.value)


add_metrics(Operator)
add_backends(Operator, "dot_compress")
