"""Generated code as a module that imports only torch and Triton.

Helion's module imports `helion` for the launcher, the kernel's module for names in host code, and
`torch._inductor` for short functions, which takes ten seconds before a first launch.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import inspect
import linecache
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

IMPORTS = {
    "torch": "import torch",
    "triton": "import triton",
    "tl": "import triton.language as tl",
    "tl_math": "from triton.language import math as tl_math",
    "libdevice": "from triton.language.extra import libdevice",
}
UNITS = "torch.cuda.get_device_properties({}).multi_processor_count"
"""The number that `helion.runtime.get_num_sm` returns for a GPU."""
CONSTANTS = (int, float, bool, str)


class Unresolved(Exception):
    """The code needs Helion."""


def standalone(code: str, name: str) -> str | None:
    """The module without Helion; None if it needs something that this module cannot replace.

    Host statements that the launch does not depend on are left out, Triton functions of other modules are
    copied in, and constants of the kernel's module become numbers.  The code that Triton compiles is not
    changed.  The host function `name` gets `_launcher` as an argument without default.
    """
    try:
        return _rewritten(ast.parse(code), name)
    except Unresolved:
        return None


def _rewritten(tree: ast.Module, name: str) -> str:
    imports = [s for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    own = [s for s in tree.body if s not in imports]
    scope: dict[str, Any] = {}
    exec(compile(ast.Module(imports, []), "<imports>", "exec"), scope)
    _reduce(next(s for s in own if isinstance(s, ast.FunctionDef) and s.name == name))
    functions: dict[str, ast.FunctionDef] = {}
    own = [_Inlined(scope, functions).visit(s) for s in own]
    module = ast.fix_missing_locations(ast.Module([*functions.values(), *own], []))
    _check(module)
    return "\n".join([*IMPORTS.values(), "", ast.unparse(module), ""])


def _reduce(host: ast.FunctionDef) -> None:
    """Remove the statements of a host function that its launch does not depend on."""
    for argument in (*host.args.args, *host.args.kwonlyargs):
        argument.annotation = None
    host.args.kw_defaults = [None] * len(host.args.kwonlyargs)
    host.returns = None
    host.body = _needed(host.body, set())


def _names(node: ast.AST, *contexts: type[ast.expr_context]) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, contexts)}


def _needed(statements: list[ast.stmt], wanted: set[str]) -> list[ast.stmt]:
    """The statements except docstrings and assignments to names that no later statement reads.

    `wanted` collects the names read.
    """
    kept: list[ast.stmt] = []
    for s in reversed(statements):
        if _does_nothing(s) or (isinstance(s, ast.Assign) and not wanted & _names(s, ast.Store)):
            continue
        if isinstance(s, ast.If):
            s.body, s.orelse = _needed(s.body, wanted), _needed(s.orelse, wanted)
            if not (s.body or s.orelse):
                continue
            s.body = s.body or [ast.Pass()]
        wanted |= _names(s, ast.Load, ast.Store)
        kept.append(s)
    return kept[::-1]


def _does_nothing(statement: ast.stmt) -> bool:
    """Whether a statement is a string, or only for Helion's tracing."""
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    return isinstance(value, ast.Constant) or (
        isinstance(value, ast.Call) and ast.unparse(value.func) == "hl.specialize"
    )


class _Inlined(ast.NodeTransformer):
    """Copies into code the Triton functions and constants of other modules that it names."""

    def __init__(self, scope: dict[str, Any], functions: dict[str, ast.FunctionDef], prefix: str = ""):
        self.scope, self.prefix = scope, prefix
        self.functions = functions
        """What was written, by new names, each behind those that it calls."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = ast.unparse(node.func)
        if called == "helion.runtime.get_num_sm" and len(node.args) == 1 and not node.keywords:
            return ast.parse(UNITS.format(ast.unparse(node.args[0])), mode="eval").body
        if called == "_launcher" and any(k.arg is None or k.arg.startswith("_") for k in node.keywords):
            raise Unresolved("an option that Helion's launcher takes for itself")
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        module = self.scope.get(name)
        if name in IMPORTS or not isinstance(module, ModuleType):
            return self.generic_visit(node)
        return self.written(getattr(module, node.attr, None), f"{name}_", node.attr)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self.scope.get(node.id)
        if node.id in IMPORTS or value is None or isinstance(value, ModuleType):
            return node
        return self.written(value, self.prefix, node.id)

    def written(self, value: Any, prefix: str, name: str) -> ast.expr:
        """An expression for a name of another module."""
        if type(value) in CONSTANTS and value == value:
            return ast.Constant(value)
        if not (type(value).__module__.startswith("triton.runtime.") and hasattr(value, "fn")):
            raise Unresolved(prefix + name)
        if prefix + name not in self.functions:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(value.fn))).body
            local = _names(definition, ast.Store) | {a.arg for a in definition.args.args}
            scope = {k: v for k, v in value.fn.__globals__.items() if k not in local}
            definition = _Inlined(scope, self.functions, prefix).visit(definition)
            definition.name = prefix + name
            definition.body = [s for s in definition.body if not _does_nothing(s)]
            self.functions[prefix + name] = definition
        return ast.Name(prefix + name, ast.Load())


def _check(module: ast.Module) -> None:
    """Raise Unresolved if the code reads a name that is neither imported nor defined."""
    known = {*IMPORTS, *dir(builtins)}
    for s in module.body:
        known |= {s.name} if isinstance(s, ast.FunctionDef) else _names(s, ast.Store)
    for s in module.body:
        own = _names(s, ast.Store) | {a.arg for a in ast.walk(s) if isinstance(a, ast.arg)}
        unknown = _names(s, ast.Load) - known - own
        if unknown:
            raise Unresolved(", ".join(sorted(unknown)))


@functools.cache
def load(code: str, name: str, path: str = "") -> Callable[..., Any]:
    """The host function of a standalone module, whose text runs even if the file at the path has changed."""
    path = path or f"{name}.{hashlib.sha256(code.encode()).hexdigest()[:16]}.py"
    # Triton compiles the text that inspect finds in linecache, which keeps entries without a time
    linecache.cache[path] = len(code), None, code.splitlines(keepends=True), path
    module = ModuleType(name)
    module.__file__ = path
    exec(compile(code, path, "exec"), vars(module))
    return getattr(module, name)
