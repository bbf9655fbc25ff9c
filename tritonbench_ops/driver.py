"""What Helion's benchmark driver times beside an operator's backends (helion_driver.json)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tritonbench_ops.flags import NAMES

DRIVEN = {name: f"helion_{name}" for name in NAMES if name != "sinkhorn_balance"}
DRIVEN["recurrent_linear_attention"] = "helion_recurrent"
"""Operator -> the backend of it that the driver times, forward and backward."""


def __getattr__(name: str) -> Callable[..., Callable[[], Any]]:
    """OPERATOR_tritonbench, as the driver calls it: (operator, *input) -> what is timed."""
    driven = name.removesuffix("_tritonbench")
    if driven == name or driven not in DRIVEN:
        raise AttributeError(name)
    # of its class: what stands in the instance watches the runs of a backend of its own
    return lambda tb_op, *inputs: getattr(type(tb_op), DRIVEN[driven])(tb_op, *inputs)
