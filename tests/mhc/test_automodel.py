"""NeMo Automodel's DeepSeek-V4 and V4.1: whole models and single sites, with and without this package."""

from __future__ import annotations

import copy

import pytest
import torch

pytest.importorskip("nemo_automodel", reason="pip install --no-deps nemo_automodel==0.7.0")
pytest.importorskip("transformers", reason="the oracle extra brings it: transformers==5.23.0")

from examples import patch_automodel
from helion_sinkhorn.integrations import automodel, automodel_models
from helion_sinkhorn.integrations.automodel import patch, switch_sinkhorn, unpatch
from helion_sinkhorn.integrations.automodel_models import PACKAGE
from helion_sinkhorn.integrations.replacement import Patched

pytestmark = pytest.mark.skipif(
    PACKAGE.installed not in PACKAGE.tested,
    reason=f"nemo_automodel {PACKAGE.installed}, tested are {PACKAGE.tested}",
)
COUNTS = {"v4": Patched(4, 1, 2), "v41": Patched(4, 0, 2)}
EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def make(kind, dtype=torch.float32):
    return patch_automodel.make_model(kind, dtype)


def logits_and_gradients(model, upstream_seed=1):
    """Logits, and the gradient of every parameter by a random upstream gradient of the logits."""
    model.zero_grad()
    result = model(torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0)))
    logits = getattr(result, "logits", result)
    upstream = torch.randn(logits.shape, generator=torch.Generator().manual_seed(upstream_seed))
    logits.backward(upstream.to(logits.dtype))
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), gradients


def moved(model, generator):
    """A copy whose parameters are off by up to one unit in the last place of float32."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1 + EPS * (2 * torch.rand(p.shape, generator=generator) - 1))
    return other


def apart(one, other):
    return float((one - other).detach().double().norm() / other.detach().double().norm().clamp(min=1e-30))


@pytest.mark.parametrize("layers", [True, False])
@pytest.mark.parametrize("kind", COUNTS)
def test_logits_and_every_gradient_are_those_of_automodel(kind, layers):
    model = make(kind)
    logits, gradients = logits_and_gradients(model)
    generator = torch.Generator().manual_seed(2)
    # what the original differs from itself by, when its parameters are moved by a rounding
    others = [logits_and_gradients(moved(model, generator)) for _ in range(3)]
    parameters = dict(model.named_parameters())
    expected = COUNTS[kind] if layers else COUNTS[kind]._replace(layers=0)
    assert patch(model, layers=layers) == expected
    assert all(p is parameters[name] for name, p in model.named_parameters())
    ours, our_gradients = logits_and_gradients(model)
    assert apart(ours, logits) < 4 * max(apart(other, logits) for other, _ in others) + 8 * EPS
    assert our_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        itself = max(apart(other[name], gradient) for _, other in others)
        assert apart(our_gradients[name], gradient) < 8 * itself + 32 * EPS, name
    assert unpatch(model) == expected
    again, back = logits_and_gradients(model)
    assert torch.equal(again, logits)
    assert all(torch.equal(back[name], gradient) for name, gradient in gradients.items())


@pytest.mark.parametrize("kind", COUNTS)
def test_a_norm_before_a_sublayer_is_called_where_it_has_a_hook(kind):
    """A norm without hooks becomes a part of the collapse; results equal its call, up to rounding."""
    model, calls = make(kind), []
    patch(model)
    names = ("input_layernorm", "post_attention_layernorm", "attn_norm", "ffn_norm")
    norms = [m for name, m in model.named_modules() if name.endswith(names) and ".layers." in f".{name}"]
    assert len(norms) == 4
    fused, gradients = logits_and_gradients(model)
    handles = [m.register_forward_hook(lambda module, *_: calls.append(module)) for m in norms]
    called, expected = logits_and_gradients(model)
    assert calls == norms
    for handle in handles:
        handle.remove()
    assert 0 < apart(fused, called) < 1e-5
    assert all(apart(gradients[name], g) < 1e-4 for name, g in expected.items())


def test_the_sinkhorn_alone_is_switched(monkeypatch):
    for module in (automodel.v4, automodel.v41):
        monkeypatch.setattr(module, "dsv4_sinkhorn_normalize", automodel.THEIR_SINKHORN)
    model, calls = make("v41"), []
    logits, gradients = logits_and_gradients(model)
    sinkhorn = automodel.sinkhorn
    monkeypatch.setattr(automodel, "sinkhorn", lambda *a, **k: (calls.append(k), sinkhorn(*a, **k))[1])
    assert switch_sinkhorn(model) == 4
    ours, our_gradients = logits_and_gradients(model)
    assert calls == [{"n_iters": 20, "eps": 1e-6}] * 4
    assert apart(ours, logits) < 1e-5
    assert apart(our_gradients["model.layers.1.ffn_hc.fn"], gradients["model.layers.1.ffn_hc.fn"]) < 1e-4
    model.model.layers["0"].attn_hc.sinkhorn_backend = "torch"
    logits_and_gradients(model)
    assert len(calls) == 4 + 3


@pytest.mark.parametrize("peak", [1.0, 8.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_parts_that_the_draft_model_calls(dtype, peak):
    """Mix, collapse and expand of a V4.1 site, on peaked logits too, beside Automodel's."""
    site = make("v41").model.layers["0"].ffn_hc
    with torch.no_grad():
        site.base.mul_(peak)
    theirs = copy.deepcopy(site)
    patch(torch.nn.Sequential(site))
    x, f = torch.randn(2, 5, 4, 32).to(dtype), torch.randn(2, 5, 32).to(dtype)
    upstream = [torch.randn(2, 5, 32).to(dtype), torch.randn(2, 5, 4, 32).to(dtype)]
    results = []
    for one in (site, theirs):
        given = [t.clone().requires_grad_() for t in (x, f)]
        mix = one(given[0])
        made = one.collapse(given[0], mix.pre), one.expand(given[1], given[0], mix)
        parameters = list(one.parameters())
        results.append((*mix, *made, *torch.autograd.grad(made, [*given, *parameters], upstream)))
    # coefficients are float32 in both; streams are rounded once, their gradients are sums of rounded ones
    for place, (ours, original) in enumerate(zip(*results, strict=True)):
        assert ours.dtype == original.dtype
        bound = 2e-5 if dtype == torch.float32 or place < 3 else 1e-2
        assert apart(ours, original) < bound * (peak if place > 4 else 1), place


def test_rounded_weights_of_a_collapse_are_refused():
    model = make("v41")
    patch(model)
    layer, x = model.model.layers["0"], torch.randn(1, 8, 4, 32)
    with pytest.raises(TypeError, match=r"pre_mix is torch\.bfloat16; .*cast_forward_inputs=False"):
        layer(x, torch.ones(1, 8, 4, dtype=torch.bfloat16), None, position_ids=torch.arange(8)[None])


def test_weights_are_initialised_as_automodel_does():
    model = make("v4")
    patch(model)
    model.initialize_weights(torch.device("cpu"), torch.float32)
    site = model.model.layers["1"].attn_hc
    assert 0.015 < site.fn.std() < 0.025
    assert site.base.eq(0).all()
    assert site.scale.eq(1).all()


def other_forward(self, *arguments, **keywords):
    return arguments


@pytest.mark.parametrize("kind", PACKAGE.known, ids=lambda kind: kind.__name__)
def test_other_code_is_refused(kind, monkeypatch):
    model = make("v41" if "41" in kind.__name__ else "v4")
    monkeypatch.setattr(kind, "forward", other_forward)
    with pytest.raises(ValueError, match=f"forward of {kind.__name__} was replaced by .*other_forward"):
        patch(model)


def test_another_sinkhorn_is_refused(monkeypatch):
    monkeypatch.setattr(automodel_models.optimized_kernels, "sinkhorn_normalize_torch", other_forward)
    with pytest.raises(ValueError, match=r"sinkhorn_normalize_torch of .* was replaced by"):
        patch(make("v41"))


def test_other_models_are_named_with_the_reason():
    from nemo_automodel.components.models.glm5_next.layers import Glm5NextHyperConnection as Site

    site = Site.__new__(Site)
    torch.nn.Module.__init__(site)
    with pytest.raises(ValueError, match=r"but Glm5NextHyperConnection: the sites of GLM-5\.3"):
        patch(torch.nn.Sequential(site))
    with pytest.raises(ValueError, match=r"pass a DeepSeek-V4 or V4\.1 of NeMo Automodel"):
        patch(torch.nn.Linear(2, 2))


def test_the_example_prints_the_difference(capsys):
    assert patch_automodel.main(["--model", "v41"]) < 1e-3
    assert "Patched(connections=4, heads=0, layers=2)" in capsys.readouterr().out
