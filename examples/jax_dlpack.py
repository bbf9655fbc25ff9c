"""Call `sinkhorn` from JAX, gradient included; arrays change hands through DLPack without a copy.

    pip install jax
    python examples/jax_dlpack.py          # 15 s on one CPU core

`jax.custom_vjp` tells JAX how to differentiate a function that PyTorch computes.  This works outside of
`jax.jit`; inside, JAX has no arrays to hand over, and `jax.pure_callback` has to stand around both
functions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python examples/jax_dlpack.py", description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1024)
    args = parser.parse_args(words)
    if args.batch < 1:
        parser.error(f"argument --batch: {args.batch} is no int of at least 1")
    return args


if __name__ == "__main__":  # before torch is imported, which takes seconds
    parsed()

import torch

from helion_sinkhorn import sinkhorn

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError:  # main says so
    jax = None


def sinkhorn_of_jax() -> Callable[[jax.Array], jax.Array]:
    """The mHC form with 20 iterations, on the device of the logits, and its gradient."""

    @jax.custom_vjp
    def call(logits: jax.Array) -> jax.Array:
        return jnp.from_dlpack(sinkhorn(torch.from_dlpack(logits)))

    def forward(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        return call(logits), logits

    def backward(logits: jax.Array, dp: jax.Array) -> tuple[jax.Array]:
        x = torch.from_dlpack(logits).requires_grad_()
        (dx,) = torch.autograd.grad(sinkhorn(x), x, torch.from_dlpack(dp))
        return (jnp.from_dlpack(dx),)

    call.defvjp(forward, backward)
    return call


def definition(logits: jax.Array, n_iters: int = 20, eps: float = 1e-6) -> jax.Array:
    """The same in JAX, to compare with."""
    p = jax.nn.softmax(logits, -1) + eps
    p = p / (p.sum(-2, keepdims=True) + eps)
    for _ in range(n_iters - 1):
        p = p / (p.sum(-1, keepdims=True) + eps)
        p = p / (p.sum(-2, keepdims=True) + eps)
    return p


def main(words: list[str] | None = None) -> tuple[float, float]:
    """Largest difference of P, and of the gradient, between this package and the definition in JAX."""
    args = parsed(words)
    if jax is None:
        sys.exit("needs jax: pip install jax")
    sinkhorn_jax = sinkhorn_of_jax()
    keys = jax.random.split(jax.random.key(0))
    logits, weights = (jax.random.normal(key, (args.batch, 4, 4)) for key in keys)
    ours, expected = (
        jax.value_and_grad(lambda x, f=f: (f(x) * weights).sum())(logits) for f in (sinkhorn_jax, definition)
    )
    apart = float(jnp.abs(sinkhorn_jax(logits) - definition(logits)).max())
    gradients_apart = float(jnp.abs(ours[1] - expected[1]).max())
    print(f"P differs from the definition in JAX by {apart:.1e}, its gradient by {gradients_apart:.1e}")
    return apart, gradients_apart


if __name__ == "__main__":
    main()
