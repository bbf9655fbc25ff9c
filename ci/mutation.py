"""Mutants of the kernel bodies' source, and how many the gate finds: python -m ci.mutation [--count N]

A mutant is one function of a kernel module with one operator, comparison, constant, branch, argument or store
changed.  It runs in Helion's reference mode on a few small calls, in guarded memory, in a process of its own,
and is judged by the gate.  Prints what was found by module and kind of change, and every mutant that lives.
"""

from __future__ import annotations

import argparse
import ast
import collections
import copy
import functools
import importlib
import math
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType


def make_parser(modules=None) -> argparse.ArgumentParser:
    """Without the names and defaults that an import of torch brings, of flags and numbers alone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=400, help="mutants to try, 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modules", nargs="+", choices=modules, default=modules)
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # what follows imports torch, which takes seconds; --help has names from there
    make_parser().parse_args()

from ci import mutation_calls
from ci.gate import markdown as report
from ci.mutation_calls import Program

SECONDS = 60.0
"""After which a mutant is said not to end; the slowest call takes two."""
PACKAGE = "helion_sinkhorn."
_SINKHORN, _ATTENTION = "ops.sinkhorn.", "ops.linear_attention."
MODULES = {
    "runtime.device_math": "sinkhorn",
    **{_SINKHORN + m: "sinkhorn" for m in ("iteration", "adjoint", "kernels", "history")},
    **{_SINKHORN + f"implicit.{m}": "implicit" for m in ("equations", "direct", "cg")},
    "ops.dot_compress.kernels": "dot_compress",
    **{_ATTENTION + m: "recurrent" for m in ("recurrent.kernels", "gates.kernels", "levels")},
    **{_ATTENTION + f"chunked.{m}": "chunked" for m in ("chunk", "kernels", "gradients")},
    **{f"ops.{o}.kernels": o for o in ("hc_split_sinkhorn", "hc_pre", "hc_post", "hc_mixes")},
    "ops.hc_split_sinkhorn.reduction": "hc_split_sinkhorn",
}
"""Modules of bodies, and the calls of mutation_calls.CALLS that run them."""
SWAPPED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
CALLED = {
    "amax": "amin", "amin": "amax", "maximum": "minimum", "minimum": "maximum", "exp2": "log2",
    "log2": "exp2", "ones_like": "zeros_like", "zeros_like": "ones_like",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed place."""

    module: str
    function: str
    line: int
    kind: str
    was: str
    now: str
    tree: ast.FunctionDef

    def __str__(self) -> str:
        return f"{self.module}.{self.function}, line {self.line}: {self.was} -> {self.now}"


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], ast.AST]]]:
    """(kind, what to make of a copy of the node) of every mutant at a node."""

    def with_(**fields) -> Callable[[ast.AST], ast.AST]:
        def make(n: ast.AST) -> ast.AST:
            for name, value in fields.items():
                setattr(n, name, value)
            return n

        return make

    if isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        yield "operator", with_(op=SWAPPED[type(node.op)]())
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
        yield "comparison", with_(ops=[SWAPPED[type(node.ops[0])]()])
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        more = node.value + 1 if isinstance(node.value, int) else node.value * 1.25 or 1.0
        yield "constant", with_(value=more)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield "sign", lambda n: n.operand
    if isinstance(node, ast.IfExp):
        yield "branch", lambda n: ast.IfExp(n.test, n.orelse, n.body)
    if isinstance(node, ast.If) and not isinstance(node.test, ast.Compare):
        yield "branch", lambda n: with_(test=ast.UnaryOp(ast.Not(), n.test))(n)
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", "")
        if name == "where" and len(node.args) == 3:
            yield "argument", lambda n: with_(args=[n.args[0], n.args[2], n.args[1]])(n)
        elif name in CALLED:
            yield "function", lambda n: with_(func=with_(attr=CALLED[n.func.attr])(n.func))(n)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "store left out", lambda n: ast.Pass()
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        yield "store left out", lambda n: ast.Pass()


def places(tree: ast.FunctionDef) -> Iterator[tuple[int, ast.AST]]:
    """The nodes of a function's body, numbered as ast.walk has them."""
    body = {id(n) for statement in tree.body for n in ast.walk(statement)}
    # numbers in annotations and defaults are none of the body's
    return ((k, n) for k, n in enumerate(ast.walk(tree)) if id(n) in body and hasattr(n, "lineno"))


class At(ast.NodeTransformer):
    """Changes one node."""

    def __init__(self, node: ast.AST, make: Callable[[ast.AST], ast.AST]) -> None:
        self.node, self.make = node, make

    def visit(self, node: ast.AST) -> ast.AST:
        return self.make(node) if node is self.node else self.generic_visit(node)


def short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:57] + "..."


def changed(function: ast.FunctionDef, place: int, number: int) -> ast.FunctionDef:
    """The function with the node at a place changed in the way of this number."""
    tree = copy.deepcopy(function)
    node = next(n for k, n in enumerate(ast.walk(tree)) if k == place)
    make = list(changes(node))[number][1]
    return ast.fix_missing_locations(At(node, make).visit(tree))


def mutants(module: str) -> Iterator[Mutant]:
    """All of a module."""
    source = Path(importlib.import_module(PACKAGE + module).__file__).read_text()
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        for k, node in places(function):
            for number, (kind, make) in enumerate(changes(node)):
                was, now = short(node), short(make(copy.deepcopy(node)))
                tree = changed(function, k, number)
                yield Mutant(module, function.name, node.lineno, kind, was, now, tree)


def plant(mutant: Mutant) -> None:
    """Give the function, wherever it is known, the mutant's code."""
    module = importlib.import_module(PACKAGE + mutant.module)
    function = getattr(module, mutant.function)
    scope: dict[str, object] = {}
    code = compile(ast.Module([mutant.tree], []), module.__file__, "exec")
    exec(code, dict(vars(module)), scope)
    function.__code__ = scope[mutant.function].__code__


def finder(programs: list[Program]) -> str:
    """What the gate has against the code as it is, "" if nothing."""
    for program in programs:
        try:
            if found := program.findings():
                return found
        except Exception as error:
            return type(error).__name__
    return ""


def _tried(mutant: Mutant, programs: list[Program], answer) -> None:
    plant(mutant)
    answer.send(finder(programs))


def tried(mutant: Mutant, programs: list[Program]) -> str:
    """`finder` of a mutant, in a child of this process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_tried, args=(mutant, programs, there))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(SECONDS) else "does not end"
    except EOFError:
        return "crash"
    finally:
        child.kill()
        child.join()


@functools.cache
def lines_run(calls: str) -> frozenset[tuple[str, int]]:
    """(file, line) of what the calls of a kind execute."""
    files = {importlib.import_module(PACKAGE + m).__file__ for m in MODULES}
    found = set()

    def trace(frame: FrameType, event: str, _):
        if frame.f_code.co_filename not in files:
            return None
        found.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        assert not finder(mutation_calls.programs(calls)), f"{calls} are found wrong without a mutation"
    finally:
        sys.settrace(None)
    return frozenset(found)


def runs(mutant: Mutant) -> bool:
    """Whether a call gets to the mutant's line; others of its statement count, which may begin elsewhere."""
    file = importlib.import_module(PACKAGE + mutant.module).__file__
    return (file, mutant.line) in lines_run(MODULES[mutant.module])


def sample(count: int, seed: int, modules: list[str]) -> list[Mutant]:
    """So many mutants that run, from each module in proportion to what it has."""
    every = {m: [x for x in mutants(m) if runs(x)] for m in modules}
    total = sum(map(len, every.values()))
    share = min(1.0, count / total) if count else 1.0
    generator = random.Random(seed)
    return [x for m in modules for x in generator.sample(every[m], math.ceil(share * len(every[m])))]


def table(found: list[tuple[Mutant, str]]) -> list[dict[str, object]]:
    """Modules by kind of change: found of tried."""
    kinds = list(dict.fromkeys(m.kind for m, _ in found))
    rows = []
    for module in dict.fromkeys(m.module for m, _ in found):
        own = [(m, by) for m, by in found if m.module == module]
        of = collections.Counter(m.kind for m, _ in own)
        caught = collections.Counter(m.kind for m, by in own if by)
        rows.append({
            "module": module,
            **{kind: f"{caught[kind]} of {of[kind]}" if of[kind] else "" for kind in kinds},
            "all": f"{sum(caught.values())} of {len(own)}",
        })  # fmt: skip
    return rows


def main() -> int:
    options = make_parser(list(MODULES)).parse_args()
    begin = time.monotonic()
    found = []
    for mutant in sample(options.count, options.seed, options.modules):
        by = tried(mutant, mutation_calls.programs(MODULES[mutant.module]))
        found.append((mutant, by))
        if not by:
            print(f"lives: {mutant}", flush=True)
    caught = sum(bool(by) for _, by in found)
    print(report.table(table(found)))
    print(f"\n{caught} of {len(found)} found ({100 * caught / len(found):.1f} %), seed {options.seed}, "
          f"{time.monotonic() - begin:.0f} s")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
