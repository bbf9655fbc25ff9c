"""A patched transformers with the layers of build/hub: loss and gradients with and without them, on a CPU.

transformers 5.24.0 uses its decorator where kernels is between 0.18.2 and 0.19.0; here the decorator of the
kernels that is installed takes its place.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers.integrations
from kernels import (
    LocalLayerRepository,
    Mode,
    kernelize,
    register_kernel_mapping,
    use_kernel_forward_from_hub,
)

sys.path.append(str(Path(__file__).parents[2] / "examples"))
# before the modules of a model are imported, and decorated
transformers.integrations.use_kernel_forward_from_hub = use_kernel_forward_from_hub
from patch_transformers import deepseek  # noqa: E402

LAYERS = "DeepseekV4HyperConnection", "DeepseekV4HyperHead"
hub = Path(sys.argv[1])
register_kernel_mapping({n: {"cpu": LocalLayerRepository(hub, layer_name=n)} for n in LAYERS})
torch.manual_seed(0)
model, tokens = deepseek(128), torch.randint(64, (2, 32))


def loss_and_gradients() -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    loss = model(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


loss, gradients = loss_and_gradients()
kernelize(model, mode=Mode.TRAINING, device="cpu")
ours, others = loss_and_gradients()
layers = [
    m for m in model.modules() if m.forward.__func__.__module__ == "helion_sinkhorn.integrations.layers"
]
worst = max(((a - b).abs().max() / a.abs().max()).item() for a, b in zip(gradients, others, strict=True))
print(f"{len(layers)} modules replaced: loss {loss:.6f}, then {ours:.6f}")
print(f"gradients of {len(gradients)} parameters differ by at most {worst:.1e} of their largest entry")
