"""hc_boundary by its kernel, on CPU tensors through Helion's reference mode."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from hc_boundaries import boundary, boundary_inputs, results, specified
from launches import SITES, kernels_on_cpu

from helion_sinkhorn import hc_post, hc_pre, hc_site
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.site.trials import boundary_error
from helion_sinkhorn.ops.mhc.site.boundary import launch
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS, WIDTH, chunk_of
from helion_sinkhorn.ops.mhc.site.launch import call_for
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import default_choice


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    kernels_on_cpu(monkeypatch, SITES)


@pytest.mark.parametrize("own", [True, False], ids=["own weights", "weights of the site before"])
@pytest.mark.parametrize(("n", "c", "order"), [(4, 12, "io"), (3, 7, "oi"), (5, 500, "io")])
def test_values_and_gradients_against_float64(n, c, order, own):
    given, upstream = boundary_inputs(2, 5, n=n, c=c)
    given = given[:8] if own else given
    truth = results(specified, [t.double() for t in given], upstream, comb_order=order)
    found = results(boundary, given, upstream, comb_order=order)
    errors = {name: ((found[name] - t).abs().max() / t.abs().max()).item() for name, t in truth.items()}
    assert max(errors.values()) <= 3e-6, errors


@pytest.mark.parametrize(
    "call", [SiteCall("bfloat16", 4, 700, "float32"), SiteCall("float16", 3, 300, "tf32")], ids=str
)
def test_streams_collapse_and_sums_within_their_budgets(call):
    """Several chunks of columns, the last one short."""
    assert call.columns > chunk_of(call)
    assert call.columns % chunk_of(call)
    choice = default_choice(KERNELS[launch.FORWARD], call, DEVICES["h200"])
    assert boundary_error(call, choice, "cpu") <= 1


@pytest.mark.parametrize(("n", "c"), [(4, 70), (3, 40), (2, 32), (2, 5)])
def test_parts_of_fn_stand_side_by_side_block_by_block(n, c):
    """WIDTH columns of one stream, then of the next, with zeros where there are none."""
    call = call_for(n, c, torch.bfloat16, "float32")
    fn = torch.randn(n * (n + 2), n * c)
    blocks, places = -(-c // WIDTH), 1 << (n - 1).bit_length()
    expected = fn.new_zeros(len(fn), blocks, places, WIDTH)
    for o in range(n):
        for k in range(c):
            expected[:, k // WIDTH, o, k % WIDTH] = fn[:, o * c + k]
    made = launch.split_of(fn, call)
    assert torch.equal(made.double().sum(1).float(), expected.flatten(1))


@pytest.mark.parametrize("own", [False, True])
def test_what_the_kernel_does_not_take_is_made_by_the_parts(monkeypatch, own):
    """More streams than fit in its registers: hc_post, then the kernels of hc_site."""
    monkeypatch.delattr(launch, "one_pass")
    given, _ = boundary_inputs(3, n=MOST_STREAMS + 1, c=24)
    f, x, post, comb, fn, scale, base, bias, weights = given
    found = boundary(*given, own=own)
    streams = hc_post(f, x, post, comb, bias)
    site = hc_site(streams, fn, scale, base, 3)
    expected = site.y if own else hc_pre(streams, weights), site.post, site.comb, streams
    # the CPU adds five streams in a different order than the kernels
    made = found.y, found.post, found.comb, found.residual
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)


def test_streams_and_collapse_have_the_bits_of_the_parts():
    given, _ = boundary_inputs(7, n=4, c=24, dtype=torch.bfloat16)
    found = boundary(*given)
    f, x, post, comb, *_, bias, weights = given
    streams = hc_post(f, x, post, comb, bias)
    assert_equal((found.residual, found.y), (streams, hc_pre(streams, weights)))
