"""The Triton code generated from the bodies that hc_site launches, tile by tile, against float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hc_boundaries import boundary_inputs
from hc_streams import post_inputs
from tiles import assert_within

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.pre.normed import budget as normed_budget
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.lab.site.trials import ERRORS, boundary_error, boundary_gradients_error, of_second
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.out import Out
from helion_sinkhorn.ops.mhc.post import launch as post_launch
from helion_sinkhorn.ops.mhc.pre import launch as pre_launch
from helion_sinkhorn.ops.mhc.site.boundary import launch as boundary
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as boundary_backward
from helion_sinkhorn.ops.mhc.site.boundary.head import launch as head_launch
from helion_sinkhorn.ops.mhc.site.boundary.last import launch as last_launch
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import default_choice
from helion_sinkhorn.runtime.updates import Update

TOKENS = 67
"""A tile of the default of tokens and a tail."""
BY_NIGHT = pytest.mark.nightly("every instruction by the interpreter, 30 s")


def asked(n, c, tokens=TOKENS, **options):
    return HcSiteWorkload("asked", 1, frozenset(), "a test", n, c, tokens, n_iters=3, **options)


@pytest.mark.parametrize(
    ("n", "c", "options"),
    [
        pytest.param(3, 71, {}, marks=BY_NIGHT),
        pytest.param(4, 40, {"dtype": torch.float32}, marks=BY_NIGHT),
        pytest.param(2, 97, {"dtype": torch.float16, "comb_order": "oi"}, marks=BY_NIGHT),
        pytest.param(8, 24, {"norm_eps": 0.1, "eps_outside": True}, marks=BY_NIGHT),
    ],
    ids=str,
)
def test_values_and_gradients(n, c, options):
    assert_within(asked(n, c, **options), {})


@pytest.mark.parametrize("tokens", [5, *(pytest.param(t, marks=BY_NIGHT) for t in (1, 2, 300))])
def test_shares_of_tokens(tokens):
    assert_within(asked(2, 20, tokens), {})


@BY_NIGHT
@pytest.mark.parametrize(
    "call", [SiteCall("bfloat16", 3, 71, "float32"), SiteCall("float32", 4, 410, "tf32")], ids=str
)
def test_boundary(call):
    """A short chunk of columns of three streams; four chunks of four, the last one short."""
    choice = default_choice(boundary.KERNELS[boundary.FORWARD], call, DEVICES["h200"])
    assert boundary_error(call, choice, "cpu") <= 1


@BY_NIGHT
def test_a_boundary_over_its_arguments():
    """Chunks of columns follow each other, and each is read before it is written."""
    f, x, post, comb, fn, scale, base, _, weights = boundary_inputs(5, n=2, c=300)[0]
    given = Update(f, x, post, comb), weights, SiteParameters(fn, scale, base), SiteOptions(2).checked()
    expected = boundary.forward(*given)
    in_place = boundary.forward(*given, out=Out(None, weights, post, comb, x))
    assert in_place[0] is x
    assert all(torch.equal(a, b) for a, b in zip(in_place, expected, strict=True))


BACKWARDS = SiteCall("bfloat16", 2, 520, "float32"), SiteCall("float32", 3, 40, "tf32")
"""Two chunks of columns, one of them short; pairs of streams that are no power of two."""


@pytest.mark.parametrize("name", [boundary_backward.BACKWARD, boundary_backward.SECOND])
@pytest.mark.parametrize("call", [BACKWARDS[1], pytest.param(BACKWARDS[0], marks=BY_NIGHT)], ids=str)
def test_boundary_backward(call, name):
    """The second pass with the new streams made again."""
    choice = default_choice(boundary_backward.KERNELS[name], call, DEVICES["h200"])
    if name == boundary_backward.SECOND:
        choice = dataclasses.replace(choice, variant=(*choice.variant[:1], ("again", True)))
    assert boundary_gradients_error(call, choice, "cpu") <= 1


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
def test_a_token_of_a_boundary_has_the_same_gradients_alone(norm):
    """In a full tile, and in the last one, which is not."""
    call = BACKWARDS[1]
    y_weight, factors, *before, _, rows, f, x, post, comb, weights = of_second(call, TOKENS, "cpu")

    def gradients(at):
        update = f[at], x[at], None, post[at], comb[at], weights[at]
        given = boundary_backward.Given(*(t[at] for t in before), rows, *update)
        kernel = boundary_backward.KERNELS[boundary_backward.SECOND if norm else boundary_backward.BACKWARD]
        behind = (y_weight, factors[at]) if norm else None
        pass_of = boundary_backward.Pass(kernel, call, "io", behind)
        made = boundary_backward.gradients(given, pass_of, (True,) * 4 + (not norm,))
        return [t for t in made if t is not None]

    whole = gradients(slice(None))
    for at in (slice(0, 1), slice(20, 21), slice(60, TOKENS), slice(TOKENS - 1, TOKENS)):
        assert all(torch.equal(a, b[at]) for a, b in zip(gradients(at), whole, strict=True)), at


@pytest.mark.parametrize(("n", "dtype", "order"), [(4, torch.bfloat16, "io"), (3, torch.float32, "oi")])
@pytest.mark.parametrize("norm", [False, True])
def test_the_last_collapse(n, dtype, order, norm):
    """By streams of hc_post's own code, which have the same bits; columns are padded."""
    f, x, post, comb, bias, _ = post_inputs(2, 3, n=n, c=67, dtype=dtype)
    weights, of_norm = post.sigmoid(), torch.linspace(0.5, 1.5, 67) if norm else None
    update = Update(f, x, post, comb, bias)
    streams = post_launch.forward(update, order)
    y = last_launch.forward(update, weights, of_norm, 1e-3, order)
    if norm:
        given = streams, weights, torch.zeros_like(y), of_norm.unsqueeze(0), 1e-3
        assert worst(y, normed_budget.exact(*given)["u"], normed_budget.error_budget(*given)["u"]) <= 1
    else:
        assert torch.equal(y, pre_launch.forward(streams, weights))


@pytest.mark.parametrize(
    "call", [SiteCall("bfloat16", 3, 71, "float32"), SiteCall("float32", 4, 140, "float32")], ids=str
)
def test_a_last_collapse_by_a_head(call):
    """Two chunks of columns, the last one short."""
    for name, kernel in head_launch.KERNELS.items():
        assert ERRORS[name](call, default_choice(kernel, call, DEVICES["h200"]), "cpu") <= 1
