"""Configs around one in Helion's own space, as its pattern search takes them (helion.autotuner)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from helion_sinkhorn.lab.machine.presented import as_called
from helion_sinkhorn.runtime.kernel import Built


def neighbours(kernel: Built, arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Configs with one value another than the kernel's, or two of block sizes and warps.

    kernel, arguments: a kernel with its config, and what it is called with, on meta tensors.
    """
    from helion.autotuner.config_fragment import Category, ListOf
    from helion.autotuner.config_generation import ConfigGeneration
    from helion.exc import InvalidConfig

    with as_called(arguments) as given:
        space = ConfigGeneration(kernel.helion.bind(tuple(given)).config_spec)
    (start,) = kernel.helion.configs
    flat = space.flatten(start)

    def values(place: int) -> list[Any]:
        found = space.flat_spec[place].pattern_neighbors(flat[place])
        if not isinstance(space.flat_spec[place], ListOf):
            return found
        # one for each load or store of the kernel: all of them alike, or there is no end of it
        return [v for v in found if v and all(one == v[0] for one in v)]

    def changes() -> Iterator[dict[int, Any]]:
        places = {place: values(place) for place in range(len(flat))}
        yield from ({place: value} for place, found in places.items() for value in found)
        sizes = [
            place
            for place, fragment in enumerate(space.flat_spec)
            if fragment.category() in (Category.BLOCK_SIZE, Category.NUM_WARPS)
        ]
        for first, second in itertools.combinations(sizes, 2):
            for one, other in itertools.product(places[first], places[second]):
                yield {first: one, second: other}

    own = dict(space.unflatten([*flat]).config)
    found = []
    for change in changes():
        try:
            config = space.unflatten([change.get(place, value) for place, value in enumerate(flat)]).config
        except InvalidConfig:
            continue
        differs = {name: value for name, value in config.items() if value != own.get(name)}
        if differs and differs not in found:
            found.append(differs)
    return [{**start.config, **differs} for differs in found]
