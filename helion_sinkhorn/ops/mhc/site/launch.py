"""From tensors to the launches of hc_site: five forward, or three, and a backward that writes dx once.

The forward launches the kernels of hc_mixes, hc_split_sinkhorn and hc_pre; for few tokens, with a norm and
its own weights, one launch takes the place of the last three (`finish`).  The backward has two kernels of
its own: one for the gradient of the collapse's weights, which the projection's upstream gradient depends on,
and one that writes the whole gradient of the streams in one pass with the gradient of fn.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.mhc.mixes import launch as mixes_launch
from helion_sinkhorn.ops.mhc.mixes.launch import Dx, Partials
from helion_sinkhorn.ops.mhc.mixes.space import MixesCall
from helion_sinkhorn.ops.mhc.options import Kept, SiteGradients, SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.out import NONE, Out
from helion_sinkhorn.ops.mhc.pre import launch as pre_launch
from helion_sinkhorn.ops.mhc.pre.normed import launch as normed_launch
from helion_sinkhorn.ops.mhc.pre.quantized import launch as quantized_launch
from helion_sinkhorn.ops.mhc.pre.quantized.layouts import Quantized
from helion_sinkhorn.ops.mhc.site import space
from helion_sinkhorn.ops.mhc.site.finish import launch as finish
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.mhc.split import launch as split_launch
from helion_sinkhorn.runtime.kernel import Choice, Kernel, default_choice
from helion_sinkhorn.runtime.launch import NO_CHOICES, Choices, device_of
from helion_sinkhorn.runtime.views import flattened, flattened_streams, parameter
from helion_sinkhorn.runtime.wanted import Some

WEIGHTS, BACKWARD = "hc_site_weights", "hc_site_backward"
KERNELS = {
    # the backward of hc_pre without dx
    WEIGHTS: Kernel(
        WEIGHTS, pre_launch.KERNELS[pre_launch.BACKWARD].body, SiteCall,
        space.weights_default, space.weights_space, pre_launch.backward_facts,
    ),
    # the backward of hc_mixes with the other gradients of the streams
    BACKWARD: Kernel(
        BACKWARD, mixes_launch.KERNELS[mixes_launch.BACKWARD].body, SiteCall,
        space.backward_default, space.backward_space,
        lambda chosen, call, *values: mixes_launch.backward_facts(chosen, call.mixes, *values),
        traits=frozenset({"splits", "in place"}),
    ),
}  # fmt: skip
Tensors = tuple[torch.Tensor, ...]


@functools.lru_cache(maxsize=4096)
def call_for(n: int, columns: int, dtype: torch.dtype, precision: str) -> SiteCall:
    """What the configs of a call are chosen for."""
    return SiteCall(str(dtype)[6:], n, columns, precision)


@functools.lru_cache(maxsize=4096)
def default_of(call: SiteCall, device: Device) -> Choice:
    """The default config of the whole gradient."""
    return default_choice(KERNELS[BACKWARD], call, device)


def forward(
    x: torch.Tensor, site: SiteParameters, weights: Some, options: SiteOptions, out: Out = NONE
) -> Tensors:
    """(y, pre, post, comb, mixes, norms) of torch_op's contract; the first four in `out` if it has them.

    The site has no comb, and its norm_weight is in fn.
    """
    n, columns = x.shape[-2:]
    streams, call = flattened_streams(x), call_for(n, columns, x.dtype, options.precision)
    made = mixes_launch.sums(streams, site.fn, call.mixes, options.precision)
    streams, norm, eps = streams.view(x.shape), site.y_norm_weight, options.y_norm_eps
    if weights is None and norm is not None and finish.is_short(x):
        return finish.run(made, site, streams, None, call, options, out)
    # comes first, since pre may be written over the weights
    given = norm, eps, out.y, out.quantized
    y = None if weights is None else collapsed(streams, weights, *given)
    coeffs = coefficients(made, x.shape[:-2], site, n, call.mixes, options, out)
    return collapsed(streams, coeffs[0], *given) if y is None else y, *coeffs


def collapsed(
    streams: torch.Tensor,
    by: torch.Tensor,
    norm: Some,
    eps: float,
    into: Some,
    quantized: Quantized | None = None,
) -> torch.Tensor:
    """y of streams and their weights, or u, the norm of y; rounded into `quantized` too, if it is given."""
    if norm is not None:
        return normed_launch.forward(streams, by, norm, eps, into=into, quantized=quantized)
    y = pre_launch.forward(streams, by, into=into)
    quantized_launch.write(y, quantized)
    return y


def coefficients(
    partials: Partials,
    lead: torch.Size,
    site: SiteParameters,
    n: int,
    call: MixesCall,
    options: SiteOptions,
    out: Out = NONE,
) -> Tensors:
    """(pre, post, comb, mixes, norms), each (*lead, ...), from the partial sums of the projection.

    mixes and norms are views, which autograd lets nobody change in place; callers do not get them.

    There are two launches.  The kernel of the coefficients can add partial sums itself, but has one thread a
    token: on an H200 a whole site in a graph, 128 tokens of 4 x 7168 with 28 partial sums each, takes 24 us
    with two launches and 32 with one.
    """
    made = mixes_launch.reduce(partials, call, options.norm_eps, options.eps_outside)
    mixes, norms = (t.view(*lead, t.size(1)) for t in made)
    given = mixes, site.scale, site.base, options.of_split(n), torch.float32
    return *split_launch.forward(*given, into=out[1:4]), mixes, norms


def backward(
    upstream: SiteGradients,
    kept: Kept,
    options: SiteOptions,
    dtype: torch.dtype | None = None,
    choices: Choices = NO_CHOICES,
    wanted: Sequence[bool] = (True,) * 5,
    into: torch.Tensor | None = None,
) -> tuple[Some, ...]:
    """(dx, dfn in float32, dbase and dscale in one tensor, dweights, the gradient of y_norm_weight).

    The contract is torch_op's.

    Args:
        wanted: which results to compute; the others are None, and so is dweights with `own` or without dy.
        into: contiguous memory for dx; it may be that of the upstream gradient of the streams.
        dtype: the dtype of dx; None for the dtype of x.
        choices: choices for KERNELS, by name, in place of the stored ones.
    """
    x, site, weights, mixes, norms, own = kept
    n, columns = x.shape[-2:]
    streams, projection = flattened(x, 2), parameter(site.fn)
    call = call_for(n, columns, x.dtype, options.precision)
    weights = flattened(weights, 1)
    dy, of_collapse, dnorm = collapse_gradients(
        upstream.dy, streams, weights, site.y_norm_weight, options.y_norm_eps, call, choices.get(WEIGHTS),
        (wanted[0], wanted[3] or (own and any(wanted[:3])), wanted[4]),
    )  # fmt: skip
    of_coefficients = upstream.of_coefficients
    if own and of_collapse is not None:
        of_coefficients = of_coefficients.with_pre(of_collapse)
    dweights = None if own or of_collapse is None else of_collapse.view(*x.shape[:-2], n)
    of_projection = wanted[:2]
    needed = any(of_projection), wanted[2]
    if not any(needed):
        return None, None, None, dweights, dnorm
    given = mixes, site.scale, site.base, options.of_split(n)
    dmixes, sums = split_launch.backward(of_coefficients, *given, needed)
    if dmixes is None:
        return None, None, sums, dweights, dnorm
    of_tokens = (flattened(t, 1) for t in (dmixes, mixes, norms))
    projected = mixes_launch.upstream(*of_tokens, call.mixes)
    named = choices.get(BACKWARD)
    if named is None and site.y_norm_weight is not None and dy is not None:
        # configs are timed with a dy of x's dtype.  In float32, which takes more registers, the config of
        # 8192 x 7168 on an H200 spills 216 bytes a thread, and the default none
        named = default_of(call, device_of(x))
    if into is None and wanted[0]:
        into = x.new_empty(x.shape, dtype=dtype)
    of_residual = None if upstream.dstreams is None else flattened(upstream.dstreams, 2)
    dx_of = Dx(of_residual, dy, None if dy is None else weights, dtype, into)
    # no view is returned: the other owners of its memory would be unknown (`own_gradient`)
    _, dfn = mixes_launch.gradients(
        projected, streams, projection, call, named, dx_of, KERNELS[BACKWARD], of_projection
    )
    return into if wanted[0] else None, dfn, sums, dweights, dnorm


def collapse_gradients(
    dy: torch.Tensor | None,
    streams: torch.Tensor,
    weights: torch.Tensor,
    y_norm_weight: torch.Tensor | None,
    eps: float,
    call: SiteCall,
    choice: Choice | None,
    wanted: tuple[bool, bool, bool],
) -> tuple[Some, Some, Some]:
    """(dy (T, C), dweights (T, n), the gradient of y_norm_weight) of streams (T, n, C), each if it is wanted.

    Without a norm dy is the given gradient of the result; with one it is computed from that, and stays in
    float32 without a rounding.
    """
    if dy is None:
        return None, None, None
    dy, (of_y, of_weights, of_norm) = flattened(dy, 1), wanted
    dweights = torch.empty_like(weights) if of_weights else None
    if y_norm_weight is not None:
        made = torch.empty_like(dy, dtype=torch.float32) if of_y else None
        given = dy, streams, weights, y_norm_weight, eps, (None, made, dweights, None), of_norm
        dnorm = normed_launch.gradients(*given) if any(wanted) else None
        return made, dweights, dnorm
    if dweights is not None:
        made = None, dweights
        pre_launch.gradients(dy, streams, weights, made, KERNELS[WEIGHTS], call, choice)
    return dy, dweights, None
