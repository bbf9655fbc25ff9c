"""Helion's launcher on this machine: a kernel compiled for an NVIDIA device, followed with formulas.

Whatever the package launches inside `following` runs so, on CPU tensors: each entry of a result is then a
formula of the entries of the tensors that were named.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from ci.emulator.launch import NUMBERS, host_of
from ci.sass.formulas import Formulas
from ci.sass.machine import Block
from ci.sass.memory import Memory
from ci.sass.text import Program, Unknown, parse
from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.machine import presented

ARGUMENTS = {90: 0x210, 100: 0x380}
"""Where the arguments of a kernel begin in the constant bank, by compute capability."""


@dataclass
class Named:
    """Memory whose content has names: the entries of each row along the first axis are alike."""

    name: str
    begin: int
    end: int
    row: int
    """Bytes from one row to the next; 0 where the rows are not alike."""


@dataclass
class Trace:
    """What launches have computed."""

    device: Device
    cache: Path
    formulas: Formulas = field(default_factory=Formulas)
    named: list[Named] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)
    """Named tensors, so that their memory is no other's meanwhile."""
    programs: dict[bytes, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.memory = Memory(self.formulas, self.before)

    def name(self, name: str, t: torch.Tensor, by_row: bool) -> torch.Tensor:
        """Name a contiguous tensor's entries; by_row: an entry by its place within its row alone."""
        row = t.stride(0) * t.element_size() if by_row else 0
        begin = t.data_ptr()
        self.named.append(Named(name, begin, begin + t.numel() * t.element_size(), row))
        self.named.sort(key=lambda n: n.begin)
        self.kept.append(t)
        for a in range(begin, begin + t.numel() * t.element_size(), 2):
            self.memory.written.pop(a, None)
        return t

    def before(self, address: int) -> int:
        """The half at an address that no launch has written."""
        k = bisect.bisect_right([n.begin for n in self.named], address) - 1
        if k < 0 or address >= self.named[k].end:
            raise Unknown(f"address {address:#x} is in no tensor that was named")
        here = self.named[k]
        offset = address - here.begin
        offset = offset % here.row if here.row else offset
        entry = self.formulas.of("entry", here.name, offset // 4 * 4)
        return self.formulas.of("half", offset // 2 % 2, entry)

    def of(self, t: torch.Tensor) -> np.ndarray:
        """The formulas of a tensor's entries."""
        size = t.element_size()
        offsets = sum(
            torch.arange(n).view(-1, *(1,) * (t.dim() - 1 - k)) * s * size
            for k, (n, s) in enumerate(zip(t.shape, t.stride(), strict=True))
        )
        memory, base = self.memory, t.data_ptr()

        def word(a: int) -> int:
            return (memory.half_at if size == 2 else memory.word_at)(base + a)

        return np.array([word(a) for a in offsets.flatten().tolist()], np.int64).reshape(t.shape)


@functools.cache
def present(key: str, cache: Path) -> Device:
    """Make this process compile for an NVIDIA device; before Helion is imported."""
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "triton"))
    presented.present_device(DEVICES[key])
    return DEVICES[key]


@contextlib.contextmanager
def following(trace: Trace) -> Iterator[Trace]:
    """Launches of this package are followed; CPU tensors count as the device's."""
    from helion_sinkhorn.runtime import serving

    found = trace.device, trace.device.asm, False
    with (
        mock.patch.object(serving, "run", functools.partial(run, trace)),
        mock.patch.object(serving, "device_at", mock.Mock(return_value=found)),
    ):
        yield trace


def run(trace: Trace, kernel: Any, *arguments: Any) -> None:
    """runtime.dispatch.run: through the host function that Helion generates for the device."""
    from helion_sinkhorn.runtime import dispatch

    host = host_of(kernel, dispatch.signature(arguments), trace.cache, arguments)
    host(*arguments, _launcher=functools.partial(launch, trace))


def launch(trace: Trace, function: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """One launch: compile for these arguments, and follow every block."""
    given, options = presented.specialised(arguments, options)
    compiled = function.run(*given, grid=grid, warmup=True, **options)
    named = dict(zip(function.arg_names, arguments, strict=True))
    bank = bytearray(ARGUMENTS[compiled.metadata.target.arch])
    for name, kind in compiled.src.signature.items():
        if kind == "constexpr":
            continue
        value = named[name]
        content = (
            struct.pack("<Q", 0 if value is None else value.data_ptr()) if kind.startswith("*")
            else struct.pack(NUMBERS[kind], value)
        )  # fmt: skip
        bank += bytes(-len(bank) % len(content)) + content
    bank += bytes(64)
    cubin = compiled.asm["cubin"]
    if cubin not in trace.programs:
        trace.programs[cubin] = parse(listing(cubin))
    places = itertools.product(*(range(g) for g in reversed((*grid, 1, 1)[:3])))
    for place in places:
        threads = compiled.metadata.num_warps * 32
        Block(trace.programs[cubin], bytes(bank), place[::-1], threads, trace.memory, trace.formulas).run()


def listing(cubin: bytes) -> str:
    """nvdisasm's text of a binary."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.nvdisasm.path, "--print-code", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
