"""Every launch of this package: a kept one of an earlier call like it, or one with a config chosen now.

Under `launching_with` a tuner, a compiler or an emulator makes the launches in another way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from helion_sinkhorn.configs import device as devices
from helion_sinkhorn.configs import lookup as lookups
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES, Device, current
from helion_sinkhorn.runtime.choices import choose, refuse, refused, say_default, say_far, say_untuned
from helion_sinkhorn.runtime.dispatch import kept_launch, run
from helion_sinkhorn.runtime.kernel import Built, Choice, Kernel, build
from helion_sinkhorn.runtime.upcoming import upcoming
from helion_sinkhorn.runtime.views import VECTOR_BYTES

MOST_REPEATS = 4096
Tensors = tuple[torch.Tensor | None, ...]
Choices = Mapping[str, Choice]
"""Configs that the caller names in place of stored ones, by kernel or by result."""
NO_CHOICES: Choices = MappingProxyType({})
_kept: dict[Hashable, Callable[..., None] | None] = {}
"""Kept launches, by everything a launch depends on except tensor addresses; None: it cannot be repeated."""


@dataclass(frozen=True)
class Chosen:
    """What a kernel is launched with."""

    choice: Choice
    kernel: Built
    device: Device
    reciprocal: str
    interpret: bool
    named: bool
    """Whether the caller named the choice."""


def index_of(x: torch.Tensor) -> int | None:
    """The GPU a tensor is on."""
    return x.device.index if x.is_cuda else None


def device_at(index: int | None) -> tuple[Device, str, bool]:
    """The device row of cuda:index, its reciprocal, and whether bodies are interpreted.

    None is a CPU, which interprets bodies with an H200's configs.
    """
    if index is None:
        return DEVICES["h200"], "full", True
    device = current(index)
    return device, device.asm, False


@dataclass(frozen=True)
class Launcher:
    """How launches are made."""

    device_at: Callable[[int | None], tuple[Device, str, bool]] = device_at
    """(device row, its reciprocal, whether bodies are interpreted) of cuda:index, or of a CPU for None."""
    run: Callable[..., None] = run
    """(kernel, *arguments): one launch."""


DIRECT = Launcher()
_launcher: ContextVar[Launcher] = ContextVar("launcher", default=DIRECT)


@contextlib.contextmanager
def launching_with(launcher: Launcher) -> Iterator[None]:
    """In this block `launcher` makes all launches, and no kept launch is used."""
    token = _launcher.set(launcher)
    try:
        yield
    finally:
        _launcher.reset(token)


def device_of(x: torch.Tensor) -> Device:
    """The device row by which configs for x are chosen."""
    return _launcher.get().device_at(index_of(x))[0]


def chosen_for(kernel: Kernel, call: Any, batch: int, x: torch.Tensor) -> Choice:
    """The config that a call of a kernel gets on the device of x, if the caller names none."""
    return choose(kernel, call, batch, device_of(x))


def launch(
    kernel: Kernel,
    call: Any,
    tensors: Tensors,
    *values: Any,
    batch: int,
    choice: Choice | None = None,
    views: Callable[[Chosen], Tensors] | None = None,
    layouts: Hashable = None,
) -> None:
    """Launch a kernel on tensors: the launch kept for calls like it, or one with the config chosen for it.

    Args:
        kernel: its row; its body takes `kernel.after_tensors(chosen, call, *values)`.
        call: what its config is chosen for; it follows from the layouts and the values.
        tensors: what it reads and writes; a kept launch is used for tensors that differ only in their
            addresses.
        values: of this call; a launch depends on nothing else but the layouts and the choice.
        batch: the number of matrices or tokens, by which its config is looked up.
        choice: a config that the caller names, in place of a stored one.
        views: the tensors as the program of a config takes them; as they are if None.
        layouts: a shorter key than `layout_key` that decides the layouts of all tensors; `layout_key` takes 1
            us for three tensors.
    """
    key = launch_key(kernel, layouts or layout_key(*tensors), values, choice)
    if launch_kept(key, *tensors):
        return

    def make(chosen: Chosen) -> None:
        taken = tensors if views is None else views(chosen)
        run_and_keep(chosen, taken, kernel.after_tensors(chosen, call, *values), tensors, key)

    launch_chosen(kernel, call, batch, next(t for t in tensors if t is not None), make, choice)


def launch_key(kernel: Kernel, layouts: Hashable, values: tuple[Any, ...], choice: Choice | None) -> Hashable:
    """The key of a kept launch."""
    return kernel.name, layouts, values, choice


def repeated(
    kernel: Kernel,
    call: Any,
    tensors: Sequence[torch.Tensor],
    stacks: Sequence[int],
    *values: Any,
    batch: int,
    choice: Choice | None = None,
) -> Callable[..., None]:
    """A function that launches a kernel once, on the slices of some tensors that its arguments name.

    `launch` makes the first launch.  The others repeat it with other addresses, without making tensors of the
    slices and without look-ups: a loop costs the host a third of one with `launch`.

    Args:
        tensors: what the kernel reads and writes; of a stack, slices along its first axis.
        stacks: the places of the stacks among the tensors; the function takes an index for each.
    """
    addresses = [t.data_ptr() for t in tensors]
    begins = [(k, addresses[k], tensors[k].stride(0) * tensors[k].element_size()) for k in stacks]
    in_vectors = not any([n % VECTOR_BYTES for n in (*addresses, *[step for _, _, step in begins])])
    again: Callable[..., None] | None = None

    def at(*indices: int) -> None:
        nonlocal again
        if again is not None:
            for (k, begin, step), index in zip(begins, indices, strict=True):
                addresses[k] = begin + index * step
            again(*addresses)
            return
        slices = list(tensors)
        for k, index in zip(stacks, indices, strict=True):
            slices[k] = tensors[k][index]
        launch(kernel, call, tuple(slices), *values, batch=batch, choice=choice)
        if in_vectors and _launcher.get() is DIRECT:
            again = _kept.get(launch_key(kernel, layout_key(*slices), values, choice))

    return at


def launch_chosen(
    kernel: Kernel,
    call: Any,
    batch: int,
    x: torch.Tensor,
    make: Callable[[Chosen], None],
    choice: Choice | None = None,
) -> None:
    """Make launches of a kernel on the device of x with the config that is named or chosen; if a stored one
    is refused, again with the default.

    Args:
        make: makes the launches with what is chosen.
    """
    device, how, interpret = _launcher.get().device_at(index_of(x))
    taken = choice or choose(kernel, call, batch, device)
    if not (interpret or taken.stored or choice) and device.key in DEVICES:
        say_default(device, kernel.name, call, kernel.batch(call, batch))
    try:
        built = build(kernel, taken.config, interpret)
        make(Chosen(taken, built, device, how, interpret, choice is not None))
    except Exception as refusal:
        if upcoming.notes:
            raise
        refuse(taken, call, device, refusal)
        launch_chosen(kernel, call, batch, x, make)


def run_once(chosen: Chosen, *arguments: Any) -> None:
    """One launch that is not kept."""
    _launcher.get().run(chosen.kernel, *arguments)


def layout_key(*tensors: torch.Tensor | None) -> Hashable:
    """The part of a kept launch's key that its tensors decide."""
    return tuple([None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors])


def launch_kept(key: Hashable, *tensors: torch.Tensor | None) -> bool:
    """Make the launch that was kept under this key, if there is one and the addresses are aligned."""
    kept = _kept.get(key)
    if kept is None or _launcher.get() is not DIRECT:
        return False
    given = [t for t in tensors if t is not None]
    if not aligned(given):
        return False
    kept(*given)
    return True


def aligned(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all start at a multiple of 16 bytes, so that vector loads work."""
    return not any([t.data_ptr() % VECTOR_BYTES for t in tensors])


def run_and_keep(
    chosen: Chosen, views: Tensors, own: tuple[Any, ...], tensors: Tensors, key: Hashable
) -> None:
    """One launch on views of the tensors, kept for later calls like it if no view is a copy."""
    launcher = _launcher.get()
    launcher.run(chosen.kernel, *views, *own)
    in_place = all(
        v is t or v.data_ptr() == t.data_ptr()  # v and t are both None, or neither
        for v, t in zip(views, tensors, strict=True)
    )
    if launcher is DIRECT and in_place and key not in _kept and aligned(t for t in tensors if t is not None):
        # a process with ever new shapes must not keep ever more
        if len(_kept) >= MOST_REPEATS:
            _kept.clear()
        _kept[key] = kept_launch(chosen.kernel, *views, *own)


_CACHES = (
    devices.current, store.read, store.user_folder, lookups.lookup, lookups.say_version,
    lookups.other_batches, lookups.tuned_keys, choose, say_untuned, say_far,
)  # fmt: skip


def forget() -> None:
    """Forget every look-up, refusal, message and launch."""
    refused.clear()
    _kept.clear()
    for cached in _CACHES:
        cached.cache_clear()
