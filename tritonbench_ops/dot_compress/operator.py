"""The operator as tritonbench imports it, under the name tritonbench.operators.dot_compress.operator."""

from __future__ import annotations

from tritonbench.utils.triton_op import register_metric

from tritonbench_ops.dot_compress import cases as parts
from tritonbench_ops.judged import METRICS, JudgedByLeaves


class Operator(JudgedByLeaves, label="BxMxD K", backends=parts.BACKENDS):
    """Dot compress; an input is (x, y, z or None, (upstream gradient,))."""

    parts = parts
    UNJUDGED = (*JudgedByLeaves.UNJUDGED, "torch_compile_max_autotune")
    DEFAULT_METRICS = [  # noqa: RUF012
        *METRICS, "max_abs_err", "shares", "inductor_mismatches", "inductor_max_diff",
    ]  # fmt: skip

    def figures(self, fn):
        """How each result compares with float64, and with Inductor's where that runs."""

        def judge():
            results = self.results(fn)
            found, theirs = parts.figures(self.given(), *results), self.results_of_inductor()
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
