"""patch(model): the mHC residual path of a DeepseekV4 or GLM-5.3 model of transformers, by this package."""

from __future__ import annotations

import torch

from helion_sinkhorn.integrations.models import PACKAGE, glm
from helion_sinkhorn.integrations.replacement import Patched, replace, restore


def patch(
    model: torch.nn.Module,
    *,
    layers: bool = True,
    precision: str = "float32",
    implementation: str = "auto",
) -> Patched:
    """Turn the mHC modules of a DeepseekV4 or GLM-5.3 model into modules of this package, in place.

    Every DeepseekV4HyperConnection or Glm5NextTextHyperConnection becomes an `nn.HyperConnection` and every
    DeepseekV4HyperHead an `nn.HyperHead`; the head of GLM-5.3 is the mean of the streams and stays.  They
    stay the same objects with the same Parameter objects, so optimizers, state dicts, hooks and transformers'
    `init_weights` stay valid.  Every DeepseekV4DecoderLayer or Glm5NextTextDecoderLayer then updates its
    streams by `hc_post`, and its two norms are parts of the collapse before them (`hc_pre`): one that has
    a hook, a wrapper or another class is called as before.  `unpatch` takes all of it back.

    A forward that was wrapped on the instance, as accelerate's `dispatch_model` does, stays wrapped.  Within
    such a layer a wrapper or hook of a site sees four results: post, comb,
    collapsed, after such a norm, and the residual.

    Args:
        model: a module that contains them, on any device; DeepseekV4ForCausalLM or
            Glm5NextForConditionalGeneration for instance.
        layers: False leaves the update of the streams to transformers, with its roundings.
        precision: of the projection, as `hc_mixes` has it.
        implementation: "auto", "helion" or "pytorch", of the modules.

    Returns:
        How many modules of each kind were changed.

    Numerical policy: in float32 the results equal the original's but for the order of sums.  In
        bfloat16 they are closer to float64: where the original rounds coefficients, products and sums,
        `hc_post` rounds once.  Under autocast the projection stays in float32, which the original's does not.

    Raises:
        TypeError: model is no module.
        ValueError: there is no such module, or one is patched already, is sharded by FSDP, has other code
            than that of transformers 5.23.0 and 5.24.0, or has a wrapper or hook that would be lost.  Nothing
            is changed then.
    """
    options = {"precision": precision, "implementation": implementation}
    deviation = _initializer_range(model)
    if deviation is not None:
        options["initializer_range"] = deviation
    return replace(PACKAGE, model, layers, **options)


def unpatch(model: torch.nn.Module) -> Patched:
    """Take `patch` back: the classes of transformers again, with the Parameter objects that there are now.

    Returns:
        How many modules of each kind were changed.

    Raises:
        TypeError: model is no module.
        ValueError: the model is not patched, or one of its modules is sharded by FSDP or has a wrapper that
            would be lost.  Nothing is changed then.
    """
    return restore(PACKAGE, model)


def _initializer_range(model: torch.nn.Module) -> float | None:
    """The standard deviation of a fresh projection that the model's config asks for."""
    # GLM-5.3 has the default whatever its config says
    is_glm = isinstance(model, glm.Glm5NextPreTrainedModel)
    return None if is_glm else getattr(getattr(model, "config", None), "initializer_range", None)
