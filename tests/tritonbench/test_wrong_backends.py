"""Every operator beside backends that are wrong in one way each: a run has to name them all."""

from __future__ import annotations

import json

import pytest
from planted import STUB, TREES, folder_of, under
from shared import once

MODES = ("fwd", "bwd")
OPERATORS = (
    "dot_compress", "hc_mixes", "hc_post", "hc_pre", "hc_site", "hc_split_sinkhorn",
    "recurrent_linear_attention", "sinkhorn",
)  # fmt: skip
IN_BOTH = (
    "zeroed_and_raises", "zeroed_inputs", "zeroed_and_uniform", "unwritten_rows", "even_calls", "odd_calls",
    "third_calls_0", "third_calls_1", "third_calls_2", "timed_run", "other_bits", "middle_row",
    "last_gradient", "one_entry",
)  # fmt: skip
IN_FORWARD = ("other_dtype", "other_shape")
"""Autograd refuses these of a gradient."""


@pytest.fixture(scope="module", params=TREES)
def named(request):
    """An operator and a mode -> the backends that its verdict names."""
    return once(f"wrong backends {request.param}", lambda: run(folder_of(request.param)))


def run(tree):
    done = under(tree, STUB / "wrong_backends.py", json.dumps(MODES))
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("operator", OPERATORS)
def test_wrong_backends_are_named_and_no_others(named, operator):
    """The others are the right one, and one whose sums are said to be by atomics."""
    found = {mode: set(named[f"{operator} {mode}"]) for mode in MODES}
    assert found["fwd"] == {*IN_BOTH, *IN_FORWARD}
    assert found["bwd"] == {*IN_BOTH}
