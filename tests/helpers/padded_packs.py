"""check_padding(run, reverse): what a call makes of steps that no sequence of cu_seqlens has."""

from __future__ import annotations

import dataclasses

import torch

from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload

BEFORE, LENGTHS, BEHIND = 130, (7, 0, 66, 1), 70
"""More than two slots of kept states before the first sequence, and one after the last."""


def padded(case: Case) -> Case:
    """The sequences with random steps before and after them."""
    generator = torch.Generator().manual_seed(1)

    def wider(x):
        before, behind = (
            torch.rand((1, steps, *x.shape[2:]), generator=generator) for steps in (BEFORE, BEHIND)
        )
        return torch.cat((before.to(x), x, behind.to(x)), 1)

    whole = {"g_gamma", "initial_state"}
    inputs = {n: x if n in whole else wider(x) for n, x in case.inputs.items() if n != "cu_seqlens"}
    inputs["cu_seqlens"] = case.inputs["cu_seqlens"] + BEFORE
    return dataclasses.replace(case, inputs=inputs, do=wider(case.do))


def check_padding(run, reverse: bool, device: str = "cpu") -> None:
    case = Case.of(AttentionWorkload(
        "", 1, sum(LENGTHS), 1, 8, 8, frozenset(), "", "g g_gamma gk gv", states=True, reverse=reverse,
        lengths=LENGTHS,
    ))  # fmt: skip
    expected, found = run(case.to(device)), run(padded(case).to(device))
    assert found.keys() == expected.keys()
    for name, x in found.items():
        if name in ("end", "dinitial_state", "dg_gamma"):
            torch.testing.assert_close(x, expected[name], rtol=1e-5, atol=1e-5)
            continue
        inside = slice(BEFORE, BEFORE + sum(LENGTHS))
        torch.testing.assert_close(x[:, inside], expected[name], rtol=1e-5, atol=1e-5)
        assert not x[:, :BEFORE].any(), name
        assert not x[:, inside.stop :].any(), name
