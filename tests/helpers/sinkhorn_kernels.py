"""Sinkhorn's kernels, each asked for by its name and variant."""

from __future__ import annotations

from typing import Any

import torch
from sinkhorn_case import Case

from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import Choice

FORWARD = "sinkhorn_forward"
BACKWARD, HISTORY = BACKWARDS = "sinkhorn_backward", "sinkhorn_backward_history"


def call_of(case: Case) -> SinkhornCall:
    return launch.call_of(case.inputs()[0], *case.arguments)


def choice(
    case: Case,
    name: str,
    config: dict[str, Any] | None = None,
    device: Device = DEVICES["h200"],
    **variant: Any,
) -> Choice:
    """What a call launches of this kernel, with parts of its config and of its variant changed."""
    chosen = door.choose(KERNELS[name], call_of(case), case.batch, device)
    if config:
        changed = tuple(sorted({**dict(chosen.config), **config}.items()))
        chosen = Choice(name, changed, chosen.variant, "a test")
    return launch.with_variant(chosen, **variant)


def ratios(case: Case, selected: Choice, device: str = "cpu") -> dict[str, float]:
    """The largest errors of what a kernel computes, in units of their budgets."""
    x, dy = case.inputs(device)
    if selected.kernel == FORWARD:
        return case.judge(launch.forward(x, *case.arguments, torch.float32, selected))
    return case.judge(dx=launch.backward(dy, x, *case.arguments, selected))


def assert_within(case: Case, selected: Choice) -> None:
    errors = ratios(case, selected)
    assert max(errors.values()) <= 1, (errors, selected)


def check(case: Case, *names: str, config: dict[str, Any] | None = None, **variant: Any) -> None:
    """What these kernels compute with this config and this variant is within its budget."""
    for name in names:
        assert_within(case, choice(case, name, config, **variant))
