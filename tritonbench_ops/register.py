"""Let tritonbench find our operators outside of its own tree, without writing to it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path

from tritonbench_ops.flags import BASELINE, NAMES

FOLDER = Path(__file__).resolve().parent
METRICS_OF_ALL = "share_of_budget", "err_over_inductor", "x_floor", "gbps", "flops"
"""What every operator shows besides what tritonbench measures."""


def register() -> None:
    """Add this folder to tritonbench.operators and NAMES to the list --op looks in; once is enough.

    tritonbench has no hook for this.  It takes an operator's name from its module's, which has to begin with
    "tritonbench.operators.", so the package's path is extended rather than our own module handed over.
    """
    import tritonbench.operators as package
    from tritonbench.operators import op

    if str(FOLDER) not in package.__path__:
        package.__path__.append(str(FOLDER))
    listed = op._list_opbench_paths
    if getattr(listed, "lists_ours", False):
        return

    @functools.wraps(listed)
    def paths() -> list[str]:
        theirs = listed()
        # a link in tritonbench's tree lists it already
        listed_already = {Path(path).name for path in theirs}
        return sorted([*theirs, *(str(FOLDER / name) for name in NAMES if name not in listed_already)])

    paths.lists_ours = True
    op._list_opbench_paths = paths


@functools.cache
def class_of(name: str) -> type:
    """The class of an operator, whatever name its package was imported under: tritonbench's, or ours."""
    register()
    from tritonbench.utils import triton_op

    from tritonbench_ops.judged import Judged

    parts = importlib.import_module(f"tritonbench_ops.{name}.cases")
    own = getattr(parts, "Operator", Judged)

    class Operator(own, triton_op.BenchmarkOperator):
        # tritonbench takes the name from it
        __module__ = f"tritonbench.operators.{name}.operator"

    Operator.parts, Operator.triton_op = parts, triton_op
    complete(Operator)
    return Operator


def complete(operator: type) -> None:
    """Register an operator's inputs, metrics and backends, under the name that tritonbench knows it by."""
    triton_op = operator.triton_op

    def of_operator(function, its_name):
        # tritonbench finds the operator of a function by its module
        function.__name__, function.__module__ = its_name, operator.__module__
        return function

    x_value = of_operator(lambda *inputs: operator.get_x_val(*inputs), "get_x_val")
    triton_op.register_x_val(label=operator.label)(x_value)
    for name in (*operator.own_metrics, *METRICS_OF_ALL):

        def metric(self, fn, inputs, metrics, name=name):
            return getattr(super(operator, self), name)(fn, inputs, metrics)

        setattr(operator, name, triton_op.register_metric()(of_operator(metric, name)))
    for backend, row in operator.parts.BACKENDS.items():

        def method(self, *inputs, backend=backend, row=row):
            return self.built(backend, row, *inputs)

        enabled = not getattr(row, "missing", "")
        register_it = triton_op.register_benchmark(
            func_name=backend, baseline=backend == BASELINE, enabled=enabled
        )
        setattr(operator, backend, register_it(of_operator(method, backend)))


def finds_operator(name: str) -> Callable[[str], type]:
    """The `__getattr__` of an operator's package, whose only name is `Operator`."""

    def find(wanted: str) -> type:
        if wanted != "Operator":
            raise AttributeError(wanted)
        return class_of(name)

    return find
