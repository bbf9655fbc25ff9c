"""Modules over `helion_sinkhorn.sinkhorn`."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.api import DEFAULT_EPS, MOST_ITERS, Options, check_options, sinkhorn
from helion_sinkhorn.ops.sinkhorn.implicit.systems import Implicit
from helion_sinkhorn.runtime.checks import as_int, check_implementation, check_int, check_tensor
from helion_sinkhorn.runtime.torch_op import without_autocast


class Sinkhorn(torch.nn.Module):
    """P = sinkhorn(logits) with fixed options; arguments, policy and errors are as in `sinkhorn`."""

    def __init__(
        self,
        n_iters: int = 20,
        *,
        eps: float = DEFAULT_EPS,
        form: str = "deepseek",
        first: str = "rows",
        backward: str | Implicit = "exact",
        implementation: str = "auto",
        out_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_options(Options(n_iters, eps, form, first, backward, out_dtype))
        self.options = {
            "n_iters": as_int(n_iters), "eps": eps, "form": form, "first": first, "backward": backward,
            "implementation": check_implementation(implementation), "out_dtype": out_dtype,
        }  # fmt: skip

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """(..., n, m) logits to (..., n, m) P."""
        return sinkhorn(logits, **self.options)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class FusedMHC(torch.nn.Module):
    """Drop-in replacement for triton-sinkhorn's module of this name: log-domain Sinkhorn, rows first.

        P = exp of mhc_iters times (X -= logsumexp(X, -1); X -= logsumexp(X, -2))

    Args:
        mhc_iters: the number of iterations.
    Numerical policy: autocast is off inside, arithmetic is in float32, with one cast back to the input's
        dtype.  Logits are clamped at -1e5 as in triton-sinkhorn, so that a masked row stays finite.  Any
        leading shape is accepted.
    Raises:
        TypeError, ValueError: mhc_iters is no int from 0 to 2^20, or `sinkhorn` refuses the logits.
    Source: triton-sinkhorn, mhc/layer.py, FusedMHC.
    """

    CLAMP = -1e5

    def __init__(self, mhc_iters: int = 20) -> None:
        super().__init__()
        self.mhc_iters = check_int("mhc_iters", mhc_iters, 0, MOST_ITERS)

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """(..., n, n) logits of any floating dtype to (..., n, n) P of that dtype."""
        # checked before they are converted to float32, which `sinkhorn` accepts
        check_tensor("logits", logits, "(..., n, n)")
        with without_autocast(logits):
            clamped = logits.float().clamp(min=self.CLAMP)
            return sinkhorn(clamped, self.mhc_iters, form="log").to(logits.dtype)

    def extra_repr(self) -> str:
        return f"mhc_iters={self.mhc_iters}"


class SinkhornLaneMixer(torch.nn.Module):
    """Mix the lanes of x by a learned doubly stochastic matrix: out[..., o, d] = sum_i P[o, i] x[..., i, d].

    Args:
        num_lanes: the number of lanes, which is the size of the square matrix.
        iters: the number of Sinkhorn iterations.
    Numerical policy: P and the product are computed in float32 (on a GPU in TF32 where the process allows
        that for torch.matmul), and the result has the dtype of x.
    Raises:
        TypeError: num_lanes or iters is no int, x_lanes no tensor of a floating dtype.
        ValueError: num_lanes is less than 1, iters out of range, or x_lanes has another shape.
    Source: triton-sinkhorn's README, FusedSinkhornLaneMixer.
    """

    def __init__(self, num_lanes: int, iters: int = 20) -> None:
        super().__init__()
        self.lanes = num_lanes = check_int("num_lanes", num_lanes, 1)
        check_int("iters", iters, 0, MOST_ITERS)
        self.mixing_logits = torch.nn.Parameter(torch.randn(num_lanes, num_lanes) * 0.02)
        self.sinkhorn = FusedMHC(mhc_iters=iters)

    def forward(self, x_lanes: torch.Tensor) -> torch.Tensor:
        """(batch, seq, lanes, dim) to the same shape; any leading shape before (lanes, dim)."""
        check_tensor("x_lanes", x_lanes, f"(..., {self.lanes}, dim)")
        if x_lanes.dim() < 2 or x_lanes.size(-2) != self.lanes:
            raise ValueError(
                f"x_lanes has shape {tuple(x_lanes.shape)}; "
                f"pass (..., {self.lanes}, dim), lanes before features"
            )
        with without_autocast(x_lanes):
            p = self.sinkhorn(self.mixing_logits.float())
            return torch.einsum("...id,oi->...od", x_lanes.float(), p).to(x_lanes.dtype)

    def extra_repr(self) -> str:
        return f"num_lanes={self.lanes}"
