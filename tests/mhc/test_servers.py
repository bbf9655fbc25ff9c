"""The plug-ins for vLLM and SGLang: their released files where they are installed, stand-ins elsewhere."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import server_modules
import torch
from autograd_calls import assert_equal
from forked import python

from helion_sinkhorn import hc_boundary, hc_coeffs, hc_head, hc_post, hc_pre, hc_site
from helion_sinkhorn.integrations import servers
from helion_sinkhorn.integrations.servers import Taken

N, WIDTH, TOKENS, MOST = 4, 24, 6, 5
ROWS = N * (N + 2)
CONSTANTS = 1e-5, 2e-6, 3e-6, 2.0, 20
"""rms_eps, pre_eps, sinkhorn_eps, post_mult, repeat: all different, so that none takes another's place."""
NORM_EPS = 1e-4
MODELS = "deepseek_v4", "deepseek_v41"
PRE = (
    "residual", "fn", "hc_scale", "hc_base",
    "rms_eps", "hc_pre_eps", "hc_sinkhorn_eps", "hc_post_mult_value", "sinkhorn_repeat",
)  # fmt: skip


@pytest.fixture(scope="module")
def patched():
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield monkeypatch


@pytest.fixture(scope="module")
def vllm(patched):
    mhc = server_modules.vllm(patched, server_modules.released("vllm"))
    from helion_sinkhorn.integrations import vllm as plugin

    return SimpleNamespace(mhc=mhc, plugin=plugin, names=plugin.register("all"))


@pytest.fixture(scope="module")
def sglang(patched):
    registry = server_modules.sglang(patched, server_modules.released("sglang"))
    kernels, models = "sglang.kernels.ops.layernorm", "sglang.srt.models"
    mhc, head = sys.modules[f"{kernels}.mhc"], sys.modules[f"{kernels}.mhc_head"]
    v41 = sys.modules[f"{models}.deepseek_v4_mhc"]
    left = {}

    def leaving(module, name):
        """Their function with its signature, which says how it was called."""
        signature = inspect.signature(getattr(module, name))

        def called(*given, **options):
            left[name] = signature.bind(*given, **options).arguments
            return name

        called.__signature__ = signature
        patched.setattr(module, name, called)

    for module, name in ((mhc, "mhc_pre"), (mhc, "mhc_post"), (head, "fused_hc_head"), (v41, "_post_fusion")):
        leaving(module, name)
    from helion_sinkhorn.integrations import sglang as plugin

    plugin.register("all")
    registry.HookRegistry.apply_hooks()
    return SimpleNamespace(mhc=mhc, head=head, v41=v41, plugin=plugin, left=left)


def drawn(tokens=TOKENS, dtype=torch.float32, seed=0):
    """What a seam takes, by the names of vLLM's arguments, and a norm's weight; and these in their groups."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, of=torch.float32):
        return torch.randn(shape, generator=generator).to(of)

    d = SimpleNamespace(
        x=draw(tokens, WIDTH, of=dtype), residual=draw(tokens, N, WIDTH, of=dtype),
        post=2 * draw(tokens, N, 1).sigmoid(), comb=draw(tokens, N, N).softmax(-1),
        pre=draw(tokens, N).sigmoid(), fn=draw(ROWS, N * WIDTH) / 8, scale=draw(3), base=draw(ROWS),
        weight=draw(WIDTH, of=dtype), head_fn=draw(N, N * WIDTH) / 8, head_scale=draw(1), head_base=draw(N),
    )  # fmt: skip
    d.update, d.ours = (d.x, d.residual, d.post, d.comb), (d.x, d.residual, d.post[..., 0], d.comb)
    d.site, d.head = (d.fn, d.scale, d.base), (d.head_fn, d.head_scale, d.head_base)
    return d


def norm_of(d, with_norm, of=""):
    return {f"{of}norm_weight": d.weight, f"{of}norm_eps": NORM_EPS} if with_norm else {}


def options_of(d, with_norm):
    rms_eps, pre_eps, eps, post_mult, iters = CONSTANTS
    named = {"sinkhorn_iters": iters, "eps": eps, "norm_eps": rms_eps, "post_mult": post_mult}
    return {**named, "pre_eps": pre_eps, **norm_of(d, with_norm, "y_")}


def test_a_plug_in_that_is_off_imports_the_package_alone():
    code = """
import os, sys
import helion_sinkhorn
before = set(sys.modules)
from helion_sinkhorn.integrations import plugins
for value in (None, "", "off"):
    os.environ.pop(plugins.SWITCH, None) if value is None else os.environ.update({plugins.SWITCH: value})
    plugins.vllm(), plugins.sglang()
print(sorted(set(sys.modules) - before), "triton" in sys.modules, "helion" in sys.modules)
os.environ[plugins.SWITCH] = "on"
sys.modules["helion_sinkhorn.integrations.vllm"] = type(sys)("vllm")
sys.modules["helion_sinkhorn.integrations.vllm"].register = lambda calls: print("registered", calls)
plugins.vllm()
"""
    root = str(Path(__file__).resolve().parents[2])
    done = python("-c", code, env={**os.environ, "PYTHONPATH": root})
    own = ["helion_sinkhorn.integrations", "helion_sinkhorn.integrations.plugins"]
    assert done.stdout.split("\n")[:2] == [f"{own} False False", "registered on"]


@pytest.fixture
def few_alone(monkeypatch):
    """A function that lets a plug-in take seams of up to MOST tokens alone."""
    monkeypatch.setattr(servers, "MOST_TOKENS", MOST)
    return lambda server: monkeypatch.setattr(server.plugin.taken, "every", False)


@pytest.fixture
def preparing(monkeypatch):
    """A function that lets a plug-in prepare, and returns the list of what it prepares."""
    prepared = []

    def prepare(fn, boundary):
        # parts made in it could not be written again outside
        assert not torch.is_inference_mode_enabled()
        prepared.append((fn, boundary))

    monkeypatch.setattr(servers, "hc_prepare", prepare)

    def switch(taken):
        monkeypatch.setattr(taken, "prepares", True)
        return prepared

    return switch


def test_which_calls_are_taken(few_alone):
    taken = Taken()
    for calls, of_seams, of_parts in (("on", [True, False], False), ("all", [True, True], True)):
        taken.set(calls)
        assert [taken.takes(torch.empty(tokens, N, 1)) for tokens in (MOST, MOST + 1)] == of_seams
        assert taken.takes(torch.empty(2, 3, N, 1)) == of_seams[1]
        assert taken.takes(None) == of_parts
        taken.set(f"{calls},prepared")
        assert taken.takes(torch.empty(MOST + 1, N, 1))
        assert taken.takes(None) == of_parts
        assert taken.takes(torch.empty(servers.MOST_PREPARED + 1, N, 1)) == of_seams[1]
    for wrong in ("", "yes", "1", 1, True, None, "prepared", "on,", "on,prepare"):
        with pytest.raises(ValueError, match="HELION_SINKHORN_SERVE, is"):
            taken.set(wrong)
    assert taken.every


def test_a_projection_is_prepared_once_and_when_it_changes(preparing, monkeypatch):
    taken, fn = Taken(), torch.randn(ROWS, N * WIDTH)
    assert taken.kept(fn, True) is fn
    prepared = preparing(taken)
    for boundary in (True, True, False, True):
        assert taken.kept(fn, boundary) is fn
    assert prepared == [(fn, True), (fn, False)]
    fn.mul_(2)
    other = fn.clone()
    with torch.inference_mode():
        taken.kept(fn, True), taken.kept(fn, True), taken.kept(other, True), taken.kept(fn.clone(), True)
    # a subclass, as for quantised weights, is not split
    taken.kept(torch.randn(ROWS, N * WIDTH).as_subclass(type("Loaded", (torch.Tensor,), {})), True)
    assert [boundary for _, boundary in prepared[2:]] == [True, True]
    assert prepared[3][0] is other
    monkeypatch.setattr(servers, "is_capturing", lambda: True)
    taken.kept(torch.randn(ROWS, N * WIDTH), True)
    assert len(prepared) == 4


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_stand_ins_have_the_released_signatures(server):
    root = server_modules.released(server)
    if root is None:
        pytest.skip(f"make test WHAT=servers: {server} is not installed")
    sides = []
    for where in (root, None):
        with pytest.MonkeyPatch.context() as monkeypatch:
            getattr(server_modules, server)(monkeypatch, where)
            if server == "vllm":
                mhc = sys.modules["vllm.model_executor.layers.mhc"]
                names = "MHCPreOp", "MHCPreDelayedOp", "MHCPostOp", "HCHeadOp", "MHCFusedPostPreOp"
                functions = [getattr(mhc, name).forward_cuda for name in names]
            else:
                kernels = "sglang.kernels.ops.layernorm"
                mhc, head = sys.modules[f"{kernels}.mhc"], sys.modules[f"{kernels}.mhc_head"]
                v41 = sys.modules["sglang.srt.models.deepseek_v4_mhc"]
                records = v41.HcConfig, v41.HcSubLayer, v41.HcNextBoundary, v41.HcNormed, v41.HcState
                functions = [mhc.mhc_pre, mhc.mhc_post, head.fused_hc_head, v41._post_fusion, *records]
            signatures = [inspect.signature(function) for function in functions]
            sides.append([[(p.name, p.kind, p.default) for p in s.parameters.values()] for s in signatures])
    assert sides[0] == sides[1]


def test_the_patch_for_vllm_sends_v41_through_a_class_that_is_replaced(tmp_path):
    """docs/upstream/vllm_mhc.md; and it leaves no call of a function that the classes have."""
    root = server_modules.released("vllm")
    if root is None:
        pytest.skip("make test WHAT=servers: vllm is not installed")
    patch = Path(__file__).resolve().parents[2] / "docs" / "upstream" / "vllm_mhc.patch"
    files = re.findall(r"^--- a/(.*)$", patch.read_text(), re.M)
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root.parent / name, tmp_path / name)
    subprocess.run(["git", "apply", "-p1", str(patch)], cwd=tmp_path, check=True, timeout=60)
    v4, v41 = ((tmp_path / f"vllm/models/{of}/nvidia/model.py").read_text() for of in MODELS)
    assert re.findall(r"\w+_tilelang\(", v4) == ["mhc_pre_broadcast_tilelang("]
    assert v41.count("pre_delayed=self.mhc_pre_delayed") == v41.count("= mhc_shifted_post_pre(") == 3
    d, calls = drawn(), []
    ops = "vllm.models.deepseek_v41.nvidia.ops"
    imported = (
        "vllm.distributed", "vllm.model_executor.kernels.mhc.tilelang", "vllm.utils.deep_gemm",
        f"{ops}.mega_mhc",
    )  # fmt: skip
    outputs = d.residual + 1, d.post, d.comb, d.x + 1, d.pre
    site, norm = (*d.site, *CONSTANTS), norm_of(d, True)

    def pre_delayed(*given, **options):
        calls.append((given, options))
        return outputs

    with pytest.MonkeyPatch.context() as monkeypatch:
        layers = server_modules.vllm(monkeypatch, root, tmp_path / "vllm/model_executor/layers/mhc.py")
        for name in imported:
            server_modules.put(monkeypatch, name, server_modules.Stub(name))
        moe = server_modules.put(
            monkeypatch, "vllm.model_executor.layers.fused_moe.moe_output", ModuleType("moe_output")
        )
        moe.MoEOutput = moe.UnfinalizedMoEOutput = type("MoEOutput", (), {})
        seam = server_modules.load(
            monkeypatch, f"{ops}.mhc", tmp_path / "vllm/models/deepseek_v41/nvidia/ops/mhc.py"
        ).mhc_shifted_post_pre
        monkeypatch.setattr(
            torch.ops.vllm, "mhc_fused_post_pre_delayed_tilelang",
            lambda *given: calls.append((given, {})) or (*outputs, d.x), raising=False,
        )  # fmt: skip
        delayed = layers.MHCPreDelayedOp()
        assert delayed(d.residual, *site, d.pre, None, d.weight, NORM_EPS, d.x, d.post, d.comb) == outputs
    # the kernel that V4.1 has now, with its arguments
    ((given, _),) = calls
    assert all(a is b for a, b in zip(given, (*d.update, *site, d.pre, d.weight, NORM_EPS), strict=True))
    calls.clear()
    results = seam(*d.update, *site, d.pre, **norm, pre_delayed=pre_delayed)
    assert all(a is b for a, b in zip(results[:5], outputs, strict=True))
    assert results[5].shape == (0, WIDTH)
    ((given, options),) = calls
    assert all(a is b for a, b in zip(given, (d.residual, *site), strict=True))
    wanted = {"sublayer_out": d.x, "post_layer_mix": d.post, "comb_res_mix": d.comb, "pre_mix": d.pre, **norm}
    assert options.keys() == wanted.keys()
    assert all(options[name] is wanted[name] for name in wanted)


def test_vllm_makes_ours_of_its_classes(vllm):
    assert len(vllm.names) == 5
    for name in vllm.names:
        made = getattr(vllm.mhc, name)()
        assert type(made) is not getattr(vllm.mhc, name)
        assert isinstance(made, getattr(vllm.mhc, name))
    assert vllm.plugin.register("all") == vllm.names


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_vllm_has_the_bits_of_the_functions(vllm, dtype, with_norm):
    d = drawn(dtype=dtype)
    options, norm = options_of(d, with_norm), norm_of(d, with_norm)
    named = dict(zip(PRE, (d.residual, *d.site, *CONSTANTS), strict=True))
    post, comb, y = vllm.mhc.MHCPreOp()(**named, **norm)
    assert_equal((y, post[..., 0], comb), hc_site(d.residual, *d.site, **options)[:3])
    x, post, comb, y = vllm.mhc.MHCFusedPostPreOp()(*d.update, *d.site, *CONSTANTS, **norm)
    wanted = hc_boundary(*d.ours, None, *d.site, **options)
    assert_equal((y, post[..., 0], comb, x), (wanted.y, wanted.post, wanted.comb, wanted.residual))
    delayed, norm = vllm.mhc.MHCPreDelayedOp(), norm or {"norm_weight": None}
    x, post, comb, y, pre = delayed(
        d.residual, *d.site, *CONSTANTS, pre_mix=d.pre, **norm, sublayer_out=d.x, post_layer_mix=d.post,
        comb_res_mix=d.comb,
    )  # fmt: skip
    assert_equal((y, pre, post[..., 0], comb, x), hc_boundary(*d.ours, d.pre, *d.site, **options))
    x, post, comb, y, pre = delayed(d.residual, *d.site, *CONSTANTS, **norm)
    assert x is d.residual
    assert_equal((pre, post[..., 0], comb), hc_coeffs(d.residual, *d.site, **options_of(d, False)))
    # the first sublayer takes stream 0
    first = torch.eye(1, N).expand(TOKENS, N)
    assert_equal([y], [hc_pre(d.residual, first, **norm_of(d, with_norm, "y_"))])


def test_vllm_prepares_each_projection(vllm, preparing):
    prepared, d = preparing(vllm.plugin.taken), drawn()
    delayed = vllm.mhc.MHCPreDelayedOp()
    update = {"sublayer_out": d.x, "post_layer_mix": d.post, "comb_res_mix": d.comb}
    for run, boundary in (
        (lambda fn, *rest: vllm.mhc.MHCPreOp()(d.residual, fn, *rest), False),
        (lambda fn, *rest: vllm.mhc.MHCFusedPostPreOp()(*d.update, fn, *rest), True),
        (lambda fn, *rest: delayed(d.residual, fn, *rest, pre_mix=d.pre, **update), True),
        (lambda fn, *rest: delayed(d.residual, fn, *rest), False),
    ):
        fn = d.fn.clone()
        for _ in range(2):
            run(fn, d.scale, d.base, *CONSTANTS)
        ((projection, of_boundary),) = prepared
        assert projection is fn
        assert of_boundary == boundary
        prepared.clear()


def test_vllm_updates_and_collapses(vllm):
    d = drawn(dtype=torch.bfloat16)
    assert torch.equal(vllm.mhc.MHCPostOp()(*d.update), hc_post(*d.ours))
    collapsed = vllm.mhc.HCHeadOp()(d.residual, *d.head, 1e-5, 1e-6)
    assert torch.equal(collapsed, hc_head(d.residual, *d.head, norm_eps=1e-5, eps=1e-6))


def calls_of_vllm(d):
    """By the operator that a method of vLLM's calls: its class, and what the class is given."""
    site, norm = (*d.site, *CONSTANTS), (d.weight, NORM_EPS)
    return {
        "mhc_pre_tilelang": ("MHCPreOp", (d.residual, *site, 1, *norm)),
        "mhc_post_tilelang": ("MHCPostOp", d.update),
        "hc_head_fused_kernel_tilelang": ("HCHeadOp", (d.residual, *d.head, 1e-5, 1e-6)),
        "mhc_fused_post_pre_tilelang": ("MHCFusedPostPreOp", (*d.update, *site, 1, 1, *norm)),
        "mhc_pre_delayed_tilelang": (
            "MHCPreDelayedOp",
            (d.residual, *site, d.pre, None, *norm, d.x, d.post, d.comb),
        ),
    }


PARTS = "mhc_pre_tilelang", "mhc_post_tilelang", "hc_head_fused_kernel_tilelang"
FUSED, DELAYED = "mhc_fused_post_pre_tilelang", "mhc_pre_delayed_tilelang"


def test_vllm_keeps_the_calls_of_many_tokens_and_parts_of_few(vllm, few_alone, monkeypatch):
    """They reach the operator that vLLM's own method calls, with its arguments in their order."""
    few_alone(vllm)
    many, few = drawn(MOST + 1), drawn(MOST)
    combs = torch.zeros(MOST + 1, N, N)
    returned = {
        "mhc_pre_tilelang": (many.post, combs, many.x),
        "mhc_post_tilelang": many.residual + 1,
        "hc_head_fused_kernel_tilelang": many.x + 1,
        FUSED: (many.residual + 1, many.post, combs, many.x),
        DELAYED: (many.post, combs, many.x, many.pre),
    }
    theirs = mock.Mock(**{f"{name}.return_value": of for name, of in returned.items()})
    for name in returned:
        monkeypatch.setattr(torch.ops.vllm, name, getattr(theirs, name), raising=False)

    def called(name, given):
        return getattr(vllm.mhc, calls_of_vllm(few)[name][0])()(*given)

    wanted = {name: given for name, (_, given) in calls_of_vllm(many).items()}
    results = {name: called(name, given) for name, given in wanted.items()}
    # V4.1's update is made before, by the class for updates
    wanted[DELAYED] = many.residual + 1, *wanted[DELAYED][1:-3]
    for name, arguments in wanted.items():
        for argument, want in zip(getattr(theirs, name).call_args.args, arguments, strict=True):
            assert torch.equal(argument, want) if isinstance(want, torch.Tensor) else argument == want, name
    for name, want in {**returned, DELAYED: (many.residual + 1, *returned[DELAYED])}.items():
        pairs = zip(results[name], want, strict=True) if isinstance(want, tuple) else [(results[name], want)]
        assert all(torch.equal(a, b) for a, b in pairs), name
    theirs.reset_mock()
    theirs.hc_head_fused_kernel_tilelang.return_value = few.x + 1
    given = {name: given for name, (_, given) in calls_of_vllm(few).items()}
    for name in PARTS:
        called(name, given[name])
    called(DELAYED, given[DELAYED][:-3])
    assert {name for name, *_ in theirs.mock_calls} == {*PARTS, DELAYED}
    theirs.reset_mock()
    streams = hc_post(*few.ours)
    assert all(torch.equal(called(name, given[name])[0], streams) for name in (FUSED, DELAYED))
    assert not theirs.mock_calls


def test_vllm_keeps_the_first_layer_s_narrower_projection(vllm, monkeypatch):
    d, calls = drawn(), []
    monkeypatch.setattr(
        torch.ops.vllm, "mhc_pre_delayed_tilelang",
        lambda *given: calls.append(given) or (d.post, d.comb, d.x, d.pre), raising=False,
    )  # fmt: skip
    narrow = d.fn[:, :WIDTH].contiguous()
    streams, *_ = vllm.mhc.MHCPreDelayedOp()(d.residual, narrow, d.scale, d.base, *CONSTANTS, x=d.x)
    assert streams is d.residual
    assert torch.equal(calls[0][1], narrow)


def test_vllm_s_operators_have_fakes(vllm):
    named = {
        f"vllm_{name.removesuffix('_tilelang').removesuffix('_fused_kernel')}": given
        for name, (_, given) in calls_of_vllm(drawn()).items()
    }
    alone = "vllm_mhc_pre_delayed", (*named["vllm_mhc_pre_delayed"][:-3], None, None, None)
    for name, given in (*named.items(), alone):
        operator = getattr(torch.ops.helion_sinkhorn, name)
        torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))


def test_one_compiled_graph_of_vllm_takes_and_leaves_calls(vllm, few_alone, monkeypatch):
    """vLLM drops the guards of its graphs: a choice made in tracing would stay for any number of tokens."""
    few_alone(vllm)
    monkeypatch.setattr(
        torch.ops.vllm, "mhc_fused_post_pre_tilelang",
        lambda x, residual, post, comb, *_: (torch.zeros_like(residual), post, comb, x), raising=False,
    )  # fmt: skip
    operator, graphs = vllm.mhc.MHCFusedPostPreOp(), []

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda *given: operator(*given, *CONSTANTS)[0] + 0, backend=counting, fullgraph=True, dynamic=True
    )
    few, many = drawn(MOST), drawn(MOST + 3)
    taken, left = (compiled(*d.update, *d.site) for d in (few, many))
    assert torch.equal(taken, hc_post(*few.ours))
    assert left.count_nonzero() == 0
    assert len(graphs) == 1


def test_vllm_s_class_of_another_package_stays(vllm, monkeypatch):
    registry = vllm.plugin.op_registry_oot
    monkeypatch.setitem(registry, "MHCPostOp", type("Other", (), {"__module__": "other_package"}))
    with pytest.raises(ValueError, match=r"MHCPostOp of vLLM is replaced by other_package .* VLLM_PLUGINS"):
        vllm.plugin.register("all")


@pytest.mark.parametrize("with_norm", [False, True])
def test_sglang_computes_v4(sglang, with_norm, preparing):
    d, prepared = drawn(), preparing(sglang.plugin.taken)
    named = dict(zip(PRE, (d.residual, *d.site, *CONSTANTS), strict=True))
    post, comb, y = sglang.mhc.mhc_pre(**named, **norm_of(d, with_norm))
    assert_equal((y, post[..., 0], comb), hc_site(d.residual, *d.site, **options_of(d, with_norm))[:3])
    assert prepared == [(d.fn, False)]


def test_sglang_updates_and_collapses(sglang):
    d = drawn(dtype=torch.bfloat16)
    # V4 passes post as (T, n, 1), V4.1 as (T, n)
    for given in (d.update, d.ours):
        assert torch.equal(sglang.mhc.mhc_post(*given), hc_post(*d.ours))
    collapsed = sglang.head.fused_hc_head(d.residual, *d.head, 1e-5, 1e-6)
    assert torch.equal(collapsed, hc_head(d.residual, *d.head, norm_eps=1e-5, eps=1e-6))


def v41_boundary(sglang, d, **others):
    """(hc, next) of the seam to a site with another eps and norm than the site before."""
    rms_eps, _, eps, _, iters = CONSTANTS
    config = sglang.v41.HcConfig(N, iters, eps, rms_eps, WIDTH, True, others.pop("cp_prefill", False))
    norm = SimpleNamespace(weight=d.weight, variance_epsilon=NORM_EPS)
    before = sglang.v41.HcSubLayer(config._replace(eps=0.1), d.fn + 1, d.scale + 1, d.base + 1, None)
    site = sglang.v41.HcSubLayer(config, *d.site, norm)
    given = {"norm": norm, "accepts_mxfp8": False, "norm_fusable": True, "hc": site, **others}
    return before, sglang.v41.HcNextBoundary(**given)


def test_sglang_computes_the_seam_of_v41(sglang, preparing):
    d, prepared = drawn(), preparing(sglang.plugin.taken)
    before, next = v41_boundary(sglang, d)
    state = sglang.v41._post_fusion(before, d.x, d.residual, (d.pre, d.post[..., 0], d.comb), next)
    assert type(state) is sglang.v41.HcState
    assert state.pre is d.pre
    pre, post, comb = state.stats
    # SGLang has one eps for pre and Sinkhorn there
    options = {**options_of(d, True), "pre_eps": CONSTANTS[2]}
    wanted = hc_boundary(*d.ours, d.pre, *d.site, **options)
    assert_equal((state.input.rows, pre, post, comb, state.streams), wanted)
    assert isinstance(state.input, sglang.v41.HcNormed)
    assert prepared == [(d.fn, True)]


def test_sglang_keeps_what_is_not_ours(sglang, few_alone):
    few_alone(sglang)
    few, many = drawn(MOST - 1), drawn(MOST + 1)
    given = few.residual, *few.site, *CONSTANTS, 3
    assert sglang.mhc.mhc_pre(*given, **norm_of(few, True)) == "mhc_pre"
    seen = sglang.left["mhc_pre"]
    assert (seen["rms_eps"], seen["sinkhorn_repeat"], seen["n_splits"]) == (CONSTANTS[0], 20, 3)
    assert seen["norm_weight"] is few.weight
    assert sglang.mhc.mhc_post(*few.update) == "mhc_post"
    assert sglang.left["mhc_post"]["comb_res_mix"] is few.comb
    assert sglang.head.fused_hc_head(few.residual, *few.head, 1e-5, 1e-6) == "fused_hc_head"
    assert sglang.left["fused_hc_head"]["hc_eps"] == 1e-6

    def fused(d, **others):
        before, next = v41_boundary(sglang, d, **others)
        given = before, d.x, d.residual, (d.pre, d.post[..., 0], d.comb)
        return [sglang.v41._post_fusion(*given, to) for to in (next, None)]

    assert fused(many) == ["_post_fusion"] * 2
    for others in (
        {"hc": None}, {"norm_fusable": False}, {"mega_moe_input": lambda y: None}, {"cp_prefill": True},
    ):  # fmt: skip
        assert fused(few, **others)[0] == "_post_fusion", others
    assert [of == "_post_fusion" for of in fused(few)] == [False, True]


def test_sglang_s_changed_function_is_refused(sglang, monkeypatch):
    monkeypatch.setattr(sglang.mhc, "mhc_post", lambda x, residual, mix: None)
    with pytest.raises(RuntimeError, match=r"mhc\.mhc_post takes \(x, residual, mix\), .*sglang==0\.5\.23"):
        sglang.plugin.register("all")
