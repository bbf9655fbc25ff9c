"""Run every operator as Helion's driver does, eager in Inductor's place; prints what its table has as JSON.

python each_operator.py KERNEL_MAPPINGS
"""

import contextlib
import importlib
import json
import os
import sys
import tempfile

from torch.utils._pytree import tree_leaves
from tritonbench.utils.parser import get_parser
from tritonbench.utils.triton_op import REGISTERED_BENCHMARKS
from wrong_backends import RIGHT, SIZES

from tritonbench_ops.verdict import VERDICTS

METRICS = "latency,accuracy,share_of_budget,err_over_inductor"


def table_of(name, names, left_out):
    operator_name = name.removesuffix("-bwd")
    parts = importlib.import_module(f"tritonbench_ops.{operator_name}.cases")
    if not hasattr(parts, "BACKENDS"):
        parts = importlib.import_module(f"tritonbench_ops.{operator_name}.backends")
    parts.BACKENDS["torch_compile"] = parts.BACKENDS["eager"]
    Operator = importlib.import_module(names["tritonbench_module"]).Operator
    timed = getattr(importlib.import_module(names["helion_module"]), names["helion_func"])
    registered, driven = REGISTERED_BENCHMARKS[operator_name], f"helion_{names['helion_func']}"
    registered[driven] = registered["eager"]
    setattr(Operator, driven, lambda self, *inputs: timed(self, *inputs))
    backends = ["eager", RIGHT[operator_name], driven] + ["torch_compile"] * (not left_out)
    words = ["--op", operator_name, "--device", "cpu", "--num-inputs", "1", "--only", ",".join(backends)]
    words += ["--mode", "bwd" if name.endswith("-bwd") else "fwd", "--metrics", METRICS]
    if operator_name == "hc_site":
        # on a CPU it is made of parts, whose sums are rounded to 16 bits more than once
        words += ["--precision", "fp32"]
    operator = Operator(*get_parser().parse_known_args([*words, *SIZES[operator_name].split()]))
    operator.run()
    ((_, row),) = operator.output.result
    return {
        "strings": any(isinstance(leaf, str) for leaf in tree_leaves(operator.example_inputs)),
        "ours": RIGHT[operator_name],
        "driven": driven,
        "rows": {name: [m.accuracy, m.error_msg, m.extra_metrics] for name, m in row.items()},
    }


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile() as file, contextlib.redirect_stdout(sys.stderr):
        os.environ[VERDICTS] = file.name
        mappings = json.loads(sys.argv[1])
        tables = {name: table_of(name, names, False) for name, names in mappings.items()}
        tables |= {f"{name} alone": table_of(name, mappings[name], True) for name in ("hc_pre", "sinkhorn")}
    print(json.dumps(tables))
