"""Every operator on arguments and upstream gradients of any layout and any leading shape: the same bits."""

from __future__ import annotations

import math

import pytest
import torch
from autograd_calls import assert_equal
from contract import (
    COMPOSED,
    CONTRACT,
    DTYPES,
    ROWS,
    assert_same,
    called,
    each_function,
    each_row,
    listed,
    metadata,
    of_size,
    upstream_of,
)
from launches import kernels_on_cpu
from layouts import LAYOUTS, laid_out

LEADS = (), (1,), (2, 1, 2, 3), (2, 0, 3)
each_interpreted = pytest.mark.parametrize(
    "name", ["sinkhorn", "hc_mixes", "hc_mixes, merged", "hc_pre", "hc_post"]
)
"""Operators whose kernels are interpreted, beside those of CONTRACT."""


@each_row
def test_layouts_of_arguments_and_of_upstream_gradients_change_no_bit(name, row):
    """Every second layout with narrow streams; interpreted bodies take some."""
    for place, layout in enumerate([*LAYOUTS][:: 3 if row.kernels else 1]):
        options = DTYPES["narrow" if place % 2 else "float32"]
        plain = [*row.arguments(2, 5, **options).values()]
        given, change = laid_out(row, layout, **options)
        assert any(not t.is_contiguous() or t.storage_offset() or t.is_neg() for t in given)
        contiguous = [t.clone(memory_format=torch.contiguous_format) for t in given]
        expected = called(row.function, contiguous, lambda g, change=change: change(g).contiguous())
        results = called(row.function, given, change)
        assert_same(name, results, expected)
        # the streams of a site are its argument; squares beside an operator keep their layout
        own = storages(given)
        fresh = [t for t in results if t.untyped_storage().data_ptr() not in own]
        assert all(t.is_contiguous() for t in fresh) or "reduced" in name
        expected = called(row.function, plain, lambda g, change=change: change(g).contiguous())
        assert_same(name, called(row.function, plain, change), expected)


def storages(tensors):
    return {t.untyped_storage().data_ptr() for t in tensors}


@each_row
def test_the_expanded_gradient_of_a_sum(name, row):
    given = [*row.arguments(2, 5).values()]

    def gradients(expanded):
        leaves = [x.clone().requires_grad_() for x in given]
        results = listed(row.function(*leaves))
        if expanded:
            return torch.autograd.grad(sum((k + 1) * y.sum() for k, y in enumerate(results)), leaves)
        return torch.autograd.grad(
            results, leaves, [torch.full_like(y, k + 1) for k, y in enumerate(results)]
        )

    assert_same(name, gradients(True), gradients(False))


@pytest.mark.parametrize("lead", LEADS, ids=str)
# sequences have one leading dimension and time
@pytest.mark.parametrize("name", [name for name in (*CONTRACT, *COMPOSED) if "attention" not in name])
def test_any_leading_shape(name, row, lead):
    """The bits of as many tokens in one dimension; without a token the gradients of parameters are zeros."""
    dims, tokens = row.token_dims(), math.prod(lead)
    flat = row.arguments(tokens)

    def shaped(x, offset):
        return x.reshape((*x.shape[:offset], *lead, *x.shape[offset + 1 :]))

    given = {n: shaped(x, dims[n][0]) if dims[n] else x for n, x in flat.items()}
    assert {n: tuple(x.shape) for n, x in given.items()} == row.shapes(*lead)

    def results(given, shape):
        leaves = [x.clone().requires_grad_() for x in given.values()]
        values = listed(row.function(*leaves))
        upstream = [shape(g) for g in upstream_of(row.function(*flat.values()))]
        return [*(y.detach() for y in values), *torch.autograd.grad(values, leaves, upstream)]

    expected = results(flat, lambda g: g)
    count = len(expected) - len(flat)
    offsets = [0] * count + [dims[n][0] if dims[n] else None for n in flat]
    shapes = [x if o is None else shaped(x, o) for x, o in zip(expected, offsets, strict=True)]
    tensors = results(given, lambda g: shaped(g, 0))
    assert_same(name, tensors, shapes)
    if not tokens:
        assert not any(x.any() for x, o in zip(tensors, offsets, strict=True) if o is None)


@each_interpreted
@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_interpreted_kernels_take_any_leading_shape(name, lead, monkeypatch):
    kernels_on_cpu(monkeypatch)
    test_any_leading_shape(name, ROWS[name], lead)


@pytest.mark.parametrize("size", [(2, 3), (4, 4)], ids=str)
@each_interpreted
def test_interpreted_kernels_take_any_layout(name, size, monkeypatch):
    """And the expanded gradient of a sum."""
    kernels_on_cpu(monkeypatch)
    of_size(monkeypatch, *size)
    for layout in LAYOUTS:
        given, change = laid_out(ROWS[name], layout, **DTYPES["narrow"])
        contiguous = [t.clone(memory_format=torch.contiguous_format) for t in given]
        expected = called(ROWS[name].function, contiguous, lambda g, change=change: change(g).contiguous())
        assert_equal(called(ROWS[name].function, given, change), expected)
    test_the_expanded_gradient_of_a_sum(name, ROWS[name])


@each_interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_interpreted_kernels_make_what_pytorch_makes(name, dtype, monkeypatch):
    """Streams are narrow, and coefficients of any dtype."""
    given = [*ROWS[name].arguments(2, 5, dtype=dtype, streams=torch.bfloat16).values()]
    expected = called(ROWS[name].function, given)
    kernels_on_cpu(monkeypatch)
    for a, b in zip(called(ROWS[name].function, given), expected, strict=True):
        assert metadata(a) == metadata(b)
        torch.testing.assert_close(a, b, rtol=2.0**-7, atol=1e-5)


@each_function
def test_what_lies_around_the_arguments_is_neither_read_nor_written(name, row):
    given = [*row.arguments(3, 5).values()]
    expected, band = called(row.function, given), 64
    buffers = [torch.full((x.numel() + 2 * band,), math.nan) for x in given]
    inner = [b[band : band + x.numel()].view(x.shape).copy_(x) for b, x in zip(buffers, given, strict=True)]
    assert_equal(called(row.function, inner), expected)
    assert_equal(inner, given)
    for buffer in buffers:
        assert buffer[:band].isnan().all()
        assert buffer[-band:].isnan().all()
