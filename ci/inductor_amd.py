"""Inductor on AMD, emulated: torch.compile's Triton kernels for the naive loop, executed by ci/emulator.

Inductor generates them here, on a CPU, for the presented device: its own fusion, blocks and division for AMD
(`generated`).  What cannot be taken along is autotuning: of several configs the first is run.
`ci/emulate.py --inductor` judges them on the inputs of this package's kernels, by the same gate.

On a GPU, `python -m ci.inductor_amd FILE [--workloads ...]` keeps what Inductor generates there, for another
torch or another vendor; `ci/emulate.py --inductor FILE` runs that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock


def make_parser(usual=None) -> argparse.ArgumentParser:
    """Without the names and defaults that an import of torch brings, of flags and numbers alone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="written: Inductor's code of this GPU")
    parser.add_argument("--workloads", nargs="+", default=usual, metavar="NAME")
    parser.add_argument(
        "--steps", type=int, default=1 << 14, help="as ci/emulate.py's, which must be the same"
    )
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # what follows imports torch, which takes seconds; --help has names from there
    make_parser().parse_args()

import torch

from ci import accuracy
from ci.emulator import launch
from ci.operators import operator_of
from helion_sinkhorn import reference
from helion_sinkhorn.workloads import WORKLOADS

WORKLOADS_COMPARED = (*accuracy.INDUCTOR, "sharp_4", "identity_like_4")
"""The workloads that are compared on every device, and peaked ones."""
Sources = dict[str, str]
"""Inductor's output code, "forward" and "backward"."""


def naive(workload) -> Callable[[torch.Tensor], torch.Tensor]:
    """What torch.compile is given: accuracy.py's baseline."""
    return lambda t: reference.sinkhorn(t.float(), **workload.options).to(workload.dtype)


# ------------------------------------------------------------------------------------------- the sources


def captured(workload, x: torch.Tensor, dy: torch.Tensor) -> Sources:
    """On a GPU: what torch.compile runs there."""
    from torch._inductor.utils import run_and_get_code

    leaf = x.cuda().requires_grad_()
    compiled = torch.compile(naive(workload), dynamic=False)

    def both() -> None:
        compiled(leaf).backward(dy.cuda())

    _, (forward, backward) = run_and_get_code(both)
    return {"forward": forward, "backward": backward}


def generated(workload, x: torch.Tensor, dy: torch.Tensor) -> Sources:
    """Here: the graphs of a CPU run, lowered for the presented device."""
    from functorch.compile import make_boxed_func
    from torch._functorch import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    graphs: list[tuple[Any, list[torch.Tensor]]] = []

    def kept(graph, examples):
        graphs.append((graph, examples))
        return make_boxed_func(graph.forward)

    leaf = x.clone().requires_grad_()
    with mock.patch.object(aot_autograd, "preserve_rng_state", contextlib.nullcontext):
        traced = aot_autograd.aot_function(
            naive(workload), fw_compiler=kept, bw_compiler=kept,
            partition_fn=min_cut_rematerialization_partition, decompositions=select_decomp_table(),
        )  # fmt: skip
        traced(leaf).backward(dy)
    (forward, backward) = (lowered(*pair, k == 1) for k, pair in enumerate(graphs))
    return {"forward": forward, "backward": backward}


def lowered(graph, examples: list[torch.Tensor], is_backward: bool) -> str:
    """Inductor's output code of a graph for cuda:0."""
    from torch._dynamo import device_interface
    from torch._inductor import scheduler
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    mode, interface = FakeTensorMode(), device_interface.CudaInterface
    properties = staticmethod(lambda device=None: torch.cuda.get_device_properties())
    with mode:
        examples = [
            torch.empty_strided(e.shape, e.stride(), dtype=e.dtype, device="cuda:0") for e in examples
        ]
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda:0")}
    FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*examples)
    with (
        mock.patch.object(interface, "get_device_properties", properties),
        mock.patch.object(interface.Worker, "get_device_properties", properties),
        mock.patch.object(interface, "current_device", staticmethod(lambda: 0)),
        mock.patch.object(scheduler, "has_triton", mock.Mock(return_value=True)),
        V.set_fake_mode(mode),
    ):
        view_to_reshape(graph)
        post_grad_passes(graph, is_inference=False)
        lowering = GraphLowering(
            graph, example_inputs=examples, shape_env=mode.shape_env, is_backward=is_backward
        )
        with V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()):
            lowering.run(*examples)
            code, *_ = lowering.codegen()
    return getattr(code, "value", code)


# ------------------------------------------------------------------------------------------ execution


class Kernels:
    """Stands for Inductor's AsyncCompile: kernels that run emulated."""

    def __init__(self, session: launch.Session):
        self.session = session

    def triton(self, name: str, source: str, device_str: str = "cuda") -> SimpleNamespace:
        from torch._inductor.codecache import PyCodeCache
        from torch._inductor.runtime import triton_helpers

        with mock.patch.object(triton_helpers, "set_driver_to_gpu", mock.Mock()):
            tuner = getattr(PyCodeCache.load(source), name)
        return SimpleNamespace(run=lambda *arguments, stream=None: self.run(tuner, arguments))

    def run(self, tuner, arguments: tuple[Any, ...]) -> None:
        """The first of a kernel's configs."""
        from torch._inductor.runtime.triton_heuristics import GridExpr

        config = tuner.configs[0]
        names = tuner.fn.arg_names
        meta = {**dict(zip(names, arguments, strict=False)), **config.kwargs}
        grid = GridExpr.from_meta(tuner.inductor_meta, config).eval_slow(meta)
        full = [meta[name] for name in names]
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        launch.launch(self.session, tuner.fn, grid, *full, **options)

    def wait(self, scope: dict[str, Any]) -> None:
        """All are ready."""


@contextlib.contextmanager
def no_device() -> Iterator[None]:
    with mock.patch.multiple(
        torch.cuda, _DeviceGuard=lambda index: contextlib.nullcontext(), set_device=lambda index: None
    ):
        yield


def called(code: str, session: launch.Session, *arguments: torch.Tensor) -> tuple[Any, ...]:
    """What Inductor's output code returns for CPU tensors, its kernels emulated."""
    stream = "from torch._C import _cuda_getCurrentRawStream as get_raw_stream"
    code = code.replace(stream, "get_raw_stream = lambda index: None")
    code = code.replace("async_compile = AsyncCompile()", "async_compile = emulated_kernels")
    scope: dict[str, Any] = {"__name__": "inductor_output", "emulated_kernels": Kernels(session)}
    exec(compile(code, "inductor output", "exec"), scope)
    scope["empty_strided_cuda"] = lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)
    with no_device():
        return scope["call"](list(arguments))


def results(
    sources: Sources, session: launch.Session, x: torch.Tensor, dy: torch.Tensor
) -> dict[str, torch.Tensor]:
    """{"P": ..., "dX": ...}: what the forward code saves goes to the backward code, the cotangent last."""
    p, *saved = called(sources["forward"], session, x)
    return {"P": p, "dX": called(sources["backward"], session, *saved, dy)[0]}


def statistics(
    workload, session: launch.Session, inputs: tuple[torch.Tensor, ...], truth: dict, sources: Sources | None
) -> dict[str, dict[str, object]]:
    """What accuracy.inductor says of a device, of kernels that run emulated."""
    found = results(sources or generated(workload, *inputs), session, *inputs)
    return {of: accuracy.statistics(truth[of], result) for of, result in found.items()}


def capture(names: list[str], path: Path, steps: int) -> None:
    """Keep what Inductor generates on this GPU."""
    sources = {}
    for name in names:
        workload = WORKLOADS[name]
        sources[name] = captured(workload, *operator_of(workload).inputs(workload, steps))
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"versions": accuracy.versions(), "device": torch.cuda.get_device_name(0), "steps": steps}
    path.write_text(json.dumps({**kept, "sources": sources}, indent=1) + "\n")


def main() -> int:
    options = make_parser(WORKLOADS_COMPARED).parse_args()
    capture(options.workloads, options.file, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
