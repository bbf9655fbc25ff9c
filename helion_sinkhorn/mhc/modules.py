"""The modules of the mHC residual path: HyperConnection, HyperHead."""

from __future__ import annotations

from typing import NamedTuple

import torch

from helion_sinkhorn.mhc.float32 import Float32Parameters
from helion_sinkhorn.mhc.functional import hc_head
from helion_sinkhorn.mhc.main_grad import into_main_grad
from helion_sinkhorn.mhc.norm import with_norm
from helion_sinkhorn.ops.mhc.merged import joined
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.site.api import Site
from helion_sinkhorn.ops.mhc.site.crossing import check_site, crossing
from helion_sinkhorn.ops.mhc.streams import MOST_STREAMS, refuse_merged
from helion_sinkhorn.runtime.checks import check_finite, check_flag, check_implementation, check_int

INITIALIZER_RANGE = 0.02
"""The standard deviation of a new projection; base begins at 0 and scale at 1, as in transformers."""


class _OfStreams(Float32Parameters):
    """What both modules have: the sizes of their streams, how these are kept, and options in words."""

    def __init__(self, hidden_size: int, hc_mult: int, merged: bool, initializer_range: float) -> None:
        super().__init__()
        self.hidden_size = check_int("hidden_size", hidden_size, 1)
        self.hc_mult = check_int("hc_mult", hc_mult, 1, MOST_STREAMS)
        accepted = "a finite float of at least 0, the standard deviation of a fresh projection"
        check_finite("initializer_range", initializer_range, accepted)
        if initializer_range < 0:
            raise ValueError(f"initializer_range is {initializer_range}; pass {accepted}")
        check_flag("merged", merged)
        self.initializer_range, self.merged = initializer_range, merged

    def extra_repr(self) -> str:
        options = {"hc_mult": self.hc_mult, **self.options._asdict()}
        options |= {"merged": self.merged, "implementation": self.implementation}
        return f"{self.hidden_size}, " + ", ".join(f"{name}={value!r}" for name, value in options.items())


class HyperConnection(_OfStreams):
    """One site of the mHC residual path: from streams to the coefficients and the input of a sublayer.

        mixes = fn x / rms(x),  (pre, post, comb) = hc_split_sinkhorn(mixes, scale, base, ...)
        collapsed_c = sum_i pre_i x_ic
    The sublayer's output f then updates the streams: `hc_post(f, residual, post, comb)`.  `enter` returns the
    residual, which is x with one gradient for all its uses (`hc_site`).  Calling the module returns the
    results of the module of transformers, and autograd adds the gradient that x has as the residual.

    Args:
        hidden_size: C.
        hc_mult: n, the number of streams, 1 to 16.
        sinkhorn_iters: T, the number of iterations, as in `hc_split_sinkhorn`; with 0 comb is its logits.
        eps: added to Sinkhorn's softmax and denominators, and to pre; 0, or 1e-12 to 1.
        norm_eps: added to the mean square under the root, as in `hc_mixes`.
        post_mult: the factor of post, as in `hc_split_sinkhorn`.
        pre_eps: added to pre; None for eps.
        post_eps: added to post.
        comb_order: "io" for comb[input stream, output stream], "oi" for its transpose.
        precision: "float32" or "tf32" for the projection's products, as in `hc_mixes`.
        eps_outside: add norm_eps to the root and not under it.
        form: "deepseek" or "log", the form of Sinkhorn, as in `hc_split_sinkhorn`.
        merged: streams are (..., n C), as some models keep them, and so is the residual.
        initializer_range: the standard deviation of fn in `reset_parameters`.
        implementation: "auto", "helion" or "pytorch".
        device: the device of the parameters; "meta" is accepted too.

    Attribute `fuse_wgrad_accumulation`, by default False: if it is True, gradients are added to the
        parameters' `main_grad`, if they have one (`into_main_grad`).

    Parameters, float32 under any default dtype and after any conversion except to float64
        (`Float32Parameters`): fn (n^2 + 2n, n C), base (n^2 + 2n,), scale (3,).  Names, shapes and order of
        rows are as in DeepseekV4HyperConnection of transformers, and state dicts fit both ways.

    Numerical policy: as for `hc_site`; autocast is off inside.

    Raises:
        TypeError, ValueError: an option that the operators do not take, when the module is made.
        ValueError: streams that are not (..., hc_mult, hidden_size), or merged, when it is called.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880).
    """

    fuse_wgrad_accumulation = False

    def __init__(
        self,
        hidden_size: int,
        hc_mult: int = 4,
        sinkhorn_iters: int = 20,
        eps: float = 1e-6,
        norm_eps: float = 1e-6,
        *,
        post_mult: float = 2.0,
        pre_eps: float | None = None,
        post_eps: float = 0.0,
        comb_order: str = "io",
        precision: str = "float32",
        eps_outside: bool = False,
        form: str = "deepseek",
        merged: bool = False,
        initializer_range: float = INITIALIZER_RANGE,
        implementation: str = "auto",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(hidden_size, hc_mult, merged, initializer_range)
        self.options = SiteOptions(
            sinkhorn_iters, eps, norm_eps, post_mult, pre_eps, post_eps, comb_order, precision, eps_outside,
            form=form,
        ).checked()  # fmt: skip
        self.implementation = check_implementation(implementation)
        rows, columns = self.hc_mult * (self.hc_mult + 2), self.hc_mult * self.hidden_size
        self.fn, self.base, self.scale = map(
            torch.nn.Parameter, _empty(device, (rows, columns), (rows,), (3,))
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set fn to normal numbers, base to 0 and scale to 1."""
        _reset(self.fn, self.base, self.scale, self.initializer_range)

    def forward(
        self,
        streams: torch.Tensor,
        *,
        with_residual: bool = False,
        y_norm: torch.nn.Module | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Streams (..., n, C) to post (..., n), comb (..., n, n), collapsed (..., C), as in transformers.

        If requested, the residual comes last; `enter` names the results.
        """
        streams = apart_for(self, streams)
        site, options = self.site, self.options
        if y_norm is not None:
            site, options = with_norm(site, options, y_norm, streams)
        implementation = check_implementation(self.implementation)
        check_site(streams, site)
        y, _, post, comb, residual = crossing(None, streams, site, None, options, implementation)
        if not with_residual:
            return post, comb, y
        return post, comb, y, joined(residual) if self.merged else residual

    @property
    def site(self) -> SiteParameters:
        """The parameters as a record, as the operators take them."""
        parameters = self.fn, self.scale, self.base
        if self.fuse_wgrad_accumulation:
            parameters = map(into_main_grad, parameters)
        return SiteParameters(*parameters)

    def enter(self, streams: torch.Tensor, *, y_norm: torch.nn.Module | None = None) -> Site:
        """Streams to the sublayer's input y, and to post, comb and residual, which `hc_post` takes.

        Args:
            streams: (..., n, C).
            y_norm: the RMSNorm before the sublayer, a module with weight (C,), and eps or variance_epsilon.
                y is then the result of this norm, computed in one pass: pass the norm instead of calling it.
                Its parameters stay in that module, and its hooks are not called.
        """
        # the module is called, so that FSDP and hooks see it
        given = {} if y_norm is None else {"y_norm": y_norm}
        post, comb, y, residual = self(streams, with_residual=True, **given)
        return Site(y, post, comb, residual)


class HeadOptions(NamedTuple):
    """The options of `hc_head` by their names."""

    eps: float
    norm_eps: float
    precision: str
    eps_outside: bool


class HyperHead(_OfStreams):
    """The end of the mHC residual path: streams to one hidden state, `hc_head` with its parameters.

    Args:
        hidden_size: C.
        hc_mult: n, the number of streams, 1 to 16.
        eps: added to pre.
        norm_eps: added to the mean square under the root, as in `hc_mixes`.
        precision: "float32" or "tf32" for the projection's products, as in `hc_mixes`.
        eps_outside: add norm_eps to the root and not under it.
        merged: streams are (..., n C), as some models keep them.
        initializer_range: the standard deviation of hc_fn in `reset_parameters`.
        implementation: "auto", "helion" or "pytorch".
        device: the device of the parameters; "meta" is accepted too.

    Parameters, float32 as in HyperConnection: hc_fn (n, n C), hc_base (n,), hc_scale (1,), the names
        and shapes of DeepseekV4HyperHead in transformers.

    Numerical policy: as for `hc_head`; autocast is off inside.

    Raises:
        TypeError, ValueError: an option that the operators do not take, when the module is made.
        ValueError: streams that are not (..., hc_mult, hidden_size), or merged, when it is called.

    Source: DeepSeek-V4's inference code.
    """

    def __init__(
        self,
        hidden_size: int,
        hc_mult: int = 4,
        eps: float = 1e-6,
        norm_eps: float = 1e-6,
        *,
        precision: str = "float32",
        eps_outside: bool = False,
        merged: bool = False,
        initializer_range: float = INITIALIZER_RANGE,
        implementation: str = "auto",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(hidden_size, hc_mult, merged, initializer_range)
        hidden_size, hc_mult = self.hidden_size, self.hc_mult
        self.options = HeadOptions(eps, norm_eps, precision, eps_outside)
        self.implementation = check_implementation(implementation)
        columns = hc_mult * hidden_size
        x, fn, scale, base = _empty("meta", (0, hc_mult, hidden_size), (hc_mult, columns), (1,), (hc_mult,))
        hc_head(x, fn, scale, base, **self.options._asdict())
        self.hc_fn, self.hc_base, self.hc_scale = map(
            torch.nn.Parameter, _empty(device, (hc_mult, columns), (hc_mult,), (1,))
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set hc_fn to normal numbers, hc_base to 0 and hc_scale to 1."""
        _reset(self.hc_fn, self.hc_base, self.hc_scale, self.initializer_range)

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        """(..., n, C) to (..., C)."""
        streams = apart_for(self, streams)
        return hc_head(
            streams, self.hc_fn, self.hc_scale, self.hc_base,
            **self.options._asdict(), implementation=self.implementation,
        )  # fmt: skip


def apart_for(module: HyperConnection | HyperHead, streams: torch.Tensor) -> torch.Tensor:
    """The streams of a module as (..., n, C); raise ValueError where they are not as it takes them."""
    wanted = module.hc_mult, module.hidden_size
    if module.merged and isinstance(streams, torch.Tensor):
        entries = wanted[0] * wanted[1]
        if streams.shape[-1:] != (entries,):
            raise ValueError(
                f"streams has shape {tuple(streams.shape)}; pass (..., {entries}), {wanted[0]} streams of "
                f"{wanted[1]} entries side by side: the module was made with merged=True"
            )
        return streams.unflatten(-1, wanted)
    if isinstance(streams, torch.Tensor) and tuple(streams.shape[-2:]) != wanted:
        refuse_merged(streams, module.hc_mult, module.hc_mult * module.hidden_size, name="streams")
        one = streams.shape[-1:] == wanted[1:]
        raise ValueError(
            f"streams has shape {tuple(streams.shape)}; pass (..., {wanted[0]}, {wanted[1]}), streams before "
            f"features{f': hc_expand(h, {wanted[0]}) makes them of one hidden state' if one else ''}"
        )
    return streams


def _reset(fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor, deviation: float) -> None:
    # torch.nn.init is used since transformers makes it skip parameters that a checkpoint has filled
    torch.nn.init.normal_(fn, std=deviation)
    torch.nn.init.zeros_(base)
    torch.nn.init.ones_(scale)


def _empty(device: torch.device | str | None, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    # float32 is named, since models are made under a default dtype of bfloat16
    return [torch.empty(shape, device=device, dtype=torch.float32) for shape in shapes]
