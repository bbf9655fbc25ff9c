"""The examples, at small sizes: each learns, agrees or says what it should."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from examples import align_points, matching, serve_cuda_graph, train_mhc
from helion_sinkhorn import nn

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


def test_points_are_aligned():
    """By the steps: the first guess of the map matches fewer."""
    assert align_points.main(["--n", "140"]) > 0.95
    assert align_points.main(["--n", "140", "--steps", "1"]) < 0.8


@pytest.mark.parametrize(
    ("words", "wrong"), [(["--steps", "0"], "at least 1"), (["--hidden", "63"], "a multiple of the 4 heads")]
)
def test_training_refuses_what_it_cannot_do(words, wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        train_mhc.main(words)
    assert wrong in capsys.readouterr().err


def test_serving_compares_a_graph_where_there_is_one(capsys):
    apart = serve_cuda_graph.main(["--tokens", "4", "--hidden", "32", "--layers", "2", "--calls", "1"])
    said = capsys.readouterr().out
    if torch.cuda.is_available():
        assert apart == 0
        assert "CUDA graph: " in said
    else:
        assert apart is None
        assert "runs without a graph" in said
        assert "difference" not in said
        assert "without:" not in said


@pytest.mark.parametrize(("model", "heads"), [("deepseek-v4", 1), ("glm-5.3", 0)])
def test_transformers_is_patched_and_restored(capsys, model, heads):
    pytest.importorskip("transformers", reason="needs the oracle extra: pip install transformers==5.23.0")
    from examples import patch_transformers

    assert 0 < patch_transformers.main(["--model", model, "--hidden", "32", "--length", "8"]) < 1e-3
    assert f"Patched(connections=4, heads={heads}, layers=2)" in capsys.readouterr().out


def test_a_used_model_says_the_same_with_this_residual_path(capsys):
    pytest.importorskip("transformers", reason="needs the oracle extra: pip install transformers==5.23.0")
    from examples import serve_transformers

    sizes = "--hidden", "32", "--layers", "2", "--batch", "3", "--prompt", "7", "--steps", "3"
    apart, same = serve_transformers.main([*sizes])
    assert 0 < apart < 1e-5
    assert same == 1
    said = capsys.readouterr().out
    assert "Patched(connections=4, heads=1, layers=2)" in said
    assert said.count("tokens/s, decode") == 2


def test_lora_learns_and_leaves_the_rest_frozen(monkeypatch, capsys):
    pytest.importorskip("transformers", reason="needs the oracle extra: pip install transformers==5.23.0")
    from examples import finetune_lora

    made, make = [], finetune_lora.make_model
    monkeypatch.setattr(finetune_lora, "make_model", lambda hidden: (made.append(make(hidden)), made[0])[1])
    adapt, before = finetune_lora.adapt, {}

    def adapted(model, rank):
        trained = adapt(model, rank)
        before.update({name: p.detach().clone() for name, p in model.named_parameters()})
        return trained

    monkeypatch.setattr(finetune_lora, "adapt", adapted)
    losses = finetune_lora.main(["--steps", "25", "--hidden", "32", "--batch", "8"])
    # a guess among the symbols costs log 16 = 2.77
    assert sum(losses[-5:]) / 5 < 2.4
    moved = {name for name, p in made[0].named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if name.endswith((".down.weight", ".up.weight"))}
    assert any(isinstance(m, nn.HyperConnection) for m in made[0].modules())
    assert "Patched(connections=4, heads=1, layers=2)" in capsys.readouterr().out


def test_torchtitan_s_modules_get_forwards_of_this_package(capsys):
    from examples import torchtitan_model

    assert 0 < torchtitan_model.main() < 2e-5
    assert "3 modules of " in capsys.readouterr().out


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
