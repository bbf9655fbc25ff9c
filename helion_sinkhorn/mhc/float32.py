"""A module whose parameters stay float32 in a model of a narrower dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WIDE = (torch.float32, torch.float64)


def widened(x: torch.Tensor) -> torch.Tensor:
    """A narrower floating tensor in float32; any other tensor is returned as it is."""
    return x.float() if x.is_floating_point() and x.dtype not in WIDE else x


class Float32Parameters(torch.nn.Module):
    """Base of modules whose own parameters `.to(bfloat16)`, `.half()` and checkpoints do not narrow.

    - A conversion of the module, or of the model it is in, to a narrower dtype moves the parameters and
      their gradients to its device and leaves them float32, without a rounding on the way.  `.double()`
      is followed.
    - `load_state_dict` of a narrower checkpoint gives float32, with assign=True too.  State dicts are those
      of a plain module of the same parameters.
    """

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True):
        def keep(x: torch.Tensor) -> torch.Tensor:
            y = fn(x)
            # converted from x and not from y, which has lost 16 of the 24 bits
            return y if widened(y) is y else x.to(device=y.device, dtype=torch.float32)

        return super()._apply(keep, recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # load_state_dict hands its own copy of the dict
        for name in self._parameters:
            parameter = state_dict.get(prefix + name)
            if isinstance(parameter, torch.Tensor):
                state_dict[prefix + name] = widened(parameter)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
