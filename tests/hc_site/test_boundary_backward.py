"""hc_boundary's backward in one pass, on CPU tensors through Helion's reference mode, and who gets it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from autograd_calls import randn, values_and_gradients
from hc_boundaries import NAMES, boundary, boundary_inputs, results, specified
from launches import SITES, kernels_on_cpu, noted_on_cpu
from stored import entry, write

from ci.gate.choices import of_kernels
from helion_sinkhorn import hc_boundary
from helion_sinkhorn.configs import lookup, settings, store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS, TRIALS
from helion_sinkhorn.lab.site.boundary import evidence as of_boundary
from helion_sinkhorn.lab.site.evidence import EVIDENCE as of_site
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.ops.mhc.site import launch as site
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch, ways
from helion_sinkhorn.ops.mhc.site.boundary.backward.space import CHUNK
from helion_sinkhorn.ops.mhc.site.boundary.head.launch import KERNELS as OF_HEADS
from helion_sinkhorn.ops.mhc.site.boundary.launch import FORWARD
from helion_sinkhorn.ops.mhc.site.boundary.space import chunk_of
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime import choices
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import candidates, default_choice

BACKWARD = torch.ops.helion_sinkhorn.hc_boundary_backward.default
BY_NIGHT = pytest.mark.nightly("20 s each; a row of which no result depends on y runs always")
CONSTANTS = 3, 1e-6, 1e-6, 2.0, 1e-6, 0.0, "io", "float32", False, 1e-6
VALUES, GRADIENTS = NAMES[:5], NAMES[5:]
OF_TOKENS = ("df", "dx", "dpost", "dcomb", "dp")
IN_PARTS = (
    "hc_site_weights", "hc_split_sinkhorn_backward", "hc_mixes_upstream", "hc_site_backward",
    "hc_post_backward",
)  # fmt: skip
BEHIND_ANOTHER = (
    "hc_split_sinkhorn_backward", "hc_mixes_upstream", "hc_boundary_split", "hc_boundary_second",
    "hc_boundary_sums", "hc_boundary_projection",
)  # fmt: skip
IN_ONE_PASS = (
    "hc_split_sinkhorn_backward", "hc_mixes_upstream", "hc_mixes_split", "hc_boundary_backward",
    "hc_boundary_sums", "hc_boundary_projection",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _kernels(monkeypatch, fresh_caches):
    kernels_on_cpu(monkeypatch, SITES)


@pytest.fixture
def one_pass(monkeypatch):
    """As if every call had been measured."""
    monkeypatch.setattr(ways, "is_faster", lambda call, x, first: True)


@pytest.fixture
def names(monkeypatch):
    """The names of the kernels that are launched, in order."""
    return noted_on_cpu(monkeypatch, within=SITES)


def call_of(given, precision="float32"):
    n, columns = given[1].shape[-2:]
    return site.call_for(n, columns, given[1].dtype, precision)


def tuned_from(
    monkeypatch, folder, call, batch, evidence="measured", device="h200", kernels=tuple(launch.KERNELS),
    together=False,
):  # fmt: skip
    """The default configs as entries of the user's folder, read by the next call."""
    monkeypatch.setattr(settings, "TUNING_DIR", str(folder))
    for name in kernels:
        choice = default_choice(KERNELS[name], call, DEVICES[device])
        variant = {k: together if k == "together" else v for k, v in choice.variant}
        made = entry(batch, dataclasses.asdict(call), dict(choice.config), variant, evidence)
        write(folder, [made], device, name)
    for cache in (door.choose, lookup.lookup, store.read):
        cache.cache_clear()


# Values


CALLS = SiteCall("float16", 3, 300, "tf32"), SiteCall("bfloat16", 4, 700, "float32")
"""Several chunks of columns, the last one short."""


@pytest.mark.parametrize(
    ("name", "call"),
    [
        *((FORWARD, call) for call in CALLS),
        *((name, CALLS[0]) for name in launch.KERNELS),
        *(
            pytest.param(name, CALLS[1], marks=pytest.mark.nightly("2 s each; those of tf32 run always"))
            for name in launch.KERNELS
        ),
    ],
    ids=str,
)
def test_within_budgets(name, call):
    """By each variant: the streams' products with fn together or one by one, the shares of tokens."""
    assert call.columns % chunk_of(call)
    tried = {choice.variant: choice for choice in candidates(KERNELS[name], call, DEVICES["h200"])}
    shares = {variant: TRIALS[name].error(call, choice, "cpu") for variant, choice in tried.items()}
    assert max(shares.values()) <= 1, shares


@pytest.mark.parametrize(
    "name",
    [
        "hc_site_unused_y",
        *(pytest.param(name, marks=BY_NIGHT) for name in ("hc_site_odd", "hc_site_constants")),
    ],
)
def test_every_result_of_the_kernels_is_tested_on_random_inputs(name):
    """The candidates of each kernel are within a truth of their own."""
    workload = WORKLOADS[name]
    given = of_site.inputs(workload, 1)
    truths = of_boundary.truths(workload, *given)
    tried = {
        (c.kernel, c.of): c
        for c in of_kernels(of_site, workload, DEVICES["h200"], len(given[0]) * workload.tokens)
        if c.of.startswith(of_boundary.PREFIX)
    }
    # a head is tested where the site's own weights collapse the streams
    assert {kernel for kernel, _ in tried} == of_boundary.COMPUTES.keys() - OF_HEADS.keys()
    assert {of for _, of in tried} == truths.keys() - {"boundary dscale", "boundary dbase", "boundary dbias"}
    reasons = {key: truths[c.of].judge(c.run(*given)).reasons for key, c in tried.items()}
    assert not any(reasons.values()), reasons


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck(one_pass, dtype):
    """The operator's schema, shapes and dtypes, with and without the gradients that may be None.

    f is float32, as where a bias has a gradient.
    """
    (f, x, post, comb, fn, scale, base, bias, weights), upstream = boundary_inputs(3)
    mixes, norms, x = randn(3, 8), randn(3, 2).abs(), x.to(dtype)
    dy, dpre, dpost, dcomb, dstreams = upstream
    dy, dstreams = dy.to(dtype), dstreams.to(dtype)
    every, some = (dstreams, dy, dpre, dpost, dcomb), (None, None, None, dpost, None)
    for gradients, norm, unwanted in ((every, None, ()), (some, bias, (1, 4))):
        given = f, x, post, comb, bias, weights, fn, scale, base, norm, x, mixes, norms
        constants = norm is not None, *CONSTANTS, [k not in unwanted for k in range(8)]
        torch.library.opcheck(
            BACKWARD, (*gradients, *given, *constants), test_utils=("test_schema", "test_faketensor")
        )


# After another pass: the collapse has the site's own weights, or a norm follows it


def results_of(function, given, upstream, own, norm, dtype=None, **options):
    """Values, and gradients by the names of arguments that have one."""
    given = [t.to(dtype or t.dtype) for t in (given[:-1] if own else given)]
    named = dict(zip(GRADIENTS, given, strict=False))
    if norm:
        named["dnorm"] = (1 + randn(given[1].size(-1), seed=77, scale=0.3)).to(given[0].dtype)

    def call(*tensors):
        tensors = dict(zip(named, tensors, strict=True))
        weight = tensors.pop("dnorm", None)
        return function(*tensors.values(), own=own, y_norm_weight=weight, **options)

    return dict(zip((*VALUES, *named), values_and_gradients(call, named.values(), upstream), strict=True))


@pytest.mark.parametrize(
    ("own", "norm"),
    [(False, False), (True, False), (True, True), (False, True)],
    ids=["V4.1", "V4", "V4 norm", "V4.1 norm"],
)
@pytest.mark.parametrize(
    ("lead", "n", "c", "order"),
    [
        ((2, 5), 4, 12, "io"),
        ((3,), 3, 7, "oi"),
        ((1,), 2, 5, "io"),
        ((67,), 4, 2, "oi"),
        ((3,), 2, 600, "io"),
        ((3,), 2, 600, "oi"),
    ],
    ids=str,
)
def test_values_and_gradients_against_float64(names, one_pass, lead, n, c, order, own, norm):
    """One token too, more than a program takes, and two chunks of columns, one of them short."""
    given, upstream = boundary_inputs(*lead, n=n, c=c)
    assert c < CHUNK or c % CHUNK
    # mixes of the size of 1 for any number of columns: coefficients near their ends magnify errors
    given[4].mul_(5 / (n * c) ** 0.5)
    steps = IN_ONE_PASS
    if own or norm:
        steps = "hc_pre_normed_backward" if norm else "hc_site_weights", *BEHIND_ANOTHER
    tensors = results_of(boundary, given, upstream, own, norm, comb_order=order)
    assert tuple(names[-len(steps) :]) == steps
    truth = results_of(specified, given, upstream, own, norm, torch.float64, comb_order=order)
    worst = {k: ((tensors[k] - t).abs().max() / t.abs().max()).item() for k, t in truth.items()}
    assert max(worst.values()) <= (1e-5 if own or norm else 3e-6), worst


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_narrow_gradient_is_rounded_once(one_pass, dtype, norm):
    """Upstream gradients of y and the streams alone, of peaked streams: dx and df are one rounding off.

    The truth takes y as it is stored; what r and the mean of h v are off by is of float32's size.
    """
    n, c = 4, 96
    (f, x, post, comb, fn, scale, base, _, weights), upstream = boundary_inputs(9, n=n, c=c, dtype=dtype)
    x[:, :, 5] *= 30
    w = 1 + randn(c, seed=77, scale=0.3) if norm else None
    leaves = [t.detach().requires_grad_() for t in (f, x)]
    outputs = hc_boundary(*leaves, post, comb, weights, fn, scale, base, 3, y_norm_weight=w)
    dy, dstreams = upstream[0].to(dtype), upstream[4].to(dtype)
    narrow = torch.autograd.grad((outputs.y, outputs.residual), leaves, (dy, dstreams))
    of_y = dy.double()
    if norm:
        y = (weights.unsqueeze(-1) * outputs.residual.detach().float()).sum(-2).to(dtype).double()
        r = (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        v, h = y * r, w.double() * of_y
        of_y = r * (h - v * (h * v).mean(-1, keepdim=True))
    gradient = dstreams.double() + weights.double().unsqueeze(-1) * of_y.unsqueeze(-2)
    of_f = post.double().unsqueeze(-1) * gradient
    exact = of_f.sum(-2), comb.double() @ gradient
    sizes = of_f.abs().sum(-2), comb.double().abs() @ gradient.abs()
    for one, value, size in zip(narrow, exact, sizes, strict=True):
        error = (one.double() - value).abs()
        assert (error <= 0.5 * torch.finfo(dtype).eps * value.abs() + (4e-6 if norm else 2e-6) * size).all()


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_streams_made_again_have_the_bits_of_stored_ones(monkeypatch, one_pass, dtype, norm):
    given, upstream = boundary_inputs(33, n=4, c=40, dtype=dtype)
    runs = {}
    for again in (False, True):
        monkeypatch.setattr(
            launch.Pass, "as_chosen", lambda of, x, choices, again=again: (of._replace(again=again), True)
        )
        runs[again] = results_of(boundary, given, upstream, True, norm)
    for name, t in runs[False].items():
        assert torch.equal(t, runs[True][name]), name


def test_the_norm_is_not_in_memory(monkeypatch, one_pass):
    """The backward allocates dx, df and small things: no gradient of y of any dtype."""
    given, upstream = boundary_inputs(64, n=4, c=512, dtype=torch.bfloat16)
    sizes = noted_on_cpu(
        monkeypatch, lambda _, given: [t.numel() * t.element_size() for t in given[0] if t is not None], SITES
    )
    results_of(boundary, given, upstream, True, True)
    # a float32 gradient of y: 64 tokens of 512
    assert 64 * 512 * 4 not in itertools.chain(*sizes)


# Who gets it


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        ({}, True), ({"evidence": "compiled"}, False), ({"device": "h100"}, False),
        ({"kernels": (launch.BACKWARD, launch.SUMS)}, False), ({"batch": 1000}, True),
        ({"together": True}, True),
    ],
    ids=["measured", "compiled", "elsewhere", "not all", "another batch", "together"],
)  # fmt: skip
def test_a_measured_entry_of_every_kernel_switches_it_on(monkeypatch, names, tmp_path, changed, taken):
    given, upstream = boundary_inputs(5, n=4, c=24)
    expected = results(boundary, given, upstream)
    tuned_from(monkeypatch, tmp_path, call_of(given), **{"batch": 5, **changed})
    tensors = results(boundary, given, upstream)
    steps = IN_ONE_PASS if taken else IN_PARTS
    if changed.get("together"):
        steps = tuple("hc_boundary_split" if name == "hc_mixes_split" else name for name in steps)
    assert tuple(names[-len(steps) :]) == steps
    for name, t in expected.items():
        torch.testing.assert_close(tensors[name], t, rtol=1e-5, atol=1e-5)


def test_the_way_is_looked_up_once(monkeypatch, tmp_path):
    """Later calls read what `choose` keeps, until a config is refused."""
    x = torch.randn(5, 4, 24)
    call = site.call_for(4, 24, x.dtype, "float32")
    tuned_from(monkeypatch, tmp_path, call, batch=5)
    looked_up, lookup_of = [], choices.lookup

    def noted(device, kernel, key, batch):
        looked_up.append(kernel)
        return lookup_of(device, kernel, key, batch)

    monkeypatch.setattr(choices, "lookup", noted)
    for _ in range(3):
        assert ways.is_faster(call, x, False)
    names = [launch.BACKWARD, launch.SUMS, launch.PROJECTION]
    assert looked_up == names
    refused = door.choose(launch.KERNELS[launch.SUMS], call, ways.LARGEST, DEVICES["h200"])
    choices.refuse(refused, call, DEVICES["h200"], RuntimeError("out of resources"))
    assert not ways.is_faster(call, x, False)
    assert not ways.is_faster(call, x, False)
    # `choose` for the kernels in their order, up to the one that is refused
    assert looked_up == [*names, launch.BACKWARD, launch.SUMS]


def test_a_token_alone_goes_the_way_of_the_tokens_around_it(monkeypatch, names, tmp_path):
    """Tokens near a tuned batch and a single one must not go two ways, which round dx in other places.

    The launches are compared and not the bits: PyTorch, which interprets the kernels here, sums in an order
    that depends on the batch and on the machine.
    """
    tokens, batch = 40, 129
    assert batch > lookup.SMALL_BATCH
    assert batch / tokens < 2**lookup.MAX_LOG2_DISTANCE
    given, upstream = boundary_inputs(tokens, n=4, c=24, dtype=torch.bfloat16)
    tuned_from(monkeypatch, tmp_path, call_of(given), batch=batch)
    whole = results(boundary, given, upstream)
    assert tuple(names[-len(IN_ONE_PASS) :]) == IN_ONE_PASS
    names.clear()
    one = [t if t.size(0) != tokens else t[:1] for t in given], [t[:1] for t in upstream]
    alone = results(boundary, *one)
    assert tuple(names[-len(IN_ONE_PASS) :]) == IN_ONE_PASS
    for name in OF_TOKENS:
        torch.testing.assert_close(alone[name], whole[name][:1])
