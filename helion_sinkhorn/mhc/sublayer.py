"""HyperSublayer: a sublayer with its norm and its site, from residual streams to residual streams."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from helion_sinkhorn.mhc.boundary import HyperBoundary
from helion_sinkhorn.mhc.modules import HyperConnection, apart_for
from helion_sinkhorn.mhc.norm import is_plain
from helion_sinkhorn.ops.mhc.post.api import hc_post
from helion_sinkhorn.ops.mhc.pre.api import hc_pre
from helion_sinkhorn.ops.mhc.site.crossing import Crossing
from helion_sinkhorn.runtime.checks import check_flag, check_tensor, type_of
from helion_sinkhorn.runtime.export import named_for_export
from helion_sinkhorn.runtime.pieces import COMPUTING


class Pending(NamedTuple):
    """Streams to which a sublayer's output is still to be added, in the form that `HyperBoundary` takes."""

    f: torch.Tensor
    """(..., C), the sublayer's output."""
    streams: torch.Tensor
    """(..., n, C), the streams before it."""
    post: torch.Tensor
    """(..., n)."""
    comb: torch.Tensor
    """(..., n, n)."""
    pre: torch.Tensor
    """(..., n), the weights of the next collapse."""


named_for_export(Pending)


class HyperSublayer(torch.nn.Module):
    """A sublayer in the mHC residual path: residual streams to the new residual streams in one call.

        y, post, comb, residual = connection.enter(streams, y_norm=norm)
        f = sublayer(y, ...)
        new streams = hc_post(f, residual, post, comb)
    This is DeepSeek-V4's form.  In the form of DeepSeek-V4.1 (delayed_pre=True) each collapse takes the
    weights of the site before, so that one call of `hc_boundary` makes the update of one sublayer and the
    input of the next.  Such a module returns a `Pending`, which the next module takes.  The first module
    takes streams, and its sublayer gets stream 0; `collapse` makes the final hidden state of the last
    `Pending`.

    Args:
        sublayer: a module from (..., C) to (..., C), such as attention or an MLP.
        hidden_size: C.
        hc_mult: n, the number of streams, 1 to 16.
        norm: a module from (..., C) to (..., C); None for torch.nn.RMSNorm of C with norm_eps.  A
            torch.nn.RMSNorm without hooks is computed in the collapse; any other module is called.  Pass
            torch.nn.Identity() if the sublayer has a norm of its own.
        delayed_pre: False for DeepSeek-V4's form, True for DeepSeek-V4.1's.
        options: the arguments of HyperConnection: sinkhorn_iters, eps, norm_eps, form, merged, device and the
            others.

    State dict: connection.fn, connection.base and connection.scale, as in HyperConnection, in float32;
        norm.weight, or the entries of the given norm; and the sublayer's entries under sublayer.

    Numerical policy: results and gradients have the bits of the three calls, or of HyperBoundary.

    Raises:
        TypeError: sublayer or norm is no module, or HyperConnection refuses the options.
        ValueError: streams are not (..., n, C), or the coefficients of a `Pending` were rounded.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880).
    """

    def __init__(
        self,
        sublayer: torch.nn.Module,
        hidden_size: int,
        hc_mult: int = 4,
        *,
        norm: torch.nn.Module | None = None,
        delayed_pre: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        check_flag("delayed_pre", delayed_pre)
        for name, module in (("sublayer", sublayer), ("norm", norm)):
            if not (isinstance(module, torch.nn.Module) or (name == "norm" and module is None)):
                raise TypeError(f"{name} is {type_of(module)}; pass a torch.nn.Module")
        kind = HyperBoundary if delayed_pre else HyperConnection
        self.delayed_pre = delayed_pre
        self.connection = kind(hidden_size, hc_mult, **options)
        if norm is None:
            eps, device = self.connection.options.norm_eps, options.get("device")
            norm = torch.nn.RMSNorm(self.connection.hidden_size, eps=eps, device=device)
        self.norm, self.sublayer = norm, sublayer

    def forward(self, streams: torch.Tensor | Pending, *arguments: Any, **keywords: Any) -> Any:
        """From the streams before the sublayer to the streams after it.

        Args:
            streams: (..., n, C); with delayed_pre the `Pending` of the sublayer before, or (..., n, C) at the
                first sublayer.
            *arguments: passed on to the sublayer after its input.
            **keywords: passed on to the sublayer.

        Returns:
            The new streams (..., n, C), or a `Pending` with delayed_pre.  If the sublayer returns a tuple,
            its first element is the output, and the result is a tuple of the streams and the other elements.
        """
        norm = self.norm if is_plain(self.norm, self.connection.hidden_size) else None
        if self.delayed_pre:
            y, pre, post, comb, residual = self._cross(streams, norm)
        else:
            y, post, comb, residual = self.connection.enter(streams, y_norm=norm)
        result = self.sublayer(self.norm(y) if norm is None else y, *arguments, **keywords)
        f, *others = result if isinstance(result, tuple) else (result,)
        if self.delayed_pre:
            new = Pending(f, residual, post, comb, pre)
        else:
            new = self._update(f, residual, post, comb)
        return (new, *others) if isinstance(result, tuple) else new

    def collapse(self, pending: Pending) -> torch.Tensor:
        """The hidden state (..., C) after the last sublayer, from the `Pending` that it returned."""
        return hc_pre(self._update(*pending[:4]), pending.pre, **self._how)

    @property
    def _how(self) -> dict[str, Any]:
        return {"merged": self.connection.merged, "implementation": self.connection.implementation}

    def _update(self, *update: torch.Tensor) -> torch.Tensor:
        return hc_post(*update, comb_order=self.connection.options.comb_order, **self._how)

    def _cross(self, streams: torch.Tensor | Pending, norm: torch.nn.Module | None) -> Crossing:
        if isinstance(streams, Pending):
            _check_not_rounded(streams)
            return self.connection(*streams, y_norm=norm)
        check_tensor("streams", streams, "(..., n, C)")
        apart = apart_for(self.connection, streams)
        # made from the streams, so that they are sharded alike
        ones, zeros = torch.ones_like(apart[..., :1, 0]), torch.zeros_like(apart[..., 1:, 0])
        return self.connection(None, streams, pre=torch.cat([ones, zeros], -1), y_norm=norm)


def _check_not_rounded(pending: Pending) -> None:
    wanted, dtype = COMPUTING[pending.streams.dtype], pending.comb.dtype
    if dtype != wanted:
        raise ValueError(
            f"comb between two sublayers is {dtype}; pass it on as it was made, {wanted}: a policy of FSDP2 "
            "needs cast_forward_inputs=False"
        )
