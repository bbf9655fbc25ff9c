"""Helion's launcher on this machine: a kernel compiled for an AMD device, executed by the interpreter.

`present` makes this process compile for a device, once.  Then whatever the package launches, and so every
operator, config and truth of ci/, runs emulated on CPU tensors inside `emulating`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from ci.emulator import machine, text
from ci.emulator.machine import Loaded, Model
from ci.emulator.memory import Arena
from helion_sinkhorn.configs.atomic import replace
from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.lab.machine import presented

NUMBERS = {
    "i1": "<?",
    "i8": "<b",
    "i16": "<h",
    "i32": "<i",
    "i64": "<q",
    "u32": "<I",
    "u64": "<Q",
    "fp32": "<f",
    "fp64": "<d",
}
"""Triton's types of arguments that are no pointers."""
SCRATCH = "scratch of Triton"


@dataclass
class Session:
    """How launches are run, and a record of them."""

    device: Device
    cache: Path
    model: Model = field(default_factory=Model)
    edit: Callable[[str], str] = str
    """Applied to each listing before it is run: ci/mutants.py plants faults."""
    programs: dict[str, Loaded] = field(default_factory=dict)
    """By a digest of their text."""
    written: dict[bytes, list[np.ndarray | None]] = field(default_factory=dict)
    """What a launch wrote, by a digest of all that decides it: several results of an operator come from the
    same launches."""
    compile_seconds: float = 0.0
    launches: int = 0


@functools.cache
def present(key: str, cache: Path) -> Device:
    """Make this process compile for an AMD device, keeping what is compiled; before Helion is imported.

    Raises:
        ValueError: the device is not one that is emulated.
    """
    device = DEVICES.get(key)
    if device is None or device.vendor != "amd":
        amd = ", ".join(k for k, d in DEVICES.items() if d.vendor == "amd")
        raise ValueError(f"{key!r} is not emulated; the devices that are: {amd}")
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "triton"))
    presented.present_device(device)
    return device


@contextlib.contextmanager
def emulating(session: Session) -> Iterator[Session]:
    """Launches of this package run emulated; CPU tensors count as the device's."""
    from helion_sinkhorn.runtime.launch import Launcher, launching_with

    device = session.device
    emulated = Launcher(lambda index: (device, device.asm, False), functools.partial(run, session))
    with launching_with(emulated):
        yield session


@contextlib.contextmanager
def as_on_device() -> Iterator[None]:
    """Tensors say that they are on a GPU: gates then list kernels."""
    with mock.patch.object(torch.Tensor, "is_cuda", property(lambda t: True)):
        yield


def run(session: Session, kernel: Any, *arguments: Any) -> None:
    """runtime.dispatch.run: through the host function that Helion generates for the device."""
    from helion_sinkhorn.runtime import dispatch

    begin = time.perf_counter()
    host = host_of(kernel, dispatch.signature(arguments), session.cache, arguments)
    session.compile_seconds += time.perf_counter() - begin
    host(*arguments, _launcher=functools.partial(launch, session))


_hosts: dict[Any, Callable[..., None]] = {}


def host_of(kernel: Any, signature: tuple, cache: Path, arguments: tuple[Any, ...]) -> Callable[..., None]:
    """Helion's host function for a launch; a text that is new is kept by all that decides it."""
    from helion_sinkhorn.runtime import program_cache
    from helion_sinkhorn.runtime.generated import generated
    from helion_sinkhorn.runtime.standalone import load

    key = kernel, signature
    if key not in _hosts:
        device = torch.device("cuda", 0)
        path = cache / "helion" / program_cache.file_name(kernel.name, (kernel.config, signature), device)
        if path.exists():
            _hosts[key] = load(path.read_text(), kernel.name, str(path))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with presented.as_called(arguments) as given:
                _hosts[key] = generated(kernel, given, functools.partial(replace, path))
    return _hosts[key]


def launch(session: Session, function: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """One launch: compile for these arguments, run, and copy back what the kernel wrote."""
    begin = time.perf_counter()
    given, options = presented.specialised(arguments, options)
    compiled = function.run(*given, grid=grid, warmup=True, **options)
    text_digest, loaded = loaded_of(session, compiled.asm["amdgcn"])
    session.compile_seconds += time.perf_counter() - begin
    if any(g != 1 for g in grid[1:]):
        raise ValueError(f"a grid of {grid} is not known to ci/emulator: kernels here have one axis")
    named = dict(zip(function.arg_names, arguments, strict=True))
    kinds = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
    values = [(kind, named[name]) for name, kind in kinds.items()]
    tensors = [v for kind, v in values if kind.startswith("*") and v is not None]
    memory = regions_of(tensors)
    elements = {
        name: min(t.element_size() for t in tensors if place_in(memory, t).region == name) for name in memory
    }
    values = [(kind, place_in(memory, v) if isinstance(v, torch.Tensor) else v) for kind, v in values]
    before = {name: region.numpy().copy() for name, region in memory.items()}
    key = decided(session.model, text_digest, grid[0], values, before)
    if key not in session.written:
        session.written[key] = wrote(
            session.model, loaded, compiled.metadata, grid[0], values, before, elements
        )
        session.launches += 1
    for (name, region), content in zip(memory.items(), session.written[key], strict=True):
        if content is not None:
            changed = content != before[name]
            region.numpy()[changed] = content[changed]


def loaded_of(session: Session, listing: str) -> tuple[str, Loaded]:
    """A program made ready, once for each text, under the text's digest."""
    listing = session.edit(listing)
    key = hashlib.sha256(listing.encode()).hexdigest()
    if key not in session.programs:
        session.programs[key] = machine.load(text.parse(listing))
    return key, session.programs[key]


def decided(
    model: Model, program: str, grid: int, values: list[tuple[str, Any]], regions: dict[str, np.ndarray]
) -> bytes:
    """A digest of all that decides what a launch writes."""
    order = list(regions)
    scalars = [(order.index(v.region), v.offset) if isinstance(v, Place) else v for _, v in values]
    checksum = hashlib.sha256(repr((model, program, grid, scalars)).encode())
    for content in regions.values():
        checksum.update(f"{content.size} ".encode())
        checksum.update(content)
    return checksum.digest()


def wrote(
    model: Model,
    loaded: Loaded,
    metadata: Any,
    grid: int,
    values: list[tuple[str, Any]],
    regions: dict[str, np.ndarray],
    elements: dict[str, int],
) -> list[np.ndarray | None]:
    """Run a compiled kernel: each region as it is then, None where that is as it was."""
    # Triton's sanitizers multiply matrices in it
    own = {SCRATCH: np.zeros(grid * n, np.uint8)} if (n := metadata.profile_scratch_size) else {}
    arena = machine.launched(
        loaded, grid, metadata.num_warps, metadata.shared, regions | own, model,
        functools.partial(segment, loaded, values, grid), elements,
    )  # fmt: skip
    after = ((arena.content(name), before) for name, before in regions.items())
    return [None if np.array_equal(content, before) else content.copy() for content, before in after]


def segment(loaded: Loaded, values: list[tuple[str, Any]], grid: int, arena: Arena, empty: bytes) -> bytes:
    """The argument segment: the kernel's own arguments, null, the scratch memory if it has one, the numbers
    of workgroups, and zeros.
    """
    filled = bytearray(empty)
    places = loaded.program.arguments
    if len(places) < len(values):
        raise ValueError(f"{loaded.program.name} takes {len(places)} arguments, {len(values)} are given")
    for place, (kind, value) in zip(places, values, strict=False):
        if kind.startswith("*"):
            address = 0 if value is None else arena.address(value.region) + value.offset
            content = struct.pack("<Q", address)
        else:
            content = struct.pack(NUMBERS[kind], value)
        if len(content) != place.size:
            raise ValueError(
                f"argument of type {kind} has {len(content)} bytes, the program takes {place.size}"
            )
        filled[place.offset : place.offset + place.size] = content
    if SCRATCH in arena.places:
        place = places[len(values) + 1]
        filled[place.offset : place.offset + place.size] = struct.pack("<Q", arena.address(SCRATCH))
    for place in places:
        if place.kind.startswith("hidden_block_count"):
            count = grid if place.kind.endswith("_x") else 1
            filled[place.offset : place.offset + place.size] = struct.pack("<I", count)
    return bytes(filled)


def span(t: torch.Tensor) -> int:
    """Elements from the first of a view to its last."""
    return (
        1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        if t.numel()
        else 0
    )


def ends(t: torch.Tensor) -> tuple[int, int]:
    """The addresses of a view's first byte, and of the byte after its last."""
    return t.data_ptr(), t.data_ptr() + span(t) * t.element_size()


class Place(NamedTuple):
    """Where an argument begins."""

    region: str
    offset: int


def regions_of(tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The bytes that views cover, and no others of their storages; views that overlap share a region."""
    spans = sorted((*ends(t), k) for k, t in enumerate(tensors))
    joined: list[list[int]] = []
    for begin, end, k in spans:
        if joined and (begin < joined[-1][1] or [begin, end] == joined[-1][:2]):
            joined[-1][1:] = max(end, joined[-1][1]), min(k, joined[-1][2])
        else:
            joined.append([begin, end, k])
    regions = {}
    # in the order of the arguments, which addresses do not decide
    for begin, end, k in sorted(joined, key=lambda region: region[2]):
        storage = tensors[k].untyped_storage()
        place = (begin - storage.data_ptr()) if end > begin else 0
        whole = torch.empty(0, dtype=torch.uint8).set_(storage, place, (end - begin,))
        regions[f"{begin:#x}"] = whole
    return regions


def place_in(regions: dict[str, torch.Tensor], t: torch.Tensor) -> Place:
    """Where a tensor lies in `regions_of` it and others."""
    begin, end = ends(t)
    for name, region in regions.items():
        first = int(name, 16)
        if first <= begin and end <= first + region.numel():
            return Place(name, begin - first)
    raise ValueError(f"no region has the {end - begin} bytes at {begin:#x}")
