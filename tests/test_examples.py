"""The examples, at small sizes: each learns, agrees or says what it should."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from examples import matching, serve_cuda_graph, train_mhc

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MOST_LINES = 120


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        yield


def test_a_transformer_learns_to_repeat(capsys):
    losses = train_mhc.main(["--steps", "40", "--hidden", "32", "--batch", "16"])
    # a guess among the symbols costs log 16 = 2.77, and nothing but the first half tells more
    assert sum(losses[-5:]) / 5 < 2.6
    assert "step   39: loss" in capsys.readouterr().out


def test_a_list_is_sorted():
    assert matching.main(["--steps", "60", "--n", "4", "--batch", "32"]) > 0.9


def test_serving_says_whether_there_is_a_graph(capsys):
    apart = serve_cuda_graph.main(["--tokens", "4", "--hidden", "32", "--layers", "2", "--calls", "1"])
    assert apart == 0
    said = capsys.readouterr().out
    assert ("CUDA graph: " in said) is torch.cuda.is_available()
    assert ("runs without a graph" in said) is not torch.cuda.is_available()


def test_transformers_is_patched_and_restored(capsys):
    pytest.importorskip("transformers", reason="needs the oracle extra: pip install transformers==5.23.0")
    from examples import patch_transformers

    assert 0 < patch_transformers.main(["--hidden", "32", "--length", "8"]) < 1e-3
    assert "Patched(connections=4, heads=1, layers=2)" in capsys.readouterr().out


def test_jax_gets_the_function_and_its_gradient():
    pytest.importorskip("jax", reason="needs jax: pip install jax")
    from examples import jax_dlpack

    p, gradient = jax_dlpack.main(["--batch", "8"])
    assert p < 1e-6
    assert gradient < 1e-5


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_an_example_is_short_and_says_how_it_starts(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert f"\n    python examples/{path.name} " in ast.get_docstring(ast.parse(text), clean=False)
