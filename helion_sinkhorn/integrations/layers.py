"""Layers for Hugging Face's `kernels`, which runs their forwards on the modules of transformers.

`kernels` refuses a layer with a constructor or members of its own; transformers sets the attributes.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.mhc.functional import hc_head
from helion_sinkhorn.ops.mhc.site.api import hc_site


class DeepseekV4HyperConnection(torch.nn.Module):
    """Coefficients and collapse of a site; GLM-5.3's connection is the same."""

    can_torch_compile = True

    def forward(self, hidden_streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        site = hc_site(
            hidden_streams, self.fn, self.scale, self.base, self.hc_sinkhorn_iters, self.hc_eps,
            self.input_norm.eps,
        )  # fmt: skip
        return site.post, site.comb, site.y


class DeepseekV4HyperHead(torch.nn.Module):
    """The collapse after the last layer."""

    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        eps = {"norm_eps": self.input_norm.eps, "eps": self.eps}
        return hc_head(x, self.hc_fn, self.hc_scale, self.hc_base, **eps)
