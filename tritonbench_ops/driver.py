"""What Helion's benchmark driver times beside an operator's backends (helion_driver.json)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DRIVEN = {
    "dot_compress": "helion_dot_compress",
    "hc_mixes": "helion_hc_mixes",
    "hc_post": "helion_hc_post",
    "hc_pre": "helion_hc_pre",
    "hc_site": "helion_hc_site",
    "hc_split_sinkhorn": "helion_hc_split_sinkhorn",
    "recurrent_linear_attention": "helion_recurrent",
    "sinkhorn": "helion_sinkhorn",
}
"""Operator -> the backend of it that the driver times."""


def __getattr__(name: str) -> Callable[..., Callable[[], Any]]:
    """OPERATOR_tritonbench, as the driver calls it: (operator, *input) -> what is timed."""
    driven = name.removesuffix("_tritonbench")
    if driven == name or driven not in DRIVEN:
        raise AttributeError(name)
    # of its class: what stands in the instance watches the runs of a backend of its own
    return lambda tb_op, *inputs: getattr(type(tb_op), DRIVEN[driven])(tb_op, *inputs)
