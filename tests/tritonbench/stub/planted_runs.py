"""Run `--op sinkhorn` several times beside planted backends; prints the exit status of each run as JSON.

wrong_backends.py has what any operator can get wrong; these are of what sinkhorn alone has.

python planted_runs.py '[["--mode", "fwd", ...], ...]'
"""

import contextlib
import json
import sys

import torch

from tritonbench_ops.launch import run
from tritonbench_ops.sinkhorn.backends import BACKENDS, Backend, _eager


class WrongGradient(torch.autograd.Function):
    """P as it should be, dX one percent too large."""

    @staticmethod
    def forward(ctx, logits, p):
        return p.clone()

    @staticmethod
    def backward(ctx, dy):
        return None, 1.01 * dy


def gradient(logits, dy, n_iters, form, first):
    return lambda: WrongGradient.apply(logits, _eager(logits, n_iters, form, first))


def iteration(logits, dy, n_iters, form, first):
    return lambda: _eager(logits, n_iters - 1, form, first)


def unwritten(logits, dy, n_iters, form, first):
    """Right the first time; then it leaves P, or dX, as it finds it."""
    memory = {}

    def forward():
        p = _eager(logits, n_iters, form, first)
        return memory.setdefault("p", p)

    def adjoint():
        if "dx" not in memory:
            p = _eager(logits, n_iters, form, first)
            memory["dx"] = torch.autograd.grad(p, logits, dy)[0]
        return memory["dx"]

    forward.adjoint = adjoint
    return forward


def forward_alone(logits, dy, n_iters, form, first):
    def forward():
        with torch.no_grad():
            return _eager(logits, n_iters, form, first)

    return forward


def adjoint_of_its_own(logits, dy, n_iters, form, first):
    """Right, with raw passes as peers have them."""

    def forward():
        with torch.no_grad():
            return _eager(logits, n_iters, form, first)

    def adjoint():
        leaf = logits.detach().requires_grad_()
        return torch.autograd.grad(_eager(leaf, n_iters, form, first), leaf, dy)[0]

    forward.adjoint = adjoint
    return forward


PLANTED = (gradient, iteration, unwritten, forward_alone, adjoint_of_its_own)

if __name__ == "__main__":
    BACKENDS |= {build.__name__: Backend(build, peer=True) for build in PLANTED}
    BACKENDS["approximate"] = Backend(gradient, peer=True, approximate=True)
    BACKENDS["absent"] = Backend(iteration, peer=True, missing="its package is not installed")
    statuses = []
    with contextlib.redirect_stdout(sys.stderr):
        for arguments in json.loads(sys.argv[1]):
            try:
                run(arguments)
                statuses.append(0)
            except SystemExit as end:
                statuses.append(1 if end.code else 0)
                print("exit:", end.code)
            except Exception as error:
                statuses.append(f"{type(error).__name__}: {error}")
    print(json.dumps(statuses))
