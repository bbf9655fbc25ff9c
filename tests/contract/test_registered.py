"""What torch knows of each operator: schema, fake, gradient; what runs is what the dispatcher sees."""

from __future__ import annotations

import pytest
import torch
from contract import (
    CONTRACT,
    DTYPES,
    PARTS,
    ROWS,
    WITH_AOT,
    WITHOUT_AOT,
    Recorder,
    assert_same,
    called,
    each_dtype,
    each_function,
    each_row,
    is_gradient,
    metadata,
    opcheck,
    recorded,
)
from launches import SITES, kernels_on_cpu
from layouts import EVERY, laid_out
from operator_table import VARIANTS
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

OPCHECKED = "contiguous", "tokens swapped", "no tokens"
"""Layouts that take a second an operator; the fakes below are compared for all."""
SHORT = "sinkhorn", "dot_compress"
BY_NIGHT = pytest.mark.nightly("half a second each; fakes are compared in these layouts always")
WITHOUT_GRADIENT = {
    "sinkhorn_balance",
    "sinkhorn_balance_into",
    "sinkhorn_balance_step",
    "quantize",
    "hc_last",
    "hc_last_head",
}
"""Tests of their own have what holds of them: of balance, quantized and last."""
OPERATORS = {
    name.removeprefix("helion_sinkhorn::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("helion_sinkhorn::")
}


def test_rows_call_every_operator(monkeypatch):
    kernels_on_cpu(monkeypatch, SITES)
    every = [recorded(ROWS[name], [*ROWS[name].arguments().values()]) for name in CONTRACT]
    assert {operator._opname for calls in every for operator, *_ in calls} == OPERATORS - WITHOUT_GRADIENT


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=() if layout == "contiguous" or name in SHORT else BY_NIGHT)
        for name in CONTRACT
        for layout in OPCHECKED
        if layout == "contiguous" or name in PARTS
    ],
)
def test_opcheck(name, row, layout):
    # variants in the other dtypes
    given, change = laid_out(row, layout, **DTYPES["narrow" if name in VARIANTS else "float32"])
    calls = recorded(row, given, change)
    if layout == "contiguous":
        calls += recorded(row, given, change, slice(1))[1:]
    # AOTAutograd takes most of the time; its inputs have the layouts of the fake tensors
    compiled = layout in ("contiguous", "no tokens") and not row.kernels
    for operator, arguments, _ in calls:
        opcheck(operator, arguments, WITH_AOT if compiled else WITHOUT_AOT)


@each_dtype
def test_fakes_have_the_metadata_of_what_runs(name, row, dtype):
    for layout in EVERY if dtype == "float32" and not row.kernels else OPCHECKED[:1]:
        given, change = laid_out(row, layout, **DTYPES[dtype])
        with FakeTensorMode() as mode:
            fake = called(row.function, [mode.from_tensor(t) for t in given], change)
            expected = [*map(metadata, fake)]
        assert [*map(metadata, called(row.function, given, change))] == expected, layout
        for operator, arguments, results in recorded(row, given, change):
            with torch.no_grad(), FakeTensorMode() as mode:
                faked = operator(*tree_map_only(torch.Tensor, mode.from_tensor, arguments))
            assert [*map(metadata, tree_leaves(faked))] == [*map(metadata, tree_leaves(results))], layout


@each_function
def test_meta_device(name, row):
    given = [*row.arguments(2, 5, **DTYPES["narrow"]).values()]
    results = called(row.function, [t.to("meta") for t in given])
    expected = [(t.shape, t.stride(), t.dtype) for t in called(row.function, given)]
    assert [(t.shape, t.stride(), t.dtype) for t in results] == expected
    assert {t.device.type for t in results} == {"meta"}


@each_row
def test_the_operator_is_what_the_function_runs(name, row):
    given = [*row.arguments(3, 7).values()]
    calls = recorded(row, given)
    assert [is_gradient(operator) for operator, *_ in calls] == [False, True]
    expected = called(row.function, given)
    with torch.no_grad():
        plain = row.function(*given)
    assert_same(name, tree_leaves(plain), expected[: len(tree_leaves(plain))])
    with Recorder():
        assert_same(name, called(row.function, given), expected)
    for operator, arguments, results in calls:
        with torch.no_grad():
            assert_same(name, tree_leaves(operator(*arguments)), tree_leaves(results))
