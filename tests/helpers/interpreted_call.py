"""Forward and backward of generated code in Triton's interpreter, as a process: what came out, as JSON.

`TRITON_INTERPRET=1 python interpreted_call.py TOKENS [N_ITERS]`, with the folders of tests/ on PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import json
import sys

import conftest  # noqa: F401  (what the interpreter lacks)
import torch

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.runtime import dispatch, serving

serving.device_at = lambda index: (DEVICES["h200"], "division", False)
tokens, n_iters = int(sys.argv[1]), int((*sys.argv, "3")[2])
call = n_iters, 1e-6, "deepseek", "rows"
x, dy = torch.randn(2, tokens, 3, 3, generator=torch.Generator().manual_seed(0))
# one matrix is far from the others: no block may be left out
x[-1] *= 5
p = launch.forward(x, *call, torch.float32)
dx = launch.backward(dy, x, *call)
assert p.isfinite().all()
assert dx.isfinite().all()
print(
    json.dumps(
        {
            "results": hashlib.sha256(p.numpy().tobytes() + dx.numpy().tobytes()).hexdigest(),
            "helion": "helion" in sys.modules,
            "dynamo": "torch._dynamo" in sys.modules,
            "programs": len(dispatch._programs),
        }
    )
)
