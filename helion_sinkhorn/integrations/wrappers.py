"""Forwards that are wrapped on a module's instance, as by accelerate, while the module's class changes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

import torch


def is_same(value: object, method: MethodType) -> bool:
    return isinstance(value, MethodType) and value == method


def held(wrapper: Any) -> Iterator[Any]:
    """The objects that a wrapper calls, closes over or has as attributes, recursively except into modules."""
    queue, seen = [wrapper], set()
    while queue:
        value = queue.pop()
        yield value
        if id(value) in seen or isinstance(value, (torch.nn.Module, type)):
            continue
        seen.add(id(value))
        if isinstance(value, functools.partial):
            queue += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, MethodType):
            queue += [value.__self__, value.__func__]
        elif isinstance(value, FunctionType):
            queue += [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
            queue += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        elif isinstance(value, (list, tuple)):
            queue += value
        elif isinstance(value, dict) or hasattr(value, "__dict__"):
            queue += (value if isinstance(value, dict) else vars(value)).values()


def written(wrapper: Any) -> str:
    """The place of a wrapper's code, for a message."""
    function = wrapper
    while isinstance(function, functools.partial):
        function = function.func
    return (
        f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    )


def turn(module: torch.nn.Module, kind: type[torch.nn.Module]) -> None:
    """Change a module's class, and with it the forward that its attributes and wrappers hold."""
    own, other = MethodType(type(module).forward, module), MethodType(kind.forward, module)
    module.__class__ = kind
    for name, value in list(vars(module).items()):
        if is_same(value, own):
            vars(module)[name] = other
        # for inspect.signature
        while hasattr(value, "__wrapped__"):
            if is_same(value.__wrapped__, own):
                value.__wrapped__ = other
            value = value.__wrapped__
