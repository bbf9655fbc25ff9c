"""make demo WHAT=model: what it prints, and that it fails where the model is another one."""

from __future__ import annotations

import functools
import sys

import pytest
import torch

pytest.importorskip(
    "transformers.models.deepseek_v4", reason="the oracle extra brings it: transformers==5.23.0"
)

from benchmarks.demo_model import __main__ as demo
from benchmarks.demo_model import run as steps
from benchmarks.demo_model.model import Chain
from benchmarks.demo_model.training import Run
from helion_sinkhorn import hc_post
from helion_sinkhorn.integrations import models


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """The demo with a few steps: its exit status and what it prints."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(steps, "LEARNED", 1.0)
    picture = str(tmp_path / "x.png")
    monkeypatch.setattr(sys, "argv", ["demo_model", "--steps", "6", "--device", "cpu", "--output", picture])
    yield lambda: (demo.main(), capsys.readouterr().out)
    torch.set_num_threads(threads)


def test_it_passes_and_draws(run, tmp_path):
    status, printed = run()
    assert status == 0
    assert "FAILED" not in printed
    assert "all 54 gradients" in printed
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_it_fails_with_comb_transposed(run, monkeypatch):
    monkeypatch.setattr(models, "hc_post", functools.partial(hc_post, comb_order="oi"))
    status, printed = run()
    assert status == 1
    assert "FAILED" in printed


@pytest.mark.parametrize(
    ("flip", "apart_from", "entropy", "passes"),
    [(8, 8, 2.0, True), (5, 5, 2.0, True), (5, 4, 2.0, False), (3, 3, 2.0, False), (8, 8, -10.0, False)],
)
def test_curves_are_compared_until_a_token_takes_another_expert(flip, apart_from, entropy, passes):
    """A tie of two experts that rounding decides is no error; one that comes early is, and so is a model that
    learned too little of what there was."""
    original = torch.linspace(3, 1, 8)
    experts = torch.zeros(8, 4, 2, dtype=torch.int64)
    other, apart, moved = experts.clone(), original.clone(), original + 1e-6
    other[flip:, 1, 1] = 1
    apart[apart_from:] += 1e-3
    curves = {
        "original": Run(original, experts, 1.0), "patched": Run(apart, other, 1.0),
        "moved": Run(moved, experts, 1.0),
    }  # fmt: skip
    assert steps.compare_training(curves, entropy=entropy) is passes


def test_a_step_s_costs_are_written_and_become_the_table(tmp_path, monkeypatch):
    whole_calls = pytest.importorskip("docs.whole_calls")
    monkeypatch.setattr(whole_calls, "BENCH", tmp_path)
    assert whole_calls.model_step() == ""
    costs = {"original": (55.123, 2868.4), "patched": (36.3, 1250.6)}
    monkeypatch.setattr(steps.training, "step_costs", lambda device: costs)
    steps.print_costs("cpu", tmp_path / "model_step.csv")
    text = whole_calls.model_step()
    assert "| transformers | 55.12 | 2,868 |\n| patched with helion_sinkhorn | 36.3 | 1,251 |" in text
    assert "transformers 5.23.0 with 2 layers of hidden size 2048 and 4 streams, 4096 tokens" in text


def test_the_chain_is_one():
    chain = Chain(5)
    generator = torch.Generator().manual_seed(0)
    tokens = chain.draw(4000, 9, generator)
    pairs = tokens.unfold(1, 2, 1).flatten(0, 1)
    counts = torch.bincount(5 * pairs[:, 0] + pairs[:, 1], minlength=25).view(5, 5)
    # 32000 pairs: a share is known to a few thousandths
    assert ((counts / counts.sum()) - chain.stationary[:, None] * chain.transitions).abs().max() < 0.01
    surprise = -chain.transitions[pairs[:, 0], pairs[:, 1]].log().mean()
    assert abs(surprise - chain.entropy) < 0.02
