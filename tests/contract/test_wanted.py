"""What nobody needs the gradient of is not computed, moved or allocated."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from contract import KERNELS, PARTS, Recorder, is_gradient, listed, of_size
from launches import noted_on_cpu
from operator_table import OPERATORS, gradients, loss

EACH = [(name, argument) for name in (*PARTS, *KERNELS) for argument in OPERATORS[name].shapes(1)]
SUMS = "scale", "base"
"""Parameters of hc_split_sinkhorn whose gradients are one tensor."""
MADE_OF = {"norm_weight": "fn", "bias": "f"}
"""A weight's gradient comes from the gradient of its product with fn, and a bias's from df."""


@pytest.mark.parametrize(("name", "argument"), EACH)
def test_an_operator_returns_the_gradient_that_is_asked_for_alone(name, row, argument):
    leaves = {k: x.requires_grad_(k == argument) for k, x in row.arguments().items()}
    value = loss(row.function(*leaves.values()))
    with Recorder() as recorder:
        value.backward()
    results = [t for operator, _, outputs in recorder.calls if is_gradient(operator) for t in listed(outputs)]
    (entries,) = (t.numel() for t in results if t.numel())
    sizes = {name: math.prod(shape) for name, shape in row.shapes(3).items()}
    allowed = {sizes["base"] + 3 if argument in SUMS else sizes[argument], sizes.get(MADE_OF.get(argument))}
    if argument in ("partials", "squares"):
        # they take theirs from one of the mixes
        allowed.add(math.prod(row.shapes(3)["partials"][1:]))
    assert entries in allowed


def launched(name, trained, monkeypatch):
    """(kernel, its tensors) of each launch of a backward."""
    row = OPERATORS[name]
    launches = noted_on_cpu(
        monkeypatch,
        lambda kernel, given: (kernel, [x for x in given if x is None or isinstance(x, torch.Tensor)]),
    )
    leaves = {k: x.requires_grad_(k in trained) for k, x in row.arguments().items()}
    value = loss(row.function(*leaves.values()))
    launches.clear()
    value.backward()
    return launches


COEFFICIENTS = "hc_split_sinkhorn_backward"
PROJECTION = "hc_mixes_upstream"
EXPECTED = [
    ("hc_pre", ("x",), ["hc_pre_backward"]),
    ("hc_post", ("bias",), ["hc_post_backward"]),
    ("hc_mixes", ("fn",), [PROJECTION, "hc_mixes_backward"]),
    ("hc_split_sinkhorn", ("scale",), [COEFFICIENTS]),
    ("dot_compress", ("z",), ["dot_compress_product"]),
    ("dot_compress", ("x",), ["dot_compress_product", "dot_compress_expand"]),
    ("dot_compress", ("y",), ["dot_compress_product", "dot_compress_apply"]),
    ("hc_site, kernels", ("scale", "base"), ["hc_site_weights", COEFFICIENTS]),
    ("hc_site, kernels", ("x",), ["hc_site_weights", COEFFICIENTS, PROJECTION, "hc_site_backward"]),
    ("hc_boundary, kernels", ("pre_next",), ["hc_site_weights"]),
    ("hc_boundary, kernels", ("base",), [COEFFICIENTS]),
    ("hc_boundary, kernels", ("fn",), [COEFFICIENTS, PROJECTION, "hc_site_backward"]),
    (
        "hc_boundary, norm, kernels",
        ("x",),
        ["hc_pre_normed_backward", COEFFICIENTS, PROJECTION, "hc_site_backward", "hc_post_backward"],
    ),
    ("hc_boundary, norm, kernels", ("y_norm_weight",), ["hc_pre_normed_backward"]),
    ("attention, all gates", ("q",), ["linear_attention_walk"]),
    ("attention, all gates", ("initial_state",), ["linear_attention_walk"]),
    ("attention, all gates", ("gv",), [*["linear_attention_walk"] * 2, "linear_attention_gates"]),
]


@pytest.mark.parametrize(("name", "trained", "kernels"), EXPECTED)
def test_launches(name, trained, kernels, monkeypatch):
    launches = launched(name, trained, monkeypatch)
    assert [kernel for kernel, _ in launches] == kernels


@pytest.mark.parametrize(
    ("name", "trained", "kernel", "missing"),
    [
        ("hc_pre", ("x",), "hc_pre_backward", 1),
        ("hc_pre", ("pre",), "hc_pre_backward", 1),
        ("hc_post", ("f",), "hc_post_backward", 3),
        ("hc_post", ("x", "comb"), "hc_post_backward", 2),
        ("hc_mixes", ("x",), "hc_mixes_backward", 1 + 3),
        ("hc_mixes", ("fn",), "hc_mixes_backward", 1 + 3),
        ("hc_split_sinkhorn", ("mixes",), COEFFICIENTS, 3),
        ("hc_split_sinkhorn", ("base",), COEFFICIENTS, 2),
        ("hc_site, kernels", ("x",), "hc_site_backward", 1),
        ("hc_site, kernels", ("fn",), "hc_site_backward", 1),
    ],
)
def test_a_kernel_gets_no_room_for_what_is_not_asked_for(name, trained, kernel, missing, monkeypatch):
    (tensors,) = (given for name, given in launched(name, trained, monkeypatch) if name == kernel)
    assert sum(t is None for t in tensors) == missing


# a bias with a gradient keeps the gradient of narrow streams from being rounded
OF_A_MODEL = [
    *itertools.product(
        ("hc_pre", "hc_pre, norm", "hc_mixes", "hc_post", "hc_site", "hc_site, norm"),
        (torch.float32, torch.bfloat16),
    ),
    *itertools.product(("hc_boundary", "hc_boundary, norm"), (torch.float32,)),
]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "streams", "size"),
    [*((name, None, ()) for name in PARTS), *((*of, (4, 4096)) for of in OF_A_MODEL)],
    ids=str,
)
def test_a_gradient_has_the_same_bits_alone_and_with_others(name, streams, size, monkeypatch):
    """As on a CPU, by test_autograd.py."""
    if size:
        of_size(monkeypatch, *size, mixes=5)
    row = OPERATORS[name]
    given = {a: x.cuda() for a, x in row.arguments(130, streams=streams).items()}
    every = gradients(row.function, given, given)
    for argument in given:
        alone = gradients(row.function, given, [argument])
        assert torch.equal(alone[argument], every[argument]), argument
