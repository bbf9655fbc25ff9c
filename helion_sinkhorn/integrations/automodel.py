"""patch(model): the mHC residual path of a DeepSeek-V4 or V4.1 of NeMo Automodel, by this package."""

from __future__ import annotations

import torch

from helion_sinkhorn.integrations.automodel_models import PACKAGE, v4, v41
from helion_sinkhorn.integrations.replacement import Patched, replace, restore
from helion_sinkhorn.ops.sinkhorn.api import sinkhorn

BACKEND = "helion_sinkhorn"
"""What `sinkhorn_backend` of a site is under `switch_sinkhorn`, beside Automodel's "torch" and "tilelang"."""
THEIR_SINKHORN = v4.dsv4_sinkhorn_normalize


def dsv4_sinkhorn_normalize(x: torch.Tensor, *, backend: str, repeat: int, eps: float) -> torch.Tensor:
    """Normalise the logits of comb by `sinkhorn`, in place of Automodel's function of this name.

    Args:
        x: (..., n, n), logits.
        backend: "helion_sinkhorn"; any other is passed on to Automodel's function.
        repeat: T, iterations.
        eps: of Sinkhorn's softmax and denominators.

    Returns:
        (..., n, n).

    Numerical policy, errors: as of `sinkhorn`.
    """
    if backend != BACKEND:
        return THEIR_SINKHORN(x, backend=backend, repeat=repeat, eps=eps)
    return sinkhorn(x, n_iters=repeat, eps=eps)


def switch_sinkhorn(model: torch.nn.Module) -> int:
    """Let the sites of a model take their Sinkhorn from this package, and nothing else.

    Every site gets the sinkhorn_backend "helion_sinkhorn", which Automodel's modules then know; another
    value of this attribute takes it back.  `patch` replaces the whole path.

    Returns:
        How many sites there are.

    Numerical policy: that of `sinkhorn`; the rest of a site is Automodel's.
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
    DeepseekV41Block goes from attention to its experts by `hc_boundary`.  `unpatch` takes all of it back.

    Args:
        model: a module that contains them, on any device; DeepseekV4ForCausalLM or DeepseekV41ForCausalLM
            for instance.
        layers: False replaces only the sites and heads, and leaves Automodel's layers as they are.
        precision: of the projection, as `hc_mixes` has it.
        implementation: "auto", "helion" or "pytorch", of the modules.

    Returns:
        How many modules of each kind were changed.

    Numerical policy: in float32 the results equal the original's but for the order of sums.  In
        bfloat16 the results of V4 are closer to float64: where the original rounds coefficients, products and
        sums, `hc_post` rounds once.

    Raises:
        TypeError: model is no module.
        ValueError: there is no such module, or one is patched already, is sharded by FSDP, has other code
            than that of nemo_automodel 0.7.0, or has a wrapper or hook that would be lost.  Nothing is
            changed then.
    """
    return replace(PACKAGE, model, layers, precision=precision, implementation=implementation)


def unpatch(model: torch.nn.Module) -> Patched:
    """Take `patch` back: the classes of Automodel again, with the Parameter objects that there are now.

    Returns:
        How many modules of each kind were changed.

    Raises:
        TypeError: model is no module.
        ValueError: the model is not patched, or one of its modules is sharded by FSDP or has a wrapper that
            would be lost.  Nothing is changed then.
    """
    return restore(PACKAGE, model)
