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
from benchmarks.demo_model.training import Run
from helion_sinkhorn import hc_post
from helion_sinkhorn.integrations import transformers


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
    monkeypatch.setattr(transformers, "hc_post", functools.partial(hc_post, comb_order="oi"))
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
