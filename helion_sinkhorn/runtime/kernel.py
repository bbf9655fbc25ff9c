"""Kernel, a row of an operator's KERNELS: a Helion kernel body, its configs, and how it is built."""

from __future__ import annotations

import functools
import itertools
import os
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Key
from helion_sinkhorn.runtime.space import Grid, Items

if TYPE_CHECKING:
    import helion


@dataclass(frozen=True)
class Choice:
    """The config and the variant of a kernel, and where they came from."""

    kernel: str
    config: Items
    variant: Items
    source: str
    stored: bool = False
    """Whether it is a stored one, and neither the kernel's default nor named by the caller."""
    measured: bool = field(default=False, compare=False)
    """Whether it was timed on this device, and not on another of its family."""

    def __str__(self) -> str:
        values = ", ".join(f"{k}={v}" for k, v in (*self.config, *self.variant))
        return f"{self.kernel} ({values}) from {self.source}"


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel of an operator."""

    name: str
    """The name of its file in tuning_cache/."""
    body: str
    """The function that Helion compiles, "module:function"; its module imports Helion."""
    call: type[Any]
    """What its configs are chosen for: hashable, of JSON values, with `key`, `of(key)` and `dtype`."""
    default: Callable[[Any, Device], tuple[Items, Items]]
    """(config, variant) of a call without a stored config."""
    space: Callable[[Any, Device], tuple[Grid, ...]]
    """What the tuner tries: the product of each grid's values."""
    facts: Callable[..., tuple[Any, ...]]
    """(choice, call, *values of a launch) -> the numbers and the constants that the body takes."""
    products: str = "ieee"
    """How NVIDIA multiplies float32 matrices: "ieee", or "tf32x3", three products of parts, to 2^-21."""
    traits: frozenset[str] = frozenset()
    """For the rules of machine code: the kernel "normalises" matrices by reciprocals, has "gates" beside
    them, "returns float32" whatever the dtype, divides by "norms" or scales, or "splits" numbers.  For the
    code: calls "in place" may have one tensor in the memory of another, and each entry is read before it is
    written; it "overlaps" with the launches before and after it (runtime.overlap); with "optional results"
    it computes each with the same bits whichever others it computes (runtime.adapted).
    """
    similar: Callable[[Any], Any] | None = None
    """A tuned call whose configs a call that is not tuned may use."""
    size: Callable[[Any], int] | None = None
    """The size of a launch where it does not depend on the batch, such as the rows of fn; else None."""
    numbers: int = 0
    """How many of `facts`, from the first, are run-time numbers; generated code is the same for all values.
    """

    def after_tensors(self, *given: Any) -> tuple[Any, ...]:
        """What the body takes after its tensors: the numbers, and one record of the constants."""
        facts = self.facts(*given)
        return *facts[: self.numbers], facts[self.numbers :]

    def keys(self, call: Any) -> list[Key]:
        """The keys by which the config of a call is looked up, the best first."""
        return [call.key] if self.similar is None else [call.key, self.similar(call).key]

    def batch(self, call: Any, batch: int) -> int:
        """The batch by which a config is tuned and looked up, for this many matrices or tokens."""
        return batch if self.size is None else self.size(call)


def default_choice(kernel: Kernel, call: Any, device: Device) -> Choice:
    """The default config of a call."""
    return Choice(kernel.name, *kernel.default(call, device), "the kernel's default")


def candidates(kernel: Kernel, call: Any, device: Device) -> tuple[Choice, ...]:
    """The default and every point of the kernel's space, each once."""

    def points() -> Iterator[tuple[Items, Items]]:
        yield kernel.default(call, device)
        for grid in kernel.space(call, device):
            variants = {k: v for k, v in grid.items() if k != "config"}
            for config, *values in itertools.product(grid["config"], *variants.values()):
                yield config, tuple(zip(variants, values, strict=True))

    distinct: dict[tuple[Items, ...], tuple[Items, Items]] = {}
    for point in points():
        distinct.setdefault(tuple(tuple(sorted(items)) for items in point), point)
    return tuple(Choice(kernel.name, *point, "the kernel's space") for point in distinct.values())


def in_space(kernel: Kernel, choice: Choice, call: Any, device: Device) -> bool:
    """Whether the kernel's space for this call on this device holds the choice, types of values included.

    No other variant may be launched, because many raise no error: a count of -4 just writes nothing.
    """

    def exactly(c: Choice) -> str:
        return repr((sorted(c.config), sorted(c.variant)))

    return exactly(choice) in map(exactly, candidates(kernel, call, device))


@dataclass(frozen=True, eq=False)
class Built:
    """A kernel with a fixed config, so that no call ever tunes."""

    kernel: Kernel
    config: Items
    interpret: bool
    """Whether the body runs eagerly on CPU tensors (Helion's reference mode)."""

    @property
    def name(self) -> str:
        """The name of the body, and of the host function that Helion generates."""
        return self.kernel.body.partition(":")[2]

    @functools.cached_property
    def helion(self) -> helion.Kernel:
        """The Helion kernel; the first one imports Helion, which takes seconds."""
        import helion

        values = {k: list(v) if isinstance(v, tuple) else v for k, v in self.config}
        mode = {"ref_mode": helion.RefMode.EAGER} if self.interpret else {}
        return helion.kernel(
            pkgutil.resolve_name(self.kernel.body),
            config=helion.Config(**values),
            static_shapes=False,
            dot_precision="ieee" if torch.version.hip else self.kernel.products,
            # Helion warns of `x is not None`, which it takes for a tensor operation on the host
            ignore_warnings=[helion.exc.TensorOperationInWrapper],
            **mode,
        )


@functools.cache
def build(kernel: Kernel, config: Items, interpret: bool = False) -> Built:
    """The only Built of these arguments; generated code is found by its identity."""
    return Built(kernel, config, interpret or os.environ.get("HELION_INTERPRET") == "1")
