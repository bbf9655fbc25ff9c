"""A matrix has one formula at every place of a batch, with configs for which the compilers once made two.

Machine code for an H200, followed with formulas in place of floats (ci/same_bits.py).
"""

from __future__ import annotations

import pytest
from forked import python

pytest.importorskip("triton")

FOLLOW = """
import sys
from pathlib import Path
import torch
from ci.gate.gate import Candidate
from ci.same_bits import Trace, differences, following, present

trace = Trace(present("h200", Path(sys.argv[1])), Path(sys.argv[1]))
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.ops.sinkhorn.implicit.launch import implicit_backward
from helion_sinkhorn.runtime.kernel import Choice

config, variant, n, run = {}, {}, {}, {}
kernel = sys.argv[2]
choice = Choice(kernel, tuple(sorted(config.items())), tuple(sorted(variant.items())), "")
x, dy = torch.randn(2, 4, n, n)
with following(trace):
    found = list(differences(trace, Candidate(kernel, "dX", config, "", True, run), kernel, (x, dy), {{}}))
print(len(found), *found)
"""
HISTORY = "lambda x, dy: launch.backward(dy, x, 20, 1e-6, 'deepseek', 'rows', choice)"
FULL = "lambda p, dy: implicit_backward(dy, p, 4, 'full', 'cg', torch.float32, choice)"


def followed(folder, kernel: str, config: dict, thread: tuple[int, int], n: int, run: str) -> str:
    """How many batches have other formulas than a batch of one, and which."""
    program = FOLLOW.format(config, {"thread": thread}, n, run)
    done = python("-c", program, folder, kernel)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_batch_of_one_under_persistent_blocks(tmp_path):
    """Triton makes a constant of the 1 and drops the loop over blocks, and LLVM fused other products."""
    persistent = {"pid_type": "persistent_interleaved", "num_sm_multiplier": 8}
    config = {"block_sizes": (2,), "num_warps": 1, **persistent}
    assert followed(tmp_path, "sinkhorn_backward_history", config, (8, 8), 32, HISTORY) == "0"


def test_the_second_of_two_matrices_in_a_block(tmp_path):
    """LLVM fused other products of the full system than in the first, until each was rounded."""
    config = {"block_sizes": (2,), "num_warps": 1}
    assert followed(tmp_path, "sinkhorn_implicit_cg", config, (0, 0), 16, FULL) == "0"
