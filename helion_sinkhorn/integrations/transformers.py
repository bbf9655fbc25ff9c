"""patch(model): compute the mHC residual path of transformers' DeepseekV4 and GLM-5.3 by this package."""

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
    streams by `hc_post`, and its two norms are computed in the collapse before them (`hc_pre`); a norm with a
    hook, a wrapper or another class is called as before.  `unpatch` undoes all of it.

    A forward that is wrapped on the instance, as by accelerate's `dispatch_model`, stays wrapped.  Within
    such a layer a wrapper or hook of a site sees four results: post, comb, collapsed (after the norm, if it
    is computed there), and the residual.

    Args:
        model: a module that contains them, on any device, such as a DeepseekV4ForCausalLM or a
            Glm5NextForConditionalGeneration.
        layers: False leaves the update of the streams to transformers, with its roundings.
        precision: the precision of the projection, as in `hc_mixes`.
        implementation: "auto", "helion" or "pytorch", for the modules.

    Returns:
        How many modules of each kind were changed.

    Numerical policy: in float32 the results equal the original's except for the order of sums.  In
        bfloat16 they are closer to float64, since the original rounds coefficients, products and sums, and
        `hc_post` rounds once.  Under autocast the projection stays in float32; the original's does not.

    Raises:
        TypeError: model is no module.
        ValueError: there is no such module, or one is patched already, is sharded by FSDP, has other code
            than in transformers 5.23.0 and 5.24.0, or has a wrapper or hook that would be lost.  Nothing is
            changed then.
    """
    options = {"precision": precision, "implementation": implementation}
    deviation = _initializer_range(model)
    if deviation is not None:
        options["initializer_range"] = deviation
    return replace(PACKAGE, model, layers, **options)


def unpatch(model: torch.nn.Module) -> Patched:
    """Undo `patch`: give the modules the classes of transformers again, with their present Parameter objects.

    Returns:
        How many modules of each kind were changed.

    Raises:
        TypeError: model is no module.
        ValueError: the model is not patched, or one of its modules is sharded by FSDP or has a wrapper that
            would be lost.  Nothing is changed then.
    """
    return restore(PACKAGE, model)


def _initializer_range(model: torch.nn.Module) -> float | None:
    """The standard deviation of a new projection by the model's config."""
    # GLM-5.3 uses the default, whatever its config says
    is_glm = isinstance(model, glm.Glm5NextPreTrainedModel)
    return None if is_glm else getattr(getattr(model, "config", None), "initializer_range", None)
