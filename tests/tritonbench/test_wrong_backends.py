"""Every operator beside backends that are wrong in one way each: a run has to name them all."""

from __future__ import annotations

import json

import pytest
from planted import STUB, TREES, folder_of, under
from shared import once

from tritonbench_ops import flags

SMALL_ERRORS = (
    "last_column", "middle_row_0", "middle_row_1", "middle_row_2", "middle_row_3", "one_entry",
)  # fmt: skip
IN_BOTH = (
    *SMALL_ERRORS, "not_a_number", "zeroed_and_raises", "zeroed_inputs", "zeroed_and_uniform",
    "unwritten_rows", "even_calls", "odd_calls", "third_calls_0", "third_calls_1", "third_calls_2",
    "timed_run", "other_bits",
)  # fmt: skip
IN_FORWARD = ("other_dtype", "other_shape")
"""Autograd refuses these of a gradient."""


@pytest.fixture(scope="module", params=TREES)
def named(request):
    """An operator, a mode and a precision -> the backends that its verdict names."""
    return once(f"wrong backends {request.param}", lambda: run(folder_of(request.param)))


def run(tree):
    done = under(tree, STUB / "wrong_backends.py")
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("operator", flags.NAMES)
def test_wrong_backends_are_named_and_no_others(named, operator):
    """The others are the right one, and one whose sums are said to be by atomics."""
    assert named[f"{operator} fwd fp32"] == sorted([*IN_BOTH, *IN_FORWARD])
    assert named[f"{operator} fwd bf16"] == sorted(SMALL_ERRORS)
    without_gradient = ["helion_sinkhorn_balance", "other_bits_by_atomics"] * (operator == "sinkhorn_balance")
    assert named[f"{operator} bwd fp32"] == sorted([*IN_BOTH, *without_gradient])
