"""A stand-in for SGLang 0.5.23's plugins/hook_registry.py: hooks around a function."""

from __future__ import annotations

import functools
import pkgutil
from enum import Enum


class HookType(Enum):
    AROUND = "around"


class HookRegistry:
    _hooks: dict = {}  # noqa: RUF012

    @classmethod
    def register(cls, target, hook, hook_type):
        assert hook_type is HookType.AROUND
        cls._hooks[target] = hook

    @classmethod
    def apply_hooks(cls):
        for target, hook in cls._hooks.items():
            module, _, name = target.rpartition(".")
            owner = pkgutil.resolve_name(module)
            theirs = getattr(owner, name)
            setattr(owner, name, functools.wraps(theirs)(functools.partial(hook, theirs)))
