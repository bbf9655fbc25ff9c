"""hc_site and its parts on a CUDA or ROCm device: budgets, and what may change no bit."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from cuda_graphs import capture
from hc_boundaries import boundary, boundary_inputs
from hc_sites import site_inputs, site_results

pytest.importorskip("triton")

from helion_sinkhorn import Out, hc_boundary, hc_post, hc_pre, hc_site, reference
from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.operators import KERNELS, TRIALS
from helion_sinkhorn.ops.mhc.post import launch as post_launch
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as backward
from helion_sinkhorn.ops.mhc.site.boundary.backward import ways
from helion_sinkhorn.ops.mhc.site.finish.space import FEW
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.mhc.split import launch as split
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import candidates
from helion_sinkhorn.runtime.updates import Update

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


def on_gpu(given, upstream):
    return [t.to(DEVICE) for t in given], [t.to(DEVICE) for t in upstream]


def drawn(seed, *shapes):
    """Normal numbers of these shapes, of one generator."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes]


def drawn_boundary(c, tokens):
    """(f, x, post, comb, pre_next, fn, scale, base) of four streams, f and x in bfloat16."""
    f, x, *rest = drawn(
        c, (tokens, c), (tokens, 4, c), (tokens, 4), (tokens, 4, 4), (tokens, 4), (24, 4 * c), (3,), (24,)
    )
    return [f.bfloat16(), x.bfloat16(), *rest]


def assert_bits_of_parts(results, tokens):
    """Results of some tokens are those of a call with all of them, and again of all."""
    whole = results(slice(None))
    for at in (slice(None), slice(0, 1), slice(3, 130), slice(tokens - 1, tokens), slice(1, tokens, 2)):
        assert_equal(results(at), [t[at] for t in whole])


HERE = door.device_at(0 if torch.cuda.is_available() else None)[0]
BOUNDARIES = SiteCall("bfloat16", 4, 700, "float32"), SiteCall("float32", 3, 300, "tf32")


def of_each_block(name, call):
    """A config of every block, number of warps and variant that the tuner tries; stages change no value."""
    choices = {}
    for choice in candidates(KERNELS[name], call, HERE):
        config = dict(choice.config)
        choices.setdefault((config["block_sizes"], config["num_warps"], choice.variant), choice)
    return choices


@pytest.mark.parametrize("own", [True, False], ids=["own weights", "weights of the site before"])
@pytest.mark.parametrize(("c", "normed"), [(67, False), (1024, False), (1024, True), (7168, True)])
def test_bits_of_a_boundary_do_not_depend_on_the_tokens_around_or_the_run(c, normed, own):
    """With a norm one kernel ends a boundary of up to FEW tokens, and others end one of many."""
    many = FEW + 3
    given, norm = drawn_boundary(c, many), torch.rand(c, device=DEVICE) if normed else None
    if own:
        given[4] = None

    def results(at):
        tokens = [None if t is None else t[at] for t in given[:5]]
        with torch.no_grad():
            return hc_boundary(*tokens, *given[5:], y_norm_weight=norm, implementation="helion")

    assert_bits_of_parts(results, many)


@pytest.mark.parametrize("copies", [False, True], ids=["streams", "copies of one stream"])
@pytest.mark.parametrize("c", [67, 1024, 7168])
def test_bits_of_a_site_with_a_norm_do_not_depend_on_the_tokens_around(c, copies):
    """One kernel ends a site of up to FEW tokens, and three others end one of many."""
    many = FEW + 3
    x, *site, norm = drawn(c, (many, 1 if copies else 4, c), (24, 4 * c), (3,), (24,), (c,))
    x = x.bfloat16().expand(-1, 4, -1)

    def results(at):
        with torch.no_grad():
            return hc_site(x[at], *site, y_norm_weight=norm, implementation="helion")

    assert_bits_of_parts(results, many)


MODEL = SiteCall("bfloat16", 4, 1024, "float32")


@pytest.mark.parametrize(
    ("name", "call", "results"),
    [
        ("hc_boundary_forward", MODEL, slice(None)),
        # partial sums, and dx; sums over tokens cover one tile
        ("hc_mixes_partials", MODEL.mixes, slice(None)),
        ("hc_site_backward", MODEL, slice(1)),
        *(
            (name, split.call_for(4, 20, 1e-6, dtype), slice(1) if name == split.BACKWARD else slice(None))
            for name in split.KERNELS
            for dtype in (torch.float32, torch.bfloat16)
            if name != split.REDUCED or dtype == torch.float32
        ),
    ],
    ids=str,
)
def test_configs_make_the_same_bits(name, call, results):
    """A batch and a token alone may be tuned to different ones; also of the 20 iterations that are tuned."""
    operands = TRIALS[name].operands(call, 515, DEVICE)
    first, *others = (
        TRIALS[name].run(call, choice, *operands)[results] for choice in candidates(KERNELS[name], call, HERE)
    )
    for other in others:
        assert_equal(other, first)


@pytest.mark.parametrize(
    ("call", "choice"),
    [
        pytest.param(call, choice, id=f"{call} {choice}")
        for call in BOUNDARIES
        for name in ("hc_boundary_forward", *backward.KERNELS)
        for choice in of_each_block(name, call).values()
    ],
)
def test_a_boundary_within_its_budget(call, choice):
    """Streams, collapse and sums, and every gradient."""
    assert TRIALS[choice.kernel].error(call, choice, DEVICE) <= 1


def against_the_default():
    """Every other config of the backward, a test each: one takes 20 s to compile."""
    for call in BOUNDARIES:
        for name in (backward.BACKWARD, backward.SECOND):
            first, *others = candidates(KERNELS[name], call, HERE)
            for other in others:
                yield pytest.param(call, first, other, id=f"{call} {other}")


@pytest.mark.parametrize(("call", "first", "other"), [*against_the_default()])
def test_a_token_of_a_boundary_has_the_same_gradients_alone_with_every_config(call, first, other):
    """A batch and a token alone may be tuned to different ones."""
    *before, _, _, f, x, post, comb, weights = TRIALS[backward.BACKWARD].operands(call, 130, DEVICE)
    (fn,) = noise(DEVICE, "float32", (call.mixes.m, call.mixes.columns))

    def gradients(at, choice):
        variant, wanted = dict(choice.variant), (True,) * 4 + (choice.kernel == backward.BACKWARD,)
        pass_of = backward.Pass(KERNELS[choice.kernel], call, "io", again=variant.get("again", False))
        rows = backward.parts_of_fn(fn, call, variant["together"])
        update = f[at], x[at], None, post[at], comb[at], weights[at]
        given = backward.Given(*(t[at] for t in before), rows, *update)
        made = backward.gradients(given, pass_of, wanted, {choice.kernel: choice})
        return [t for t in made if t is not None]

    # the new streams, with the bits that they have where they are made again
    before[-1] = post_launch.forward(Update(f, x, post, comb), "io")
    whole = gradients(slice(None), first)
    for choice in (first, other):
        for at in (slice(None), slice(0, 1), slice(3, 68), slice(129, 130), slice(1, 130, 2)):
            made = gradients(at, choice)
            assert all(torch.equal(a, b[at]) for a, b in zip(made, whole, strict=True)), (choice, at)


@pytest.mark.parametrize("c", [1024, 4096])
def test_gradients_of_a_boundary_do_not_depend_on_the_tokens_around(c):
    """Through autograd: of 4 x 4096 columns in one pass on an H200, of 4 x 1024 in parts."""
    tokens = 2100
    given, upstream = drawn_boundary(c, tokens), drawn(c + 1, (tokens, c), (tokens, 4, c))

    def gradients(at):
        leaves = [t[at].clone().requires_grad_() for t in given[:5]]
        y, *_, streams = hc_boundary(*leaves, *given[5:], implementation="helion")
        return torch.autograd.grad((y, streams), leaves, [t[at].to(y) for t in upstream])

    assert_bits_of_parts(gradients, tokens)


def test_one_gradient_is_that_of_the_parts_but_for_their_roundings():
    """A site rounds a bfloat16 gradient once; its parts round theirs, and autograd its two sums."""
    given, upstream = on_gpu(*site_inputs(300, c=512, dtype=torch.bfloat16))
    fused = site_results(given, upstream, implementation="helion")

    def by_parts(x, fn, scale, base):
        from helion_sinkhorn import hc_coeffs

        pre, post, comb = hc_coeffs(x, fn, scale, base, implementation="helion")
        return hc_pre(x, pre, implementation="helion"), post, comb, x * 1

    parts = site_results(given, upstream, f=by_parts)
    truth = site_results(*([t.double() for t in group] for group in (given, upstream)))
    for name in ("y", "post", "comb"):
        assert torch.equal(fused[name], parts[name]), name

    def error(dx):
        return (dx.double() - truth["dx"]).square().mean().sqrt()

    assert error(fused["dx"]) <= 1.01 * error(truth["dx"].bfloat16())
    assert error(parts["dx"]) > 1.2 * error(fused["dx"])


def test_a_layer_in_a_cuda_graph():
    """Streams in, new streams and every gradient out; hc_post's gradient passes back through the residual."""
    given, (upstream, *_) = on_gpu(*site_inputs(1000, c=512, dtype=torch.bfloat16))
    leaves = [t.clone().requires_grad_() for t in given]

    def step():
        y, post, comb, residual = hc_site(*leaves, implementation="helion")
        out = hc_post(y * 2, residual, post, comb, implementation="helion")
        return out, *torch.autograd.grad(out, leaves, upstream)

    graph, captured = capture(step)
    with torch.no_grad():
        leaves[0].neg_()
    graph.replay()
    assert_equal(step(), captured)


def seam_inputs(tokens, c):
    given, _ = boundary_inputs(tokens, n=4, c=c, dtype=torch.bfloat16)
    return [t.to(DEVICE) for t in given]


def crossed(given, own, weight, **options):
    options = {"sinkhorn_iters": 20, "implementation": "helion", **options}
    return boundary(*given, own=own, y_norm_weight=weight, **options)


@pytest.mark.parametrize("own", [False, True], ids=["weights of the site before", "own weights"])
def test_a_graph_of_seams_writes_over_its_streams(own):
    """Two seams, each over the streams and coefficients of the one before, without a wait for the device."""
    given, weight = seam_inputs(37, 512), torch.rand(512, device=DEVICE)
    f, x, post, comb, *_, weights = given
    first = [t.clone() for t in (x, post, comb, weights)]
    expected = crossed(given, own, weight)
    second = [f, expected.residual, expected.post, expected.comb, *given[4:8], expected.pre]
    expected = crossed(second, own, weight)
    out = Out(torch.empty_like(f), None if own else weights, post, comb, x, torch.empty_like(f))
    mean = hc_pre(expected.residual, torch.full_like(weights, 0.25))

    def step():
        for _ in range(2):
            crossed(given, own, weight, out=out)
        return out

    def agrees_after(call):
        for t, before in zip((x, post, comb, weights), first, strict=True):
            t.copy_(before)
        call()
        return all(t is None or torch.equal(t, e) for t, e in zip(out[:-1], (*expected, mean), strict=True))

    with torch.inference_mode():
        graph, _ = capture(step)
        assert agrees_after(graph.replay)
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert agrees_after(step)


@pytest.mark.parametrize("c", [1024, 4096, 7168])
def test_streams_that_are_one_in_memory_have_the_bits_of_copies(c):
    given, weight = seam_inputs(200, c), torch.rand(c, device=DEVICE)
    given[1] = given[0].neg().unsqueeze(-2).expand(-1, 4, -1)
    copied = [given[0], given[1].contiguous(), *given[2:]]
    for own in (False, True):
        assert_equal(crossed(given, own, weight), crossed(copied, own, weight))
    sites = [hc_site(g[1], *g[4:7], y_norm_weight=weight, implementation="helion") for g in (given, copied)]
    assert_equal(*sites)


def seam(function, own, given, upstream):
    """Gradients of a boundary with a norm."""
    leaves = [t.detach().requires_grad_() for t in given]
    *update, weights, fn, scale, base, weight = leaves
    site = None if own else weights, fn, scale, base
    results = function(*update, *site, 3, y_norm_weight=weight)
    return torch.autograd.grad(results, [t for t in (*update, *site, weight) if t is not None], upstream)


@pytest.mark.parametrize("own", [True, False], ids=["V4", "V4.1"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_norm_behind_a_boundary_in_two_passes(monkeypatch, dtype, own):
    """Against float64 of the specification that takes y as it is stored, and the same bits either way."""
    tokens, n, c = 130, 4, 1024
    f, x, *coefficients, fn, scale, base = drawn_boundary(c, tokens)
    parameters = fn / (n * c) ** 0.5, 1 + 0.1 * scale, base, 1 + 0.2 * drawn(1, (c,))[0]
    given = f.to(dtype), x.to(dtype), *coefficients, *parameters
    upstream = drawn(2, *((tokens, *shape) for shape in ((c,), (n,), (n,), (n, n), (n, c))))
    upstream = [g.to(dtype) if k in (0, 4) else g for k, g in enumerate(upstream)]
    monkeypatch.setattr(ways, "is_faster", lambda *_: True)
    gradients = {}
    # the new streams made again, or read
    for again in (False, True):
        monkeypatch.setattr(
            backward.Pass, "as_chosen", lambda of, x, choices, again=again: (of._replace(again=again), True)
        )
        gradients[again] = seam(hc_boundary, own, given, upstream)
    assert_equal(gradients[False], gradients[True])
    truth = seam(reference.hc_boundary, own, *([t.double() for t in of] for of in (given, upstream)))
    # the new streams and y are rounded before they are used: two roundings besides the result's
    allowed = 1e-5 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    for a, b in zip(gradients[False], truth, strict=True):
        assert (a.double() - b).norm() <= allowed * b.norm()
