"""A layer's site of Megatron Core by this package, beside the original or its equations in PyTorch.

    pip install megatron-core
    python examples/megatron_site.py              # 10 s on one CPU core

The original is in Megatron-LM's branch dev, in no release yet; without it, the equations here stand in.
"""

from __future__ import annotations

import argparse
import contextlib
from types import SimpleNamespace

if __name__ == "__main__":  # before torch is imported, which takes seconds
    argparse.ArgumentParser("python examples/megatron_site.py", description=__doc__).parse_args()

import torch

HIDDEN, STREAMS, EPS = 64, 4, 1e-6


class Equations(torch.nn.Module):
    """What Megatron's HyperConnectionModule computes, in PyTorch, with its parameters and signatures."""

    def __init__(self, config, layer_number):
        super().__init__()
        self.config, self.n, rows = config, STREAMS, STREAMS * (STREAMS + 2)
        self.mapping_proj = torch.nn.Linear(self.n * config.hidden_size, rows, bias=False)
        for name in ("alpha_pre", "alpha_post", "alpha_res"):
            self.register_parameter(name, torch.nn.Parameter(torch.ones(1)))
        self.bias = torch.nn.Parameter(torch.zeros(rows))

    def forward(self, hidden_states, mhc_recompute_manager=None, output_slot=None, mhc_state=None):
        n, config, delayed = self.n, self.config, self.config.mhc_single_pass
        parts = [n, n, n * n]
        z, q = self.mapping_proj(hidden_states), hidden_states.square().mean(-1, keepdim=True)
        r = (q + config.layernorm_epsilon).rsqrt() if delayed else 1 / (q.sqrt() + EPS)
        alphas = zip((self.alpha_pre, self.alpha_post, self.alpha_res), parts, strict=True)
        a = r * z * torch.cat([alpha.expand(part) for alpha, part in alphas]) + self.bias
        pre, post, comb = a.split(parts, -1)
        pre, post = pre.sigmoid() + EPS, 2 * post.sigmoid()
        comb = comb.unflatten(-1, (n, n)).softmax(-1) + EPS
        for k in range(2 * config.mhc_sinkhorn_iterations - 1):
            comb = comb / (comb.sum(-2 if k % 2 == 0 else -1, keepdim=True) + EPS)
        streams = hidden_states.unflatten(-1, (n, -1))
        weights = mhc_state.pre_mix if delayed else pre
        if delayed:
            mhc_state.pre_mix = pre
        y = streams[..., 0, :] if weights is None else (weights[..., None] * streams).sum(-2)
        return y, comb, post, hidden_states

    def fused_h_res_h_post_bda(self, h_res, residual, h_post, output, dropout_prob, training, *_):
        streams = h_res.mT @ residual.unflatten(-1, (self.n, -1))
        return (streams + h_post[..., None] * sum(output)[..., None, :]).flatten(-2)


def make_config(single_pass: bool = False):
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(num_layers=2, hidden_size=HIDDEN, num_attention_heads=2)
    vars(config).update(
        num_residual_streams=STREAMS, mhc_sinkhorn_iterations=20, mhc_init_gating_factor=0.01,
        use_fused_mhc=False, mhc_single_pass=single_pass, mhc_epsilon=EPS,
    )  # fmt: skip
    return config


def original(single_pass: bool) -> type[torch.nn.Module]:
    """Megatron's class where it is installed, in this form; else its equations."""
    try:
        from megatron.core.transformer import hyper_connection
    except ImportError:
        return Equations
    # it marks for a profiler, which needs a GPU, and compiles
    torch.cuda.nvtx.range = lambda *_: contextlib.nullcontext()
    torch.compiler.set_stance("force_eager")
    has_form = not single_pass or hasattr(hyper_connection, "SinglePassMHCState")
    return hyper_connection.HyperConnectionModule if has_form else Equations


def run(sites, x: torch.Tensor, upstream: torch.Tensor) -> list[torch.Tensor]:
    """New streams after two sublayers, and the gradients of the streams before and of all parameters."""
    streams, state = x.requires_grad_(), SimpleNamespace(pre_mix=None)
    for site in sites:
        delayed = {"mhc_state": state} if site.config.mhc_single_pass else {}
        y, h_res, h_post, x_l = site(streams, mhc_recompute_manager=None, **delayed)
        output = torch.tanh(y), torch.linspace(-1, 1, HIDDEN)
        streams = site.fused_h_res_h_post_bda(h_res, x_l, h_post, output, 0.0, True, False, None)
    # V4.1's last site has the weights of the collapse at the end
    used = streams if state.pre_mix is None else streams * state.pre_mix.repeat_interleave(HIDDEN, -1)
    wanted = [x, *(p for site in sites for _, p in sorted(site.named_parameters()))]
    return [streams.detach(), *torch.autograd.grad(used, wanted, upstream)]


def main() -> list[float]:
    """Largest difference of a result or gradient over the largest entry of the original's, in each form."""
    from helion_sinkhorn.integrations.megatron import HyperConnectionModule

    torch.manual_seed(0)
    differences = []
    for form, config in (("V4", make_config()), ("V4.1", make_config(single_pass=True))):
        kind = original(config.mhc_single_pass)
        theirs, ours = ([kind_of(config, k) for k in (1, 2)] for kind_of in (kind, HyperConnectionModule))
        for site, other in zip(ours, theirs, strict=True):
            for parameter in other.parameters():
                torch.nn.init.normal_(parameter, std=0.1 if parameter.ndim > 1 else 1.0)
            site.load_state_dict(other.state_dict())
        x, upstream = torch.randn(2, 16, 2, STREAMS * HIDDEN)
        x *= 1e-3  # so that it matters where the norm has its eps
        pairs = list(zip(run(ours, x, upstream), run(theirs, x, upstream), strict=True))
        differences.append(max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs))
        print(f"{form}, beside {kind.__module__}.{kind.__name__}: new streams and {len(pairs) - 1} gradients")
        print(f"differ by at most {differences[-1]:.1e} of their largest entry")
    return differences


if __name__ == "__main__":
    main()
