"""FSDP2 for models with mHC modules: a mixed-precision policy that leaves their parameters float32."""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.mhc.modules import HyperConnection, HyperHead


def fully_shard_float32(model: torch.nn.Module, **options: Any) -> list[list[torch.nn.Module]]:
    """Shard the mHC modules of a model in groups of their own, which compute with float32 parameters.

    `fully_shard` with MixedPrecisionPolicy(param_dtype=torch.bfloat16) gathers every parameter of a layer in
    bfloat16, also the parameters of HyperConnection, whose projection then has 8 of its 24 bits.  A module
    that already is in a group is left out of the layer's group: call this function first, then `fully_shard`
    of the layers and of the model.  The groups gather and reduce in float32, and streams keep their dtype.

    Args:
        model: a module that contains HyperConnection or HyperHead modules.
        options: mesh, reshard_after_forward and others, for `fully_shard`; not mp_policy.

    Returns:
        The groups: the mHC modules of one parent each, so that a layer's two sites share a collective.

    Raises:
        ValueError: there is no such module in it.
        TypeError: mp_policy is given.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if "mp_policy" in options:
        raise TypeError("mp_policy is what fully_shard_float32 chooses; pass it to the layers' fully_shard")
    groups: list[list[torch.nn.Module]] = []
    grouped: set[torch.nn.Module] = set()
    for parent in model.modules():
        # a module that several layers share goes with the first layer
        group = [
            m for m in parent.children()
            if isinstance(m, (HyperConnection, HyperHead)) and m not in grouped
        ]  # fmt: skip
        if group:
            groups.append(group)
            grouped.update(group)
    if not groups:
        raise ValueError(f"no submodule of {type(model).__name__} is a HyperConnection or a HyperHead")
    # without param_dtype parameters keep theirs; inputs would be cast to the parameters' dtype
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    for group in groups:
        fully_shard(group, mp_policy=policy, **options)
    return groups
