"""The gain of comb, watched while a model trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from helion_sinkhorn.mhc.modules import HyperConnection


@contextmanager
def watching_gain(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Collect how much the comb of each site amplifies gradients, in the forwards within the block.

        with watching_gain(model) as gains:
            model(tokens)
        print(max(gains.values()))
    Sinkhorn's last step makes the column sums of comb 1, which is the gain of the streams.  The row sums,
    sum_o comb[i, o], are 1 only as far as the iterations have converged.  They are the gain of the gradients,
    which multiplies from site to site, and grow with steep logits.

    Args:
        model: a module that contains HyperConnection or HyperBoundary modules.

    Returns:
        The largest row sum of the last forward of each site, by the module's name, a number on its device.

    Raises:
        ValueError: there is no such module in it.
    """
    gains: dict[str, torch.Tensor] = {}

    def hook(name: str, output_axis: int):
        def collect(module: torch.nn.Module, given: object, results: tuple[torch.Tensor, ...]) -> None:
            comb = getattr(results, "comb", results[1])
            gains[name] = comb.detach().sum(output_axis).amax()

        return collect

    handles = [
        module.register_forward_hook(hook(name, -1 if module.options.comb_order == "io" else -2))
        for name, module in model.named_modules()
        if isinstance(module, HyperConnection)
    ]
    if not handles:
        raise ValueError(f"no submodule of {type(model).__name__} is a HyperConnection or a HyperBoundary")
    try:
        yield gains
    finally:
        for handle in handles:
            handle.remove()
