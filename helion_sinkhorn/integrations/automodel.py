"""patch(model): compute the mHC residual path of NeMo Automodel's DeepSeek-V4 and V4.1 by this package."""

from __future__ import annotations

import torch

from helion_sinkhorn.integrations.automodel_models import PACKAGE, v4, v41
from helion_sinkhorn.integrations.replacement import Patched, replace, restore
from helion_sinkhorn.ops.sinkhorn.api import sinkhorn

BACKEND = "helion_sinkhorn"
"""The `sinkhorn_backend` that `switch_sinkhorn` sets, beside Automodel's "torch" and "tilelang"."""
THEIR_SINKHORN = v4.dsv4_sinkhorn_normalize


def dsv4_sinkhorn_normalize(x: torch.Tensor, *, backend: str, repeat: int, eps: float) -> torch.Tensor:
    """comb of its logits x (..., n, n) by `sinkhorn`, or for another backend by Automodel's function."""
    if backend != BACKEND:
        return THEIR_SINKHORN(x, backend=backend, repeat=repeat, eps=eps)
    return sinkhorn(x, n_iters=repeat, eps=eps)


def switch_sinkhorn(model: torch.nn.Module) -> int:
    """Let the sites of a model compute only their Sinkhorn by this package.

    The attribute `sinkhorn_backend` of every site becomes "helion_sinkhorn", which Automodel's modules then
    accept; set it to another value to go back.  `patch` replaces the whole residual path.

    Returns:
        The number of sites.

    Numerical policy: as for `sinkhorn`; Automodel computes the rest of a site.
    """
    sites = [m for m in model.modules() if hasattr(m, "sinkhorn_backend")]
    for module in (v4, v41):
        module.dsv4_sinkhorn_normalize = dsv4_sinkhorn_normalize
    for site in sites:
        site.sinkhorn_backend = BACKEND
    return len(sites)


def patch(
    model: torch.nn.Module,
    *,
    layers: bool = True,
    precision: str = "float32",
    implementation: str = "auto",
) -> Patched:
    """Turn the mHC modules of a DeepSeek-V4 or V4.1 of NeMo Automodel into modules of this package.

    Every DeepseekV4HyperConnection becomes an `nn.HyperConnection`, every DeepseekV4HyperHead an
    `nn.HyperHead`, and every DeepseekV41HyperConnection an `nn.HyperBoundary`.  They stay the same objects
    with the same Parameter objects under the same names, so optimizers, checkpoints and Automodel's
    initialisation stay valid.  A DeepseekV4Block then updates its streams by `hc_post`, and a
    DeepseekV41Block calls `hc_boundary` between attention and its experts.  `unpatch` undoes all of it.

    Args:
        model: a module that contains them, on any device, such as a DeepseekV4ForCausalLM or a
            DeepseekV41ForCausalLM.
        layers: False replaces only the sites and heads, and leaves Automodel's layers as they are.
        precision: the precision of the projection, as in `hc_mixes`.
        implementation: "auto", "helion" or "pytorch", for the modules.

    Returns:
        How many modules of each kind were changed.

    Numerical policy: in float32 the results equal the original's except for the order of sums.  In
        bfloat16 the results of V4 are closer to float64, since the original rounds coefficients, products and
        sums, and `hc_post` rounds once.

    Raises:
        TypeError: model is no module.
        ValueError: there is no such module, or one is patched already, is sharded by FSDP, has other code
            than in nemo_automodel 0.7.0, or has a wrapper or hook that would be lost.  Nothing is changed
            then.
    """
    return replace(PACKAGE, model, layers, precision=precision, implementation=implementation)


def unpatch(model: torch.nn.Module) -> Patched:
    """Undo `patch`: give the modules the classes of Automodel again, with their present Parameter objects.

    Returns:
        How many modules of each kind were changed.

    Raises:
        TypeError: model is no module.
        ValueError: the model is not patched, or one of its modules is sharded by FSDP or has a wrapper that
            would be lost.  Nothing is changed then.
    """
    return restore(PACKAGE, model)
