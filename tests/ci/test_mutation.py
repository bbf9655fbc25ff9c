"""Mutants of the kernel bodies (ci/mutation.py): what is tried, that it takes effect, and that it is found.

A sample of one module here; `make mutation ARGS="--count 0"` tries all, nightly.
"""

from __future__ import annotations

import ast

import pytest

from ci import mutation, mutation_calls


def made(source):
    """The sources of all mutants of one function."""
    (function,) = ast.parse(source).body
    return [
        ast.unparse(mutation.changed(function, k, number))
        for k, node in mutation.places(function)
        for number, _ in enumerate(mutation.changes(node))
    ]


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("return a + b * 2", ["return a - b * 2", "return a + b / 2", "return a + b * 3"]),
        ("return x[-1]", ["return x[1]", "return x[-2]"]),
        ("return a if a <= b else b", ["return b if a <= b else a", "return a if a < b else b"]),
        ("return torch.where(a, b, x)", ["return torch.where(a, x, b)"]),
        ("return x.amax(a)", ["return x.amin(a)"]),
        ("hl.store(x, a, b)", ["pass"]),
        ("x[a] = b", ["pass"]),
    ],
)  # fmt: skip
def test_mutants_of_a_line(line, others):
    source = f"def f(x, a, b=3):\n    {line}"
    assert sorted(made(source)) == sorted(f"def f(x, a, b=3):\n    {other}" for other in others)


@pytest.mark.parametrize("name", ["sinkhorn", "implicit", "dot_compress"])
def test_calls_are_found_right_as_the_code_is(name):
    """The calls of linear attention, of seconds each, are judged before their mutants are."""
    assert mutation.finder(mutation_calls.programs(name)) == ""


def test_a_planted_mutant_is_found_and_only_in_its_process():
    programs = mutation_calls.programs("sinkhorn")
    (one,) = [
        m for m in mutation.mutants("ops.sinkhorn.adjoint") if m.function == "scaled" and m.was == "w * s"
    ]
    assert mutation.tried(one, programs) in ("worst", "worst, rms", "worst, rms, parity")
    assert mutation.finder(programs) == ""


def test_a_mutant_that_does_not_end_is_found(monkeypatch):
    monkeypatch.setattr(mutation, "SECONDS", 1e-6)
    one = next(mutation.mutants("ops.sinkhorn.adjoint"))
    assert mutation.tried(one, mutation_calls.programs("sinkhorn")) == "does not end"


def test_mutants_of_the_adjoint_are_found():
    tried = [m for m in mutation.mutants("ops.sinkhorn.adjoint") if m.function in ("project", "take_back")][
        :8
    ]
    found = [mutation.tried(m, mutation_calls.programs("sinkhorn")) for m in tried]
    assert len(tried) == 8
    assert all(found), [str(m) for m, by in zip(tried, found, strict=True) if not by]
