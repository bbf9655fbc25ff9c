"""Launches that begin while the launch before them ends: which ones, on which devices, with which bits."""

from __future__ import annotations

import json
import os
import re
from unittest import mock

import pytest
import torch
from autograd_calls import assert_equal
from cuda_graphs import capture
from forked import printed
from hc_boundaries import boundary, boundary_inputs

from helion_sinkhorn import hc_post, hc_site, sinkhorn
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.runtime import dispatch, launch, overlap
from helion_sinkhorn.runtime.adapted import adapted
from helion_sinkhorn.runtime.standalone import load

SEAMS = [f"hc_boundary_{name}" for name in ("finish", "forward", "head", "head_sums", "last", "split")]
PARTS = ["hc_mixes_split", "hc_mixes_partials", "hc_post_forward"]
LARGE = [f"sinkhorn_large_{name}" for name in ("first", "step", "columns", "back", "gather", "eps_step")]
CODE = """
import triton
import triton.language as tl

@triton.jit
def helper(x):
    return x

@triton.jit
def _helion_body(x, y):
    tl.store(y, helper(tl.load(x)))

def body(x, y, *, _launcher):
    _launcher(_helion_body, (1,), x, y, num_warps=4)
"""


@pytest.mark.parametrize(
    ("capability", "driver", "hip", "expected"),
    [
        ((9, 0), 13000, None, True),
        ((10, 0), 12030, None, True),
        ((8, 9), 13000, None, False),
        ((9, 0), 12020, None, False),
        ((9, 5), 13000, "7.0", False),
    ],
    ids=["H100", "B200", "L40", "a driver that cannot capture them", "MI350"],
)
def test_devices(monkeypatch, capability, driver, hip, expected):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(overlap, "driver", lambda: driver)
    assert overlap.has_overlap.__wrapped__(torch.device("cuda", 0)) is expected
    assert not overlap.has_overlap.__wrapped__(torch.device("cpu"))


def test_which_kernels_overlap(monkeypatch):
    monkeypatch.setattr(overlap, "has_overlap", lambda device: device.type == "cuda")
    gpu = torch.device("cuda", 0)
    waiting = {name for name, kernel in KERNELS.items() if "gdc_wait" in adapted(CODE, kernel, gpu)}
    of_large = {name for name in waiting if name.startswith("sinkhorn_large_")}
    assert waiting - of_large == {*SEAMS, *PARTS}
    assert of_large >= {*LARGE}
    assert not any("wide" in name for name in of_large)


@pytest.mark.parametrize("name", ["hc_post_backward", "hc_pre_normed_backward"])
def test_products_beside_optional_results_do_not_fuse(name):
    """A compiler fuses either product of a sum of two, depending on what else the program computes: bits are
    compared on GPUs by contract/test_wanted.py.
    """
    function = mock.Mock()
    body = load(adapted(CODE, KERNELS[name], torch.device("cuda", 0)), "body")
    body(None, None, _launcher=lambda _, *given, **own: dispatch.launch(function, *given, **own))
    function.run.assert_called_once_with(
        None, None, grid=(1,), warmup=False, num_warps=4, enable_fp_fusion=False
    )


ACCESSES = r"griddepcontrol\.\w+|(?:ld|st)\.global|cp\.async|\b(?:atom|red)\."
"""What the text of a GPU's code says of memory and of other launches."""
FIRST = "griddepcontrol.wait"


@pytest.mark.parametrize("arch", [90, 100])
def test_no_access_to_memory_is_compiled_before_the_wait(arch, monkeypatch):
    """A compiler may move loads, and one from before the wait would read what is not written yet."""
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(overlap, "has_overlap", lambda device: True)
    code = adapted(CODE, KERNELS["hc_boundary_split"], torch.device("cuda"))
    assert code.count("launch_pdl=True") == 1
    body = load(code, "body").__globals__["_helion_body"]
    source = triton.compiler.ASTSource(body, {"x": "*fp32", "y": "*fp32"})
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    accesses = re.findall(ACCESSES, triton.compile(source, target=target).asm["ptx"])
    assert accesses == [FIRST, "ld.global", "st.global"]


COMPILED = """
import json, re, sys
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.presented import present_device
device = DEVICES[sys.argv[1]]
present_device(device)
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning.child import compile_launch, first_launch
from helion_sinkhorn.ops.mhc.post.space import PostCall
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.sinkhorn.large.space import LargeCall
from helion_sinkhorn.runtime.kernel import default_choice

site = SiteCall("bfloat16", 4, 4096, "float32")
others = site.mixes, PostCall("bfloat16", 4, 4096), LargeCall("float32", 1024, 1024)
calls = {type(call): call for call in (site, *others)}
found = []
for name in sys.argv[3:]:
    call = calls[KERNELS[name].call]
    job = Job(call, default_choice(KERNELS[name], call, device), 16)
    compiled = compile_launch(*first_launch(device, job))
    text = compiled.asm["ptx" if device.vendor == "nvidia" else "amdgcn"]
    kinds = re.findall(sys.argv[2], text)
    is_launched_so = bool(getattr(compiled.metadata, "launch_pdl", False))
    found.append([kinds[:1], kinds.count("griddepcontrol.wait"), is_launched_so])
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("device", "expected"),
    [("h200", [[FIRST], 1, True]), ("b200", [[FIRST], 1, True]), ("mi350", [[], 0, False])],
)
@pytest.mark.nightly("half a minute each; a small kernel is compiled above always")
def test_nor_in_a_kernel_of_the_package(device, expected):
    names, environment = SEAMS + PARTS + LARGE, {**os.environ, "HELION_SINKHORN_DEVICE": device}
    said = printed("-c", COMPILED, device, ACCESSES, *names, env=environment, loaded=True)
    assert json.loads(said.splitlines()[-1]) == [expected] * len(names)


def chain(given, norm, parts):
    """Twenty seams, each of which reads what the one before it wrote; with `parts` by two operators."""
    f, x, post, comb, *site = given
    for _ in range(20):
        if parts:
            x = hc_post(f, x, post, comb)
            f, post, comb, _ = hc_site(x, *site[:3], y_norm_weight=norm)
        else:
            made = boundary(f, x, post, comb, *site, own=True, y_norm_weight=norm)
            f, x, post, comb = made.y, made.residual, made.post, made.comb
    return f, x, post, comb


def seams(tokens, parts=False):
    given, _ = boundary_inputs(tokens, n=4, c=4096, dtype=torch.bfloat16)
    given, norm = [t.cuda() for t in given[:8]], torch.ones(4096, device="cuda")
    return lambda: torch.no_grad()(chain)(given, norm, parts)


def large(**form):
    x, dp = (torch.randn(9, 256, 192, generator=torch.Generator().manual_seed(k)).cuda() for k in range(2))
    x.requires_grad_()

    def run():
        p = sinkhorn(x, 20, **form)
        return p.detach(), *torch.autograd.grad(p, x, dp)

    return run


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("make", "of"),
    [
        pytest.param(seams, {"tokens": 1}, id="seams of a token"),
        pytest.param(seams, {"tokens": 128}, id="seams of 128"),
        pytest.param(seams, {"tokens": 128, "parts": True}, id="in parts"),
        pytest.param(large, {"form": "log"}, id="large, log form"),
        pytest.param(large, {"eps": 1e-6}, id="large, deepseek form"),
    ],
)
def test_overlapping_launches_have_the_bits_of_others(make, of, monkeypatch):
    """A program that did not wait would read what the launch before it has not written yet."""
    if not overlap.has_overlap(torch.device("cuda", 0)):
        pytest.skip("launches do not overlap on this GPU")
    run, outputs = make(**of), []
    for overlaps in (False, True):
        monkeypatch.setattr(overlap, "has_overlap", lambda device, overlaps=overlaps: overlaps)
        dispatch._programs.clear()
        launch.forget()
        outputs += [run() for _ in range(5)]
        graph, captured = capture(run)
        for _ in range(5):
            graph.replay()
            outputs.append([t.clone() for t in captured])
        waits = ["gdc_wait" in program.func.__globals__ for program in dispatch._programs.values()]
        assert set(waits) == {overlaps}
    dispatch._programs.clear()
    launch.forget()
    for other in outputs[1:]:
        assert_equal(other, outputs[0])
