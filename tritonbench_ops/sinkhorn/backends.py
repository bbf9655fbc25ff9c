"""BACKENDS: what `--op sinkhorn` times, one row each, all adapted to the same definition.

A row builds a closure without arguments that returns P.  Autograd differentiates it, or it carries
its gradient as an attribute `adjoint`, a closure that returns dX.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from helion_sinkhorn import Implicit, plan, reference, sinkhorn
from helion_sinkhorn.configs import store
from helion_sinkhorn.ops.sinkhorn.implicit.systems import SOLVERS
from tritonbench_ops import judged
from tritonbench_ops.flags import BASELINE, INDUCTOR

Forward = Callable[[], torch.Tensor]
Build = Callable[..., Forward]
"""(logits (B, n, m), upstream gradient, n_iters, form, first) -> Forward; NotImplementedError with the
reason for a call that the backend does not take."""
EPS = 1e-6
"""eps of the deepseek form, here and in every peer."""


@dataclass(frozen=True)
class Backend:
    """One row of BACKENDS."""

    build: Build
    config: Callable[..., str] = lambda *arguments: ""
    """(logits, n_iters, form, first, mode) -> the configs that are used, in words."""
    peer: bool = False
    """Whether it is of another package: may be absent, or refuse a shape, unless --only names it."""
    on_cpu: bool = True
    approximate: bool = False
    """Has another gradient on purpose: its accuracy is shown, and no gradient of it fails the run."""
    missing: str = ""
    """Why it cannot run here; empty where it can."""


def _eager(logits, n_iters, form, first):
    """The specification, in float32 whatever the dtype of the logits."""
    return reference.sinkhorn(logits.float(), n_iters, form=form, first=first).to(logits.dtype)


def eager(logits, dy, n_iters, form, first) -> Forward:
    return lambda: _eager(logits, n_iters, form, first)


def compiled(mode: str | None) -> Build:
    def build(logits, dy, n_iters, form, first) -> Forward:
        return partial(judged.compiled(_eager, mode), logits, n_iters, form, first)

    return build


def ours(**options: object) -> Build:
    def build(logits, dy, n_iters, form, first) -> Forward:
        return lambda: sinkhorn(logits, n_iters, form=form, first=first, **options)

    return build


def configs(*choices: object, mode: str) -> str:
    """The choices of (forward, backward) that a mode launches."""
    launched = {"fwd": choices[:1], "fwd_no_grad": choices[:1], "bwd": choices[1:], "fwd_bwd": choices}
    return ", ".join(dict.fromkeys(map(str, launched[mode]))).replace(";", ",")


def our_config(logits, n_iters, form, first, mode, **options: object) -> str:
    serves = plan(logits, n_iters, form=form, first=first, **options)
    return configs(serves.forward, serves.backward, mode=mode)


def default_choices(logits, n_iters, form, first) -> tuple[object, object]:
    """The kernels' own configs (forward, backward), whatever is stored for this call."""
    from helion_sinkhorn.lab.operators import KERNELS
    from helion_sinkhorn.ops.sinkhorn import launch
    from helion_sinkhorn.runtime.kernel import Choice
    from helion_sinkhorn.runtime.launch import device_of

    call = launch.call_of(logits, n_iters, EPS, form, first)
    device = device_of(logits)
    names = "sinkhorn_forward", launch.backward_kernel(call)
    return tuple(Choice(name, *KERNELS[name].default(call, device), "its default") for name in names)


class _WithChoices(torch.autograd.Function):
    """The kernels with configs requested by hand."""

    @staticmethod
    def forward(ctx, logits, arguments, choices):
        from helion_sinkhorn.ops.sinkhorn import launch

        ctx.save_for_backward(logits)
        ctx.arguments, ctx.choice = arguments, choices[1]
        return launch.forward(logits, *arguments, logits.dtype, choices[0])

    @staticmethod
    def backward(ctx, dy):
        from helion_sinkhorn.ops.sinkhorn import launch

        return launch.backward(dy, *ctx.saved_tensors, *ctx.arguments, ctx.choice), None, None


def with_defaults(logits, dy, n_iters, form, first) -> Forward:
    choices = default_choices(logits, n_iters, form, first)
    return lambda: _WithChoices.apply(logits, (n_iters, EPS, form, first), choices)


def default_config(logits, n_iters, form, first, mode) -> str:
    return configs(*default_choices(logits, n_iters, form, first), mode=mode)


def adapted(name: str, function) -> Build:
    """A row of benchmarks/sinkhorn/peers.py, for calls of the definition that it computes."""

    def build(logits, dy, n_iters, form, first) -> Forward:
        n, m = logits.shape[-2:]
        if (form, first) != (function.form, function.first):
            raise NotImplementedError(f"computes --form {function.form} --first {function.first}")
        if n != m or (function.sizes and n not in function.sizes):
            raise NotImplementedError(f"takes square matrices of n in {function.sizes or 'any size'}")
        if logits.dtype != torch.float32:
            raise NotImplementedError(f"is adapted in float32, not {logits.dtype}")
        try:
            passes = function.build(logits.detach(), dy, n_iters)
            passes["forward"]()
        except Exception as error:
            raise NotImplementedError(f"{name}: {type(error).__name__}: {error}") from error

        def forward():
            return passes["forward"]()

        if "backward" in passes:
            forward.adjoint = passes["backward"]
        return forward

    return build


def absent(function) -> str:
    """Why a row of benchmarks/sinkhorn/peers.py cannot run here."""
    if function.environment:
        settings = " ".join(f"{k}={v}" for k, v in function.environment.items())
        return f"needs {settings} from the start of the process; `make bench` times it"
    if function.file:
        return f"{function.file} is loaded by file; `make bench` times it"
    return "" if store.installed(function.package) else f"{function.package} is not installed"


def peers() -> dict[str, Backend]:
    """The peers of benchmarks/sinkhorn/peers.py by names that tritonbench's writers keep whole."""
    try:
        from benchmarks.sinkhorn import peers as table
    except ImportError as error:
        why = f"{error}: put the repository first on PYTHONPATH"
        return {"peers": Backend(eager, peer=True, missing=why)}
    return {
        re.sub(r"\W+", "_", name).lower(): Backend(
            adapted(name, table.FUNCTIONS[name]),
            peer=True,
            on_cpu=False,
            missing=absent(table.FUNCTIONS[name]),
        )
        for name in table.PEERS
    }


BACKENDS = {
    BASELINE: Backend(eager),
    INDUCTOR: Backend(compiled(None)),
    "torch_compile_max_autotune": Backend(compiled("max-autotune-no-cudagraphs")),
    "helion_sinkhorn": Backend(ours(), our_config),
    "helion_default": Backend(with_defaults, default_config, on_cpu=False),
}
for solver in SOLVERS:
    options = {"backward": Implicit(solver=solver)}
    name = "helion_implicit_approximate" if solver == "auto" else f"helion_implicit_{solver}_approximate"
    BACKENDS[name] = Backend(ours(**options), partial(our_config, **options), approximate=True)
BACKENDS |= peers()


def has_other_gradient(name: str) -> bool:
    """Whether a backend's gradient is another on purpose."""
    return name in BACKENDS and BACKENDS[name].approximate


def wanted(only: list[str], skip: list[str], device: str) -> list[str]:
    """The backends that have to be there and right: those named, or all that come with the package."""
    if only:
        return list(dict.fromkeys(only))
    return [
        name
        for name, backend in BACKENDS.items()
        if name not in skip and not backend.peer and (backend.on_cpu or device != "cpu")
    ]
