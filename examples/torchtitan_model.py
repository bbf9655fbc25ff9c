"""Put this package's residual path into torchtitan's DeepSeek-V4, and compare a layer with the original.

    python examples/torchtitan_model.py           # 10 s on one CPU core

A training script calls `use_kernels(model)` before it parallelises the model.  torchtitan has the modules on
its main branch, in no release yet; without it, equations in PyTorch stand in.  On streams (tokens, n, C), as
in its model, its HcPost mixes nothing; this package's does, as the original on (batch, tokens, n, C).
"""

from __future__ import annotations

import argparse
from types import MethodType, SimpleNamespace

if __name__ == "__main__":  # before torch is imported, which takes seconds
    argparse.ArgumentParser("python examples/torchtitan_model.py", description=__doc__).parse_args()

import torch

from helion_sinkhorn import hc_head, hc_post, hc_site

N, WIDTH, EPS = 4, 64, 1e-6


def pre(self, x):
    # torchtitan has no eps among the exponentials
    options = {"eps": 0.0, "pre_eps": self.sinkhorn.eps, "norm_eps": self.norm_eps}
    given = x, self.hc_fn, self.hc_scale, self.hc_base, self.sinkhorn.sinkhorn_iters
    return hc_site(*given, **options)[:3]


def post(self, x, residual, post, comb):
    return hc_post(x, residual, post, comb)


def head(self, x):
    return hc_head(x, self.hc_fn, self.hc_scale, self.hc_base, norm_eps=self.norm_eps, eps=self.eps)


def use_kernels(model: torch.nn.Module) -> int:
    """Give every HcPre, HcPost and HcHead of a model a forward of this package; return how many there are."""
    forwards = {"HcPre": pre, "HcPost": post, "HcHead": head}
    modules = [m for m in model.modules() if type(m).__name__ in forwards]
    for module in modules:
        module.forward = MethodType(forwards[type(module).__name__], module)
    return len(modules)


class Equations(torch.nn.Module):
    """What torchtitan's HcPre and HcHead have in common, in PyTorch."""

    def __init__(self, rows: int, scales: int):
        super().__init__()
        self.hc_fn = torch.nn.Parameter(torch.empty(rows, N * WIDTH))
        self.hc_base, self.hc_scale = (torch.nn.Parameter(torch.empty(k)) for k in (rows, scales))
        self.norm_eps, self.eps, self.sinkhorn = EPS, EPS, SimpleNamespace(sinkhorn_iters=20, eps=EPS)

    def logits(self, x, scale):
        flat = x.flatten(-2)
        r = (flat.square().mean(-1, keepdim=True) + self.norm_eps).rsqrt()
        return r * (flat @ self.hc_fn.mT) * scale + self.hc_base


class HcPre(Equations):
    def forward(self, x):
        scale = self.hc_scale.repeat_interleave(torch.tensor([N, N, N * N]))
        pre, post, comb = self.logits(x, scale).split([N, N, N * N], -1)
        comb = comb.unflatten(-1, (N, N))
        comb = (comb - comb.amax(-1, keepdim=True)).exp()
        for k in range(2 * self.sinkhorn.sinkhorn_iters):
            comb = comb / (comb.sum(-1 if k % 2 == 0 else -2, keepdim=True) + EPS)
        return ((pre.sigmoid() + EPS)[..., None] * x).sum(-2), 2 * post.sigmoid(), comb


class HcPost(torch.nn.Module):
    def forward(self, x, residual, post, comb):
        return post[..., None] * x[..., None, :] + comb.mT @ residual


class HcHead(Equations):
    def forward(self, x):
        return ((self.logits(x, self.hc_scale).sigmoid() + EPS)[..., None] * x).sum(-2)


def make_parts() -> torch.nn.ModuleDict:
    try:
        from torchtitan.models.deepseek_v4 import mhc
    except ImportError:
        pre, post, head = HcPre(N * (N + 2), 3), HcPost(), HcHead(N, 1)
    else:
        pre, head = (kind.Config(hc_mult=N, dim=WIDTH).build() for kind in (mhc.HcPre, mhc.HcHead))
        post = mhc.HcPost.Config().build()
    parts = torch.nn.ModuleDict({"pre": pre, "post": post, "head": head})
    for parameter in parts.parameters():
        torch.nn.init.normal_(parameter, std=0.1 if parameter.ndim > 1 else 1.0)
    return parts


def results(parts, x, upstream):
    y, post, comb = parts["pre"](x)
    out = parts["head"](parts["post"](torch.tanh(y), x, post, comb))
    return [out.detach(), *torch.autograd.grad(out, [x, *parts.parameters()], upstream)]


def main() -> float:
    """Largest difference of the result or a gradient, over the largest entry of the original's."""
    torch.manual_seed(0)
    parts = make_parts()
    given = torch.randn(2, 16, N, WIDTH, requires_grad=True), torch.randn(2, 16, WIDTH)
    theirs = results(parts, *given)
    print(f"{use_kernels(parts)} modules of {type(parts['pre']).__module__} replaced")
    ours = results(parts, *given)
    apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True))
    print(f"the result and {len(ours) - 1} gradients differ by at most {apart:.1e} of their largest entry")
    return apart


if __name__ == "__main__":
    main()
