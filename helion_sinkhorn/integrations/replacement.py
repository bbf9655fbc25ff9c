"""Turn modules of another package's model into modules of this package, in place, and back again."""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, NoReturn

import torch

from helion_sinkhorn.runtime.checks import type_of

ADDED = ("hidden_size", "initializer_range", "options", "merged", "implementation")
"""Attributes of this package's modules that the modules of other packages lack."""


class Known(NamedTuple):
    """A class of another package whose methods are replaced."""

    theirs: type[torch.nn.Module]
    ours: type[torch.nn.Module] | None
    """The class that replaces it; None for a norm, which is computed where it was called."""
    digests: Mapping[str, tuple[str, ...]]
    """`digest` of each replaced method, in the tested versions."""
    like: Callable[..., torch.nn.Module] | None = None
    """Makes, from a module of that class and options, a module of this package on "meta" that computes the
    same; None for a layer, which needs no more."""


class Package(NamedTuple):
    """What is replaced in the models of a package."""

    name: str
    installed: str
    tested: tuple[str, ...]
    models: str
    """The names of the models, for messages."""
    connections: tuple[Known, ...]
    heads: tuple[Known, ...]
    layers: tuple[Known, ...]
    norms: tuple[Known, ...] = ()
    functions: tuple[tuple[ModuleType, str, tuple[str, ...]], ...] = ()
    """Functions that those methods call: the module, the name, and the digests of each."""
    others: Mapping[str, str] = {}
    """By the name of a module, why a model that contains it is refused."""

    @property
    def known(self) -> dict[type[torch.nn.Module], Known]:
        return {known.theirs: known for column in self[4:8] for known in column}

    @property
    def back(self) -> dict[type[torch.nn.Module], type[torch.nn.Module]]:
        """For each class of this package, the class that it replaced."""
        return {known.ours: theirs for theirs, known in self.known.items() if known.ours}


class Patched(NamedTuple):
    """How many modules of a model were changed."""

    connections: int
    heads: int
    layers: int


def replace(package: Package, model: torch.nn.Module, layers: bool, **options: Any) -> Patched:
    """Turn the modules of a model into modules of this package.

    Raises ValueError, and changes nothing, if one of them cannot be turned.
    """
    _check_model(model)
    for name, module in model.named_modules():
        if isinstance(module, tuple(package.back)):
            raise ValueError(f"{_called(name, module)} is patched already; call unpatch first")
    changed = kinds(package.connections + package.heads + (package.layers if layers else ()))
    modules = {name: m for name, m in model.named_modules() if isinstance(m, changed)}
    if all(isinstance(m, kinds(package.layers)) for m in modules.values()):
        _refuse_model(package, model)
    for name, module in modules.items():
        _check_wrappers(package, _called(name, module), module, "patch")
        _check_code(package, _called(name, module), module)
    known = package.known
    added = {module: _attributes(known[type(module)], module, options) for module in modules.values()}
    for module, attributes in added.items():
        turn(module, known[type(module)].ours)
        vars(module).update(attributes)
    return _count(package, added)


def restore(package: Package, model: torch.nn.Module) -> Patched:
    """Undo `replace`."""
    _check_model(model)
    back = package.back
    modules = {name: m for name, m in model.named_modules() if isinstance(m, tuple(back))}
    if not modules:
        raise ValueError(f"{type(model).__name__} is not patched")
    for name, module in modules.items():
        _check_wrappers(package, _called(name, module), module, "unpatch")
    for module in modules.values():
        turn(module, back[type(module)])
        for name in ADDED:
            vars(module).pop(name, None)
    return _count(package, modules.values())


def kinds(column: Iterable[Known]) -> tuple[type[torch.nn.Module], ...]:
    """The classes of the other package."""
    return tuple(known.theirs for known in column)


def _check_model(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {type_of(model)}; pass a torch.nn.Module")


def _called(name: str, module: torch.nn.Module) -> str:
    """A module's name in a message; the outermost module has no name."""
    return name or type(module).__name__


def _count(package: Package, modules: Iterable[torch.nn.Module]) -> Patched:
    modules = list(modules)
    columns = package.connections, package.heads, package.layers
    return Patched(*(sum(isinstance(m, kinds(column)) for m in modules) for column in columns))


def _refuse_model(package: Package, model: torch.nn.Module) -> NoReturn:
    """Raise ValueError for a model that contains none of the modules that would be changed."""
    wanted = " and no ".join(kind.__name__ for kind in kinds(package.connections + package.heads))
    reason = f"; pass {package.models}"
    for kind in {type(m).__name__ for m in model.modules()} & package.others.keys():
        reason = f", but {kind}: {package.others[kind]}"
    raise ValueError(f"{type(model).__name__} contains no {wanted}{reason}")


def _check_code(package: Package, name: str, module: torch.nn.Module) -> None:
    """Raise ValueError unless the methods of a module's class, and of the class of its norm, are known."""
    is_layer = isinstance(module, kinds(package.layers))
    for part in (module,) if is_layer else (module, *module.children()):
        known = package.known.get(type(part))
        if known is None:
            what = f"{type(part).__name__} is a class of {type(part).__module__}, and"
            wrong = what, f"make the model of the classes of {package.name}"
        else:
            methods = [(type(part), method, digests) for method, digests in known.digests.items()]
            wrong = _changed(package, [*methods, *(() if is_layer else package.functions)])
        if wrong is not None:
            reason, remedy = wrong
            raise ValueError(
                f"{name}: {reason} may compute something else; {remedy}"
                + (", or pass layers=False, which leaves the layers as they are" if is_layer else "")
            )


def _changed(package: Package, functions: list[tuple[Any, str, tuple[str, ...]]]) -> tuple[str, str] | None:
    """What is wrong with the first unknown function, and what to do; None if all are known."""
    for owner, name, digests in functions:
        function = getattr(owner, name)
        if digest(function) in digests:
            continue
        which = f"{name} of {owner.__name__}"
        if package.installed in package.tested:
            return (
                f"{which} was replaced by {written(function)}, which",
                f"put the one of {package.name} back",
            )
        return (
            f"{which} is not the one of {package.name} {' or '.join(package.tested)}, and",
            f"install {package.name}=={package.tested[-1]} (installed is {package.installed})",
        )
    return None


def _check_wrappers(package: Package, name: str, module: torch.nn.Module, change: str) -> None:
    """Raise ValueError if a wrapper or hook would be lost, or would call the forward of the old class.

    A wrapper that finds the wrapped forward in an attribute of the module, as accelerate's does, finds the
    new forward there.  A wrapper that holds the method itself does not.
    """
    if getattr(module, "_is_fsdp_managed_module", False):
        raise ValueError(f"{name} is sharded by FSDP; call {change} before fully_shard")
    own = MethodType(type(module).forward, module)
    wrapper = vars(module).get("forward")
    is_kept = any(is_same(value, own) for value in vars(module).values())
    is_held = any(is_same(part, own) for part in held(wrapper))
    if not (wrapper is None or is_same(wrapper, own) or (is_kept and not is_held)):
        raise ValueError(
            f"{name}: its forward was replaced on the instance by {written(wrapper)}, in which {change} "
            f"cannot exchange the forward that it wraps; remove it, call {change}, and wrap again"
        )
    if isinstance(module, kinds(package.layers)):
        return
    for norm in module.children():
        lost = [hook for hook, registered in vars(norm).items() if hook.endswith("_hooks") and registered]
        replaced = vars(norm).get("forward")
        if replaced is not None and not is_same(replaced, MethodType(type(norm).forward, norm)):
            lost.append(written(replaced))
        if lost:
            raise ValueError(
                f"the norm in {name} has {lost[0]}, and a patched module does not call its norm; "
                f"remove it before {change}"
            )


def _attributes(known: Known, module: torch.nn.Module, options: dict[str, Any]) -> dict[str, Any]:
    """The attributes that a class of this package needs on a module of another package."""
    if known.like is None:
        return {}
    made = known.like(module, **options)
    return {name: getattr(made, name) for name in ADDED}


def digest(function: Callable[..., Any]) -> str:
    """A hash of a function's source without comments, strings and blanks."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return "no source"
    words: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        word = token.string.strip() or tokenize.tok_name[token.type]
        is_empty_line = word == "NEWLINE" and words[-1] in ("NEWLINE", "INDENT")
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.STRING) and not is_empty_line:
            words.append(word)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


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
