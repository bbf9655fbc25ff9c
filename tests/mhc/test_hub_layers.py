"""The layers that Hugging Face's `kernels` puts into transformers compute the same, and it accepts them."""

from __future__ import annotations

import inspect
from types import MethodType

import pytest
import torch

from helion_sinkhorn.integrations import layers

deepseek = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
NAMES = "DeepseekV4HyperConnection", "DeepseekV4HyperHead"


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_computes_what_the_module_does(name):
    config = deepseek.DeepseekV4Config(hidden_size=64, hc_mult=4)
    module = getattr(deepseek, name)(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    leaves = torch.randn(2, 8, 4, 64).requires_grad_(), *module.parameters()

    def results(forward) -> list[torch.Tensor]:
        made = forward(leaves[0])
        made = made if isinstance(made, tuple) else (made,)
        return [*made, *torch.autograd.grad(sum(t.sin().sum() for t in made), leaves)]

    theirs = results(module.forward)
    ours = results(MethodType(getattr(layers, name).forward, module))
    for a, b in zip(theirs, ours, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5 * a.abs().max().item())


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_what_kernels_accepts(name):
    layer, module = getattr(layers, name), getattr(deepseek, name)
    members = {n for n, _ in inspect.getmembers(layer)} - {n for n, _ in inspect.getmembers(torch.nn.Module)}
    assert members == {"can_torch_compile"}
    assert layer.__init__ is torch.nn.Module.__init__
    kinds = [
        [(p.name, p.kind) for p in inspect.signature(c.forward).parameters.values()] for c in (layer, module)
    ]
    assert kinds[0] == kinds[1]
