"""Forward and backward of generated code in Triton's interpreter, as a process: what came out, as JSON.

`TRITON_INTERPRET=1 python interpreted_call.py [helion]`, with tests/triton_interpreter on PYTHONPATH;
"helion" runs Helion's own modules too, with its own launcher.
"""

from __future__ import annotations

import hashlib
import json
import sys
from unittest import mock

import conftest  # noqa: F401  (what the interpreter lacks)
import torch

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.runtime import dispatch, generated, program_cache
from helion_sinkhorn.runtime import launch as door

door._launcher.set(door.Launcher(lambda index: (DEVICES["h200"], "division", False)))
CALL = 3, 1e-6, "deepseek", "rows"
x, dy = torch.randn(2, 5, 3, 3, generator=torch.Generator().manual_seed(0))


def results() -> str:
    """A digest of P and dX."""
    p = launch.forward(x, *CALL, torch.float32)
    dx = launch.backward(dy, x, *CALL)
    assert p.isfinite().all()
    assert dx.isfinite().all()
    return hashlib.sha256(p.numpy().tobytes() + dx.numpy().tobytes()).hexdigest()


found = {
    "results": results(),
    "imported": sorted({"helion", "torch._dynamo", "torch._inductor"} & set(sys.modules)),
    "programs": len(dispatch._programs),
}
if "helion" in sys.argv:
    dispatch._programs.clear()
    generated._codes.clear()
    with (
        mock.patch.object(generated, "standalone", return_value=None),
        mock.patch.object(program_cache, "folder", return_value=None),
    ):
        found["through Helion"] = results()
    hosts = [program.func for program in dispatch._programs.values()]
    assert all("helion" in host.__globals__["_default_launcher"].__module__ for host in hosts)
print(json.dumps(found))
