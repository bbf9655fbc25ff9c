"""Launches that begin while the launch before them ends: which ones, on which devices, with which bits."""

from __future__ import annotations

import json
import os

import pytest
import torch
from autograd_calls import assert_equal, randn, value_and_gradient
from forked import printed

from helion_sinkhorn import sinkhorn
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.runtime import dispatch, launch, overlap

SHORT = sorted(name for name, kernel in KERNELS.items() if "short" in kernel.traits)
CODE = """
@triton.jit
def helper(x):
    return x

@triton.jit
def _helion_body(x, y):
    tl.store(y, helper(tl.load(x)))

def body(x, y, *, _launcher):
    _launcher(_helion_body, (1,), x, y, num_warps=4)
"""


def test_a_program_waits_before_it_reads_and_then_lets_the_next_launch_begin():
    found = overlap.overlapping(CODE)
    assert found.count("gdc_wait()") == found.count("launch_pdl=True") == 1
    assert "def _helion_body(x, y):\n    gdc_wait()\n    gdc_launch_dependents()\n" in found


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


def test_only_short_kernels_overlap(monkeypatch):
    monkeypatch.setattr(overlap, "has_overlap", lambda device: device.type == "cuda")
    gpu = torch.device("cuda", 0)
    changed = {name for name, kernel in KERNELS.items() if overlap.adapted(CODE, kernel, gpu) != CODE}
    assert changed == {*SHORT}


COMPILED = """
import json, re, sys
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.presented import present_device
device = DEVICES[sys.argv[1]]
present_device(device)
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning.child import compile_launch, first_launch
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.sinkhorn.large.space import LargeCall
from helion_sinkhorn.runtime.kernel import default_choice

CALLS = {
    SiteCall: (SiteCall("bfloat16", 4, 4096, "float32"), 16),
    LargeCall: (LargeCall("float32", 1024, 1024), 8),
}
found = []
for name in sys.argv[2:]:
    call, batch = CALLS[KERNELS[name].call]
    job = Job(call, default_choice(KERNELS[name], call, device), batch)
    compiled = compile_launch(*first_launch(device, job))
    text = compiled.asm["ptx" if device.vendor == "nvidia" else "amdgcn"]
    kinds = re.findall(r"griddepcontrol\\.\\w+|(?:ld|st)\\.global|cp\\.async|atom\\.|red\\.", text)
    is_launched_so = bool(getattr(compiled.metadata, "launch_pdl", False))
    found.append([kinds[:2], kinds.count("griddepcontrol.wait"), is_launched_so])
print(json.dumps(found))
"""
FIRST = ["griddepcontrol.wait", "griddepcontrol.launch_dependents"]


@pytest.mark.parametrize(
    ("device", "kernels", "expected"),
    [
        ("h200", ["hc_boundary_finish", "sinkhorn_large_step"], [FIRST, 1, True]),
        ("mi350", ["sinkhorn_large_columns"], [[], 0, False]),
        pytest.param("b200", SHORT, [FIRST, 1, True], marks=pytest.mark.nightly("minutes of compiling")),
        pytest.param("h200", SHORT, [FIRST, 1, True], marks=pytest.mark.nightly("minutes of compiling")),
    ],
    ids=["H200", "MI350", "B200, all", "H200, all"],
)
def test_no_access_to_memory_is_compiled_before_the_wait(device, kernels, expected):
    """A compiler may move loads, and one from before the wait would read what is not written yet."""
    environment = {**os.environ, "HELION_SINKHORN_DEVICE": device}
    lines = printed("-c", COMPILED, device, *kernels, env=environment, loaded=True).splitlines()
    assert json.loads(lines[-1]) == [expected] * len(kernels)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["log", "deepseek"])
def test_overlapping_launches_have_the_bits_of_others(form, monkeypatch):
    """A program that did not wait would read the sums of the iteration before."""
    x, dy = (randn(8, 256, 256, seed=seed, scale=3).cuda() for seed in (0, 1))
    found = []
    for overlaps in (True, False):
        monkeypatch.setattr(overlap, "has_overlap", lambda device, overlaps=overlaps: overlaps)
        dispatch._programs.clear()
        launch.forget()
        for _ in range(5):
            found.append(value_and_gradient(lambda t: sinkhorn(t, 50, form=form), x, dy))
    dispatch._programs.clear()
    for other in found[1:]:
        assert_equal(other, found[0])
