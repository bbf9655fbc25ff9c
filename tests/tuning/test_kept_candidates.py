"""What the tuner's compiling processes leave for the process that times."""

from __future__ import annotations

import os

import pytest
from forked import python

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.machine.binary import Job
from helion_sinkhorn.machine.compiler import compile_for
from helion_sinkhorn.operators import KERNELS
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import default_choice

DEVICE = DEVICES["h200"]
CALL = SinkhornCall(True, 1, "float32", 4, 4, 2)
TIMES = """
import sys
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.machine.presented import present_device, specialised

present_device(DEVICES["h200"])
import triton
from helion_sinkhorn.machine.binary import Job
from helion_sinkhorn.operators import KERNELS
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.dispatch import signature
from helion_sinkhorn.runtime.generated import host_function
from helion_sinkhorn.runtime.kernel import default_choice
from helion_sinkhorn.tuning.child import first_launch

call = SinkhornCall(True, 1, "float32", 4, 4, 2)
choice = default_choice(KERNELS["sinkhorn_forward"], call, DEVICES["h200"])
kernel, arguments = first_launch(DEVICES["h200"], Job(call, choice, 4096))
hits, launches = [], []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
with FakeTensorMode():
    given = [
        torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="cuda:0")
        if isinstance(a, torch.Tensor) else a
        for a in arguments
    ]
    host_function(kernel, given, signature(tuple(given)))(
        *given, _launcher=lambda function, grid, *a, **o: launches.append((function, grid, a, o))
    )
    ((function, grid, a, o),) = launches
    a, o = specialised(a, o)
    function.run(*a, grid=grid, warmup=True, **o)
print("helion" in sys.modules, hits)
"""


def test_a_candidate_is_launched_without_helion_and_without_a_compiler(tmp_path, monkeypatch):
    """Helion's code of a candidate took the timing process 2 to 5 s, one candidate after the other."""
    programs, cache = tmp_path / "programs", tmp_path / "triton"
    monkeypatch.setenv("HELION_SINKHORN_CACHE_DIR", str(programs))
    job = Job(CALL, default_choice(KERNELS["sinkhorn_forward"], CALL, DEVICE), 1 << 20)
    (binary,) = compile_for("h200", [job], cache=cache)
    assert binary.compiled, binary.problems
    assert len(list(programs.iterdir())) == 1
    where = {"HELION_SINKHORN_DEVICE": "h200", "TRITON_CACHE_DIR": str(cache)}
    done = python("-c", TIMES, env={**os.environ, **where})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[-2] == "False [True]"


def test_what_is_compiled_to_be_read_keeps_no_code(tmp_path, monkeypatch):
    programs = tmp_path / "programs"
    monkeypatch.setenv("HELION_SINKHORN_CACHE_DIR", str(programs))
    job = Job(CALL, default_choice(KERNELS["sinkhorn_forward"], CALL, DEVICE), 1 << 20)
    (binary,) = compile_for("h200", [job])
    assert binary.compiled, binary.problems
    assert not programs.exists()
