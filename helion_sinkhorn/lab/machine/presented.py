"""Presents a device that is not in this machine to torch, Triton and Helion."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.lab.machine.binary import MAX_THREADS
from helion_sinkhorn.lab.machine.listing import nvidia_facts
from helion_sinkhorn.runtime import overlap
from helion_sinkhorn.runtime.generated import PINNED


def read_cubin(compiled: Any) -> dict[str, Any]:
    """The metadata of an NVIDIA binary."""
    import triton

    def tool(name: str, *options: str) -> str:
        command = [getattr(triton.knobs.nvidia, name).path, *options, file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = tool("cuobjdump", "--dump-resource-usage")
        return nvidia_facts(compiled.asm["ptx"], tool("nvdisasm", "--print-code"), usage)


def present_device(device: Device) -> None:
    """Let torch.cuda and Triton describe `device`.  Helion, which is not imported yet, asks only them."""
    nvidia = device.vendor == "nvidia"
    digits = device.arch[2:] if nvidia else device.arch[3:-1]
    major, minor = int(digits[:-1]), int(digits[-1])
    properties = types.SimpleNamespace(
        name=device.names[0],
        major=major,
        minor=minor,
        multi_processor_count=device.compute_units,
        warp_size=device.warp_size,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=MAX_THREADS,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=device.shared_limit,
        total_memory=device.memory_gb << 30,
        L2_cache_size=50 << 20,
        gcnArchName=device.arch,
    )
    torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    torch.cuda.get_device_name = lambda device=None: properties.name
    overlap.driver = lambda: overlap.DRIVER
    # this module keeps the functions that it found when it was imported
    if interfaces := sys.modules.get("torch._dynamo.device_interface"):
        for name in ("current_device", "device_count", "get_device_properties"):
            setattr(interfaces.CudaInterface, name, staticmethod(getattr(torch.cuda, name)))
    torch.version.cuda, torch.version.hip = ("13.0", None) if nvidia else (None, "7.0")

    import triton
    from torch._subclasses import fake_tensor
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    # torch 2.11 allocates on the device when it makes the first fake tensor
    fake_tensor.init_gpu_context = lambda device: None
    target = GPUTarget("cuda", int(digits), 32) if nvidia else GPUTarget("hip", device.arch, device.warp_size)

    class Driver(DriverBase):
        @classmethod
        def is_active(cls):
            return True

        def map_python_to_cpp_type(self, ty):
            return ty

        def get_current_target(self):
            return target

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

        def get_active_torch_device(self):
            return torch.device("cuda", 0)

        def get_benchmarker(self):
            raise RuntimeError("no device to benchmark on")

    triton.runtime.driver.set_active(Driver())


@contextlib.contextmanager
def as_called(arguments: Sequence[Any]) -> Iterator[list[Any]]:
    """The arguments of a launch as fake tensors on the presented device, for which Helion generates the code
    that it generates for any real call.  Views of one tensor share its memory: Helion puts a barrier between
    a store to one and a load from another.
    """
    from helion._compiler import compile_environment
    from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    memory: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    first_views: dict[tuple[Any, int], torch.Tensor] = {}

    def on_device(x):
        of = x.untyped_storage()
        key = of._cdata, x.dtype
        if key not in memory:
            memory[key] = torch.empty(of.nbytes() // x.element_size(), dtype=x.dtype, device="cuda:0")
        return memory[key].as_strided(x.shape, x.stride(), x.storage_offset())

    def fakified(self, fake_mode, x, *, shape_env, source, symbolic_context):
        sizes, strides = [DimDynamic.DYNAMIC] * x.dim(), [DimDynamic.INFER_STRIDE] * x.dim()
        any_size = symbolic_context or StatelessSymbolicContext(sizes, strides)
        sizes, strides, _ = shape_env.create_symbolic_sizes_strides_storage_offset(
            x, source, symbolic_context=any_size
        )
        # a program has a shape_env of its own
        key = shape_env, x.untyped_storage()._cdata
        if key in first_views:
            with shape_env.suppress_guards():
                return first_views[key].as_strided(sizes, strides)
        first_views[key] = torch.empty_strided(sizes, strides, dtype=x.dtype, device=x.device)
        return first_views[key]

    # Helion takes the sizes of fake tensors for constants: it would leave out masks that every real call
    # has, and a real call would compile again
    as_real = (
        mock.patch.object(compile_environment, "FakeTensor", ()),
        mock.patch.object(FakeTensorConverter, "from_real_tensor", fakified),
    )
    with FakeTensorMode(), as_real[0], as_real[1]:
        yield [on_device(a) if isinstance(a, torch.Tensor) else a for a in arguments]


def specialised(arguments: Sequence[Any], options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """What Triton compiles a launch for: arguments, with fake tensors at 16-byte boundaries, and options."""
    from torch._subclasses.fake_tensor import FakeTensor
    from triton.runtime.jit import MockTensor

    class Placed(MockTensor):
        """A tensor of this type at this address."""

        def __init__(self, t: torch.Tensor) -> None:
            super().__init__(t.dtype, list(t.shape))
            self.address = 0 if isinstance(t, FakeTensor) else t.data_ptr()

        def data_ptr(self) -> int:
            return self.address

    given = [Placed(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    return given, PINNED | {k: v for k, v in options.items() if not k.startswith("_")}
