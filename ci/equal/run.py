"""The results of an operator's kernels in the ring, as digests of their bits."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from ci.emulator import launch as emulator
from ci.equal import ring
from ci.equal.table import STEPS, classes_of
from ci.gate.choices import of_kernels, one_result
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.lab.evidence import Choices, Evidence
from helion_sinkhorn.lab.operators import operator_for
from helion_sinkhorn.lab.site.boundary.evidence import PREFIX
from helion_sinkhorn.runtime import dispatch
from helion_sinkhorn.runtime import launch as runtime
from helion_sinkhorn.runtime.kernel import Choice, Kernel, candidates, in_space

MOST = 2
"""The number of configs of a kernel beside the default and the stored ones of a call; each is compiled."""

ONE_NUMBER = "one number"
"""The digest of a result that is the same everywhere, whose bits hide what a kernel computes."""


@dataclass(frozen=True)
class Made:
    """One result with one config."""

    workload: str
    of: str
    classes: tuple[str, ...]
    """Classes of the kernels that were launched for it."""
    digest: str
    launched: tuple[Choice, ...] = field(compare=False)


def bits(t: torch.Tensor) -> str:
    """Sixteen hex digits of a tensor's bits, dtype and shape."""
    t = t.detach().cpu().contiguous()
    checksum = hashlib.sha256(f"{t.dtype} {tuple(t.shape)} ".encode())
    checksum.update(t.view(torch.uint8).numpy().tobytes())
    return checksum.hexdigest()[:16]


def digest(t: torch.Tensor) -> str:
    """The bits of a result, or ONE_NUMBER."""
    one = t.numel() > 1 and bool((t == t.flatten()[0]).all() or t.isnan().all())
    return ONE_NUMBER if one else bits(t)


@contextlib.contextmanager
def recorded() -> Iterator[list[Choice]]:
    """The choices of the launches inside."""
    launched: list[Choice] = []

    def chosen(choice: Choice, *rest: Any) -> runtime.Chosen:
        launched.append(choice)
        return original(choice, *rest)

    original = runtime.Chosen
    with mock.patch.object(runtime, "Chosen", chosen):
        yield launched


def beside(kernel: Kernel, call: Any, device: Device) -> list[Choice]:
    """MOST configs that a call of a kernel may have: stored for other calls, or else points of its space."""
    entries = (e for folder in store.folders() for e in store.read(folder, device.key, kernel.name))
    stored = {(e.config, e.variant): Choice(kernel.name, e.config, e.variant, e.source) for e in entries}
    able = [choice for choice in stored.values() if in_space(kernel, choice, call, device)]
    able = able or list(candidates(kernel, call, device)[1:])
    return able[:: -(-len(able) // MOST) or 1]


def as_called(evidence: Evidence, workload: Any, name: str, device: Device, batch: int) -> Choices:
    """The choices by which a result is launched as a call launches it.

    hc_boundary's results without a choice are the public function's, whose tensors of a CPU take no kernel.
    """
    if not name.startswith(PREFIX):
        return {}
    kernel, call = next((k, c) for k, c in evidence.kernel_calls(workload) if name in evidence.computes[k])
    return {kernel: runtime.choose(evidence.kernels[kernel], call, batch, device)}


def made(workload: Any, wanted: frozenset[str], device: str, used: bool) -> Iterator[Made]:
    """A workload's results with the configs that calls get, then with every config of each kernel.

    Args:
        wanted: results, all where there is none.
        device: where the inputs are.
        used: only the configs that calls get.

    Raises:
        ValueError: a result was computed without a kernel.
    """
    evidence = operator_for(workload)
    inputs = tuple(t.to(device) for t in evidence.inputs(workload, STEPS))
    names = [n for n in evidence.results(workload) if not wanted or n in wanted]
    on, batch = runtime.device_of(inputs[0]), evidence.batch(workload, len(inputs[0]))
    runs: list[tuple[str, Callable[..., torch.Tensor]]] = [
        (n, functools.partial(one_result, evidence, workload, as_called(evidence, workload, n, on, batch), n))
        for n in names
    ]
    if not used:
        # kernels of other operators are compared there
        own = (c for c in of_kernels(evidence, workload, on, batch) if c.kernel in evidence.kernels)
        runs += [(c.of, c.run) for c in own if c.of in names]
        runs += [
            (name, functools.partial(one_result, evidence, workload, {kernel: choice}, name))
            for kernel, call in evidence.kernel_calls(workload)
            for choice in beside(evidence.kernels[kernel], call, on)
            for name in evidence.computes.get(kernel, ())
            if name in names
        ]
    for name, run in runs:
        with recorded() as launched:
            result = run(*inputs)
        if not launched:
            raise ValueError(f"no kernel was launched for {name}: its bits come from PyTorch on the CPU")
        labels = sorted({label for choice in launched for label in classes_of(workload, choice)})
        yield Made(workload.name, name, tuple(labels), digest(result), tuple(launched))


def of_the_mode(cache: Path) -> Path:
    """The folder of what is compiled in the ring, which Triton takes from now on."""
    folder = cache / f"equal-{ring.digest()}"
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    return folder


session = functools.cache(emulator.Session)
"""One a process: parts of an operator come from the same launches."""


@contextlib.contextmanager
def emulated(key: str, cache: Path) -> Iterator[str]:
    """Launches are emulated in the ring; yields where inputs are to be."""
    cache = of_the_mode(cache)
    device = emulator.present(key, cache)
    torch.use_deterministic_algorithms(True)  # memory that is allocated holds NaN until it is written
    with ring.in_ring(), emulator.emulating(session(device, cache)):
        yield "cpu"


@contextlib.contextmanager
def on_gpu(cache: Path) -> Iterator[str]:
    """Launches are made by the GPU at hand, in the ring, none of them one that was kept."""
    of_the_mode(cache)
    with ring.in_ring(), runtime.launching_with(runtime.Launcher(run=dispatch.run)):
        yield "cuda"
