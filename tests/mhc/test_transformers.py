"""transformers' DeepseekV4 and GLM-5.3: mHC modules as an oracle, state dicts both ways, patched models."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import io
from types import MethodType, SimpleNamespace

import mhc_equations as equations
import pytest
import torch
from autograd_calls import assert_equal, randn
from mhc_equations import assert_equations, called
from safetensors.torch import load_file, save_file

from helion_sinkhorn import nn
from helion_sinkhorn.integrations import layers as hub

transformers = pytest.importorskip("transformers", reason="the oracle extra brings it: transformers==5.23.0")
theirs = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
initialization = pytest.importorskip("transformers.initialization")

from benchmarks.demo_model import model as tiny  # noqa: E402
from benchmarks.demo_model.compare import TIMES, differences, results, sensitivity  # noqa: E402
from examples.patch_transformers import glm  # noqa: E402
from helion_sinkhorn.integrations import transformers as integration  # noqa: E402
from helion_sinkhorn.integrations.norms import entered  # noqa: E402
from helion_sinkhorn.integrations.replacement import Patched, digest, kinds  # noqa: E402
from helion_sinkhorn.integrations.transformers import PACKAGE, patch, unpatch  # noqa: E402

pytestmark = pytest.mark.skipif(
    transformers.__version__ not in integration.TESTED,
    reason=f"transformers {transformers.__version__}, tested are {integration.TESTED}",
)
VOCABULARY = 13
ALL = Patched(connections=4, heads=1, layers=2)


def make_glm(vocabulary, **options):
    """A GLM-5.3 small enough for a CPU, the same at every call."""
    torch.manual_seed(0)
    return glm(32, vocab_size=vocabulary, **options)


MAKERS = {"DeepseekV4": tiny.make_model, "Glm5NextText": make_glm}
COUNTS = {"DeepseekV4": ALL, "Glm5NextText": ALL._replace(heads=0)}


def pair(kind: str, n=4, c=12, iters=20):
    """(theirs, ours) of the same options and parameters, all of them drawn."""
    config = SimpleNamespace(
        hc_mult=n, hc_sinkhorn_iters=iters, hc_eps=1e-6, rms_norm_eps=1e-5, hidden_size=c
    )
    if kind == "connection":
        their, our = theirs.DeepseekV4HyperConnection(config), nn.HyperConnection(c, n, iters, 1e-6, 1e-5)
    else:
        their, our = theirs.DeepseekV4HyperHead(config), nn.HyperHead(c, n, 1e-6, 1e-5)
    for k, parameter in enumerate(their.parameters()):
        parameter.data.copy_(randn(*parameter.shape, seed=k, scale=0.2 if parameter.dim() == 2 else 1.0))
    return their, our


def layer_of(module):
    """The module with the forward that Hugging Face's `kernels` gives it."""
    made = copy.deepcopy(module)
    made.forward = MethodType(getattr(hub, type(module).__name__).forward, made)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "c", "iters"), [(4, 12, 20), (3, 7, 2)])
@pytest.mark.parametrize("kind", ["connection", "head"])
def test_each_is_the_equations(kind, n, c, iters, dtype):
    """In values and gradients; comb is random, and so no transpose of it passes."""
    their, our = pair(kind, n, c, iters)
    fn, base, scale = their.state_dict().values()
    tensors = randn(2, 3, n, c, seed=9, dtype=dtype), fn, scale, base
    options = {"norm_eps": 1e-5, **({"sinkhorn_iters": iters} if kind == "connection" else {})}
    equation = getattr(equations, kind)
    results = equation(*tensors, **options)
    upstream = [randn(*y.shape, seed=10 + k) for k, y in enumerate(results)]
    upstream[-1] = upstream[-1].to(dtype)
    for module in (their, our, layer_of(their)):
        assert_equations(called(module), equation, tensors, upstream, rounded=2, **options)


@pytest.mark.parametrize("name", ["DeepseekV4HyperConnection", "DeepseekV4HyperHead"])
def test_a_layer_is_what_kernels_accepts(name):
    layer, module = getattr(hub, name), getattr(theirs, name)
    members = {n for n, _ in inspect.getmembers(layer)} - {n for n, _ in inspect.getmembers(torch.nn.Module)}
    assert members == {"can_torch_compile"}
    assert layer.__init__ is torch.nn.Module.__init__
    kinds = [
        [(p.name, p.kind) for p in inspect.signature(c.forward).parameters.values()] for c in (layer, module)
    ]
    assert kinds[0] == kinds[1]


def both(layers: bool = True, model: str = "DeepseekV4"):
    """(the original, a copy that is patched): an optimizer made before still has its parameters."""
    original = MAKERS[model](VOCABULARY, hc_sinkhorn_iters=3, hc_eps=1e-3, rms_norm_eps=1e-2)
    patched = copy.deepcopy(original)
    before, counts = [(n, id(p)) for n, p in patched.named_parameters()], COUNTS[model]
    counts = counts._replace(layers=counts.layers * layers)
    assert patch(patched, layers=layers) == counts
    assert sum(type(module) in PACKAGE.back for module in patched.modules()) == sum(counts)
    assert [(n, id(p)) for n, p in patched.named_parameters()] == before
    assert list(patched.state_dict()) == list(original.state_dict())
    return original, patched


def ids(seed=0, batch=3, length=24):
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("layers", [True, False])
@pytest.mark.parametrize("model", MAKERS)
def test_logits_and_every_gradient_are_the_original_s(model, layers):
    original, patched = both(layers, model)
    tokens = ids()
    apart = differences(results(patched, tokens), results(original, tokens))
    limit = sensitivity(original, tokens)
    # all but the vision tower, and the indexer, which makes no gradient
    trained = {n for n, _ in original.named_parameters() if not {"visual", "indexer"} & {*n.split(".")}}
    assert apart.keys() - {"logits"} == trained
    assert {name for name, difference in apart.items() if difference > TIMES * limit[name]} == set()


def test_a_site_in_several_places_is_exchanged_in_each():
    model = tiny.make_model(VOCABULARY)
    first, second = model.model.layers
    first.ffn_hc = second.attn_hc = first.attn_hc
    expected = results(model, ids())
    counts = ALL._replace(connections=ALL.connections - 2)
    assert patch(model) == counts
    assert isinstance(first.attn_hc, nn.HyperConnection)
    assert first.ffn_hc is second.attn_hc is first.attn_hc
    for name, t in results(model, ids()).items():
        torch.testing.assert_close(t, expected[name], rtol=1e-3, atol=1e-5)
    assert unpatch(model) == counts
    assert first.ffn_hc is second.attn_hc is first.attn_hc
    again = results(model, ids())
    assert_equal(again.values(), expected.values())


@pytest.mark.parametrize("kind", MAKERS)
def test_unpatch_takes_it_back_with_what_was_trained(kind):
    original, patched = both(model=kind)
    with torch.no_grad():
        for model in (original, patched):
            for p in model.parameters():
                p.mul_(1.5)
    assert unpatch(patched) == COUNTS[kind]
    assert [type(m) for m in patched.modules()] == [type(m) for m in original.modules()]
    assert list(patched.state_dict()) == list(original.state_dict())
    a, b = results(original, ids()), results(patched, ids())
    assert a.keys() == b.keys()
    assert_equal(b.values(), a.values())
    with pytest.raises(ValueError, match=f"{type(original).__name__} is not patched"):
        unpatch(patched)
    assert patch(patched) == COUNTS[kind]


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_stay(when):
    model, calls = tiny.make_model(VOCABULARY), []
    expected = model(ids()).logits
    if when == "after":
        patch(model)
    for module in (model.model.layers[1], model.model.layers[1].ffn_hc, model.model.hc_head):
        module.register_forward_hook(lambda module, *_: calls.append(type(module).__module__))
    if when == "before":
        patch(model)
    for change, where in ((None, integration.__name__), (unpatch, theirs.__name__)):
        if change:
            change(model)
        torch.testing.assert_close(model(ids()).logits, expected, rtol=1e-4, atol=1e-5)
        # of the layer and its site, which ends first, and the head
        assert calls == [where] * 3
        calls.clear()


def norms(model):
    """The norms before the sublayers of all layers."""
    names = "input_layernorm", "post_attention_layernorm"
    return [module for name, module in model.named_modules() if name.endswith(names)]


@pytest.mark.parametrize("model", MAKERS)
def test_a_norm_before_a_sublayer_is_a_part_of_its_collapse(model, monkeypatch):
    """Each is called where it has a hook, a wrapper or another forward, and by the others never."""
    patched, calls = both(model=model)[1], []
    assert len(norms(patched)) == 4
    kind = type(norms(patched)[0])

    def spied(module, x):
        calls.append(module)
        return own(module, x)

    fused = patched(ids()).logits
    own = kind.forward
    with monkeypatch.context() as replaced:
        replaced.setattr(kind, "forward", spied)
        called = patched(ids()).logits
    assert [m for m in calls if m in norms(patched)] == norms(patched)
    torch.testing.assert_close(fused, called, rtol=1e-4, atol=1e-5)
    assert not torch.equal(fused, called)
    calls.clear()
    hooked, wrapped, *_ = norms(patched)
    handle = hooked.register_forward_hook(lambda module, given, y: calls.append(module))
    wrap(wrapped, calls)
    patched(ids())
    assert calls == [hooked, wrapped]
    handle.remove()
    unwrap(wrapped)
    del wrapped.forward
    assert torch.equal(patched(ids()).logits, fused)


@pytest.mark.parametrize("model", MAKERS)
def test_a_weight_that_widens_its_norm_is_left_to_it(model):
    """DeepseekV4's norm casts its product to the dtype of the streams, and GLM-5.3's does not."""
    patched = both(model=model)[1].bfloat16()
    layer = next(module for module in patched.modules() if hasattr(module, "attn_hc"))
    layer.input_layernorm.float()
    streams = torch.randn(2, 5, layer.attn_hc.hc_mult, layer.attn_hc.hidden_size, dtype=torch.bfloat16)
    y = entered(integration.NORMS, layer.input_layernorm, streams, layer.attn_hc.enter).y
    assert y.dtype == layer.input_layernorm(streams[..., 0, :]).dtype


def wrap(module, calls):
    """As add_hook_to_module of accelerate 1.15 does."""

    def forward(module, *given, **options):
        calls.append(module)
        return module._old_forward(*given, **options)

    module._old_forward = module.forward
    module.forward = functools.update_wrapper(functools.partial(forward, module), module._old_forward)


def unwrap(module):
    """As remove_hook_from_module does: the method then is an attribute of the instance."""
    module.forward = vars(module).pop("_old_forward")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [kind.__name__ for kind in PACKAGE.back])
def test_forwards_that_were_wrapped_on_the_instance_stay_so(kind, when):
    name = next(name for name in MAKERS if kind.startswith(name))
    model, counts, tokens, calls = MAKERS[name](VOCABULARY), COUNTS[name], ids(), []
    expected = model(tokens).logits
    wrapped = [m for m in model.modules() if type(m).__name__ == kind]
    if when == "after":
        patch(model)
    for module in wrapped:
        wrap(module, calls)
    if when == "before":
        assert patch(model) == counts
    patched = model(tokens).logits
    assert not torch.equal(patched, expected)
    torch.testing.assert_close(patched, expected, rtol=1e-4, atol=1e-5)
    assert calls == wrapped
    own = getattr(integration, kind).forward
    for module in wrapped:
        assert inspect.signature(module.forward) == inspect.signature(own.__get__(module))
    calls.clear()
    assert unpatch(model) == counts
    assert torch.equal(model(tokens).logits, expected)
    assert calls == wrapped
    for module in wrapped:
        unwrap(module)
    assert patch(model) == counts
    assert torch.equal(model(tokens).logits, patched)
    assert unpatch(model) == counts
    assert torch.equal(model(tokens).logits, expected)


class Patching(transformers.DeepseekV4ForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        patch(self)


@pytest.mark.parametrize("missing", ["", "scale"], ids=["all", "scales"])
def test_parameters_that_a_checkpoint_lacks_are_initialised(missing, tmp_path):
    """Where a model patches itself as it is made; transformers makes them without values."""
    saved = tiny.make_model(VOCABULARY, initializer_range=0.5)
    saved.save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    # the names in the file are not those in the model
    kept = {name: t for name, t in load_file(file).items() if not ("hc" in name and missing in name)}
    save_file(kept, file, metadata={"format": "pt"})
    model = Patching.from_pretrained(tmp_path, experts_implementation="eager")
    assert sum(type(module) in PACKAGE.back for module in model.modules()) == sum(ALL)
    lacking = 0
    for name, parameter in model.state_dict().items():
        if not ("hc" in name and missing in name):
            assert torch.equal(parameter, saved.state_dict()[name]), name
            continue
        lacking += 1
        if name.endswith("fn"):
            assert parameter.std().item() == pytest.approx(0.5, rel=0.15), name
        else:
            assert torch.equal(parameter, torch.full_like(parameter, name.endswith("scale"))), name
    assert lacking == (5 if missing else 15)


@pytest.mark.parametrize("kind", ["connection", "head"])
def test_reset_parameters_leaves_what_a_checkpoint_filled(kind):
    """In an `_init_weights` of one's own, which from_pretrained calls for what the checkpoint lacks."""
    their, our = pair(kind)
    our.load_state_dict(their.state_dict())
    before = [p.detach().clone() for p in our.parameters()]
    filled = next(our.parameters())
    filled._is_hf_initialized = True
    with initialization.guard_torch_init_functions():
        our.reset_parameters()
    assert [torch.equal(p, q) for p, q in zip(our.parameters(), before, strict=True)] == [True, False, False]


@pytest.mark.parametrize(("kind", "deviation"), [("DeepseekV4", 0.5), ("Glm5NextText", 0.02)])
def test_weights_of_a_patched_model_begin_as_those_of_transformers(kind, deviation):
    """The sites of GLM-5.3 begin with 0.02 whatever the config says."""
    models = [MAKERS[kind](VOCABULARY, initializer_range=0.5) for _ in range(2)]
    patch(models[1])
    for model in models:
        for module in model.modules():
            # transformers marks what it has filled
            vars(module).pop("_is_hf_initialized", None)
        torch.manual_seed(1)
        model.init_weights()
    expected, patched = (model.state_dict() for model in models)
    assert all(torch.equal(patched[name], t) for name, t in expected.items())
    sites = [m for m in models[1].modules() if isinstance(m, (nn.HyperConnection, nn.HyperHead))]
    assert len(sites) == sum(COUNTS[kind][:2])
    for site in sites:
        assert site.initializer_range == deviation
        assert torch.equal(list(site.parameters())[2], torch.ones(3 if hasattr(site, "fn") else 1))


def test_unpatch_after_the_parameters_were_replaced_and_training_began():
    model = tiny.make_model(VOCABULARY).eval().to("meta")
    assert patch(model) == ALL
    assert not any(m.training for m in model.modules())
    model.to_empty(device="cpu").train()
    model.load_state_dict(tiny.make_model(VOCABULARY).state_dict())
    unpatch(model)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert all(m.training for m in model.modules())


@pytest.mark.parametrize("model", MAKERS)
def test_checkpointed_layers(model):
    original, patched = both(model=model)
    tokens = ids()
    expected = results(patched.train(), tokens)
    for model in (original, patched):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    assert_equal(results(patched, tokens).values(), expected.values())
    late = copy.deepcopy(original)
    patch(late)
    assert_equal(results(late, tokens).values(), expected.values())


@pytest.mark.parametrize("model", MAKERS)
def test_generation_hidden_states_copies_and_files(model):
    original, patched = both(model=model)
    tokens = ids()
    file = io.BytesIO()
    # hooks that a first call registers keep a model out of a file
    torch.save(patched, file)
    file.seek(0)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    assert torch.equal(patched.generate(tokens, **options), original.generate(tokens, **options))
    hidden = patched(input_ids=tokens, output_hidden_states=True).hidden_states
    expected = original(input_ids=tokens, output_hidden_states=True).hidden_states
    assert [h.shape for h in hidden] == [h.shape for h in expected]
    logits = patched(input_ids=tokens).logits
    for twin in (copy.deepcopy(patched), torch.load(file, weights_only=False)):
        assert torch.equal(twin(input_ids=tokens).logits, logits)
        assert unpatch(twin) == COUNTS[model]


def test_part_of_a_model():
    """A layer, and a module that is in no model."""
    model, (head, _) = tiny.make_model(VOCABULARY), pair("head")
    assert patch(model.model.layers[1]) == Patched(2, 0, 1)
    assert type(model.model.layers[0].attn_hc) is theirs.DeepseekV4HyperConnection
    assert unpatch(model) == Patched(2, 0, 1)
    x = randn(2, 3, 4, 12, seed=9)
    expected = head(x)
    assert patch(head) == Patched(0, 1, 0)
    assert isinstance(head, nn.HyperHead)
    torch.testing.assert_close(head(x), expected)
    assert unpatch(head) == Patched(0, 1, 0)
    assert torch.equal(head(x), expected)


def closed_over(model):
    inner = model.model.hc_head.forward
    model.model.hc_head.forward = lambda *given, **options: inner(*given, **options)


def in_a_partial(model):
    head = model.model.hc_head
    head.forward = functools.partial(lambda inner, x: inner(x), head.forward)


def below_accelerate(model):
    closed_over(model)
    wrap(model.model.hc_head, [])


def closed_over_and_kept(model):
    model.model.hc_head._old_forward = model.model.hc_head.forward
    closed_over(model)


class OtherHead(theirs.DeepseekV4HyperHead):
    pass


LOST = r"hc_head: its forward was replaced on the instance by .*<lambda>.* remove it, call patch, and wrap"
CASES = {
    "already": (patch, "model.layers.0 is patched already; call unpatch first"),
    "already but for the layers": (functools.partial(patch, layers=False), "attn_hc is patched already"),
    "sharded": (
        lambda model: setattr(model.model.layers[1].ffn_hc, "_is_fsdp_managed_module", True),
        "model.layers.1.ffn_hc is sharded by FSDP; call patch before fully_shard",
    ),
    "forward of one": (lambda model: setattr(model.model.hc_head, "forward", lambda x: x.mean(-2)), LOST),
    "closed over": (closed_over, LOST),
    "in a partial": (in_a_partial, LOST),
    "below accelerate's": (below_accelerate, "replaced on the instance by .*wrap.*forward, in which patch"),
    "closed over and kept": (closed_over_and_kept, LOST),
    "norm hooked": (
        lambda model: model.model.hc_head.input_norm.register_forward_hook(lambda *_: None),
        "the norm in model.hc_head has _forward_hooks, .* remove it before",
    ),
    "norm wrapped": (
        lambda model: wrap(model.model.hc_head.input_norm, []),
        "the norm in model.hc_head has .*forward, and a patched module does not",
    ),
    "another class": (
        lambda model: setattr(model.model.hc_head, "__class__", OtherHead),
        "hc_head: OtherHead is a class of .*test_transformers, and may compute",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_and_nothing_changed(case):
    spoil, said = CASES[case]
    model = tiny.make_model(VOCABULARY)
    spoil(model)
    assert_refused(model, said)


@pytest.mark.parametrize("option", ["precision", "implementation"])
def test_options_are_refused_and_nothing_changed(option):
    assert_refused(tiny.make_model(VOCABULARY), f"{option} is 'x'; use one of", **{option: "x"})


def assert_refused(model, said, **options):
    before = [(type(m), dict(vars(m))) for m in model.modules()]
    with pytest.raises(ValueError, match=said):
        patch(model, **options)
    assert [(type(m), dict(vars(m))) for m in model.modules()] == before


@pytest.mark.parametrize(
    "case", ["closed over", "in a partial", "below accelerate's", "closed over and kept", "sharded"]
)
def test_unpatch_refuses_a_wrapper_that_it_would_lose_and_changes_nothing(case):
    model = tiny.make_model(VOCABULARY)
    patch(model)
    CASES[case][0](model)
    kinds = [type(m) for m in model.modules()]
    with pytest.raises(ValueError, match=r"(replaced on the instance|sharded by FSDP).*call unpatch"):
        unpatch(model)
    assert [type(m) for m in model.modules()] == kinds
    vars(model.model.hc_head).pop("forward", None)
    vars(model.model.layers[1].ffn_hc).pop("_is_fsdp_managed_module", None)
    assert unpatch(model) == ALL


def test_models_without_such_modules_are_refused():
    said = r"contains no DeepseekV4HyperConnection .*; pass a DeepseekV4 or GLM-5\.3 model"
    with pytest.raises(ValueError, match=said):
        patch(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("module", "kind", "why"),
    [
        ("hy_v4.modeling_hy_v4", "HYV4HyperConnection", "Hy-V4 have no comb"),
        ("qwen4_exp.modeling_qwen4_exp", "Qwen4ExpTextGatedResidual", "a gate for each column"),
    ],
)
def test_other_models_with_streams_are_named_with_the_reason(module, kind, why):
    kind = getattr(importlib.import_module(f"transformers.models.{module}"), kind)
    # without its parameters: patch reads no more than its class
    site = kind.__new__(kind)
    torch.nn.Module.__init__(site)
    with pytest.raises(ValueError, match=f"contains no .*, but {kind.__name__}: .*{why}"):
        patch(torch.nn.Sequential(site))


@pytest.mark.parametrize("change", [patch, unpatch])
def test_what_is_no_module_is_refused(change):
    with pytest.raises(TypeError, match=r"model is a NoneType; pass a torch\.nn\.Module"):
        change(None)


def other_forward(self, hidden_states, input_ids=None, **kwargs):
    return hidden_states


@pytest.mark.parametrize("kind", PACKAGE.known, ids=lambda kind: kind.__name__)
def test_other_code_is_refused(kind, monkeypatch):
    name = next(name for name in MAKERS if kind.__name__.startswith(name))
    model = MAKERS[name](VOCABULARY)
    monkeypatch.setattr(kind, "forward", other_forward)
    said = rf"forward of {kind.__name__} was replaced by .*other_forward, which may"
    with pytest.raises(ValueError, match=said) as e:
        patch(model)
    assert ("layers=False" in str(e.value)) == (kind in kinds(PACKAGE.layers))
    monkeypatch.setattr(integration, "PACKAGE", PACKAGE._replace(installed="6.0.0"))
    said = rf"{kind.__name__} is not the one of .*install transformers==5\.24\.0 \(installed is 6\.0\.0\)"
    with pytest.raises(ValueError, match=said):
        patch(model)
    if kind in kinds(PACKAGE.layers):
        assert patch(model, layers=False) == COUNTS[name]._replace(layers=0)


def test_the_digest_sees_code_and_nothing_else():
    def f(x):
        """Text."""
        return x + 1

    first = digest(f)

    def f(x):
        # words
        return   x + 1  # fmt: skip

    assert digest(f) == first

    def f(x):
        return x - 1

    assert digest(f) != first
    assert digest(len) == "no source"
