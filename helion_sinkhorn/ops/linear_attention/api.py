"""recurrent_linear_attention(...): the contract, its checks, and which implementation computes a call."""

from __future__ import annotations

import sys

import torch

from helion_sinkhorn.ops.linear_attention import torch_op
from helion_sinkhorn.ops.linear_attention.chunked.space import why_not_chunked
from helion_sinkhorn.runtime.checks import (
    check_flag,
    check_implementation,
    check_number,
    check_option,
    check_same_device,
    check_same_dtype,
    check_tensor,
    implementation_for,
    type_of,
)

METHODS = ("auto", "recurrent", "chunked")
KERNEL_LARGEST = 512
"""The largest Dk and Dv of the kernels: a program holds the whole side of a state that is summed."""
CHUNKED_STEPS = 64
"""Steps from which on "auto" takes chunks: one whole chunk; on an H200 chunks are faster from 32 steps on."""
SHAPES = {
    "q": "(B, T, H, Dk)", "k": "(B, T, H, Dk)", "v": "(B, T, H, Dv)", "g": "(B, T, H)", "g_gamma": "(H,)",
    "gk": "(B, T, H, Dk)", "gv": "(B, T, H, Dv)", "initial_state": "(N, H, Dk, Dv)",
}  # fmt: skip
"""The shapes that an error names where an argument is no tensor."""
CHUNKED_DTYPES = (torch.bfloat16, torch.float16)
"""Dtypes for which "auto" takes chunks: rounding their results costs as much as all roundings of chunks."""


def recurrent_linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    g: torch.Tensor | None = None,
    g_gamma: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
    gv: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    method: str = "auto",
    implementation: str = "auto",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attend through a state of Dk x Dv that decays and takes one rank-one update in each step.

    In every head of every sequence, with the gates that are given:
        h_t = diag(exp(g_t + g_gamma + gk_t)) h_(t-1) diag(exp(gv_t)) + k_t v_t',   o_t = scale h_t' q_t
    All gradients are exact, also of the gates and states.  Only the arguments are kept for them.

    Args:
        q: (B, T, H, Dk), float32, bfloat16, float16 or float64, any layout.
        k: (B, T, H, Dk), of the same dtype.
        v: (B, T, H, Dv), of the same dtype.
        g: (B, T, H), the natural logarithm of a decay, at most 0 if the state is to stay bounded.  Each of
            the gates g, g_gamma, gk and gv may have any of these dtypes.
        g_gamma: (H,), the logarithm of a decay that is the same in every step.
        gk: (B, T, H, Dk), logarithms of decays of the state's rows.
        gv: (B, T, H, Dv), logarithms of decays of the state's columns.
        scale: the factor of the output, by default Dk ** -0.5.
        initial_state: h before the first step, (N, H, Dk, Dv), default 0; N is B without cu_seqlens.
        output_final_state: return (o, h after the last step) and not only o.
        reverse: process each sequence from its last step to its first.
        cu_seqlens: (N + 1,) int32 or int64 ascending offsets from 0 to T: B is 1, and sequence n has the
            steps from offset n up to offset n + 1.  Steps before the first offset and from the last one on
            belong to no sequence: o and all gradients are 0 there.  The offsets are checked on a CPU only;
            on a GPU the check would wait for them, and kernels with wrong offsets access other memory.
        method: "recurrent" goes step by step.  "chunked" multiplies matrices of 64 steps; it takes no gv and
            no cu_seqlens, and Dk <= 128.  "auto" takes chunks where it can for bfloat16 or float16 of at
            least 64 steps, and otherwise "recurrent".  PyTorch goes step by step with every method.
        implementation: "auto" takes the Helion kernels on a GPU (Dk, Dv <= 512, not float64) and PyTorch
            elsewhere; "helion" and "pytorch" ask for one of them.

    Returns:
        o (B, T, H, Dv) in the dtype of v, or (o, final state (N, H, Dk, Dv) in float32, float64 for float64).

    Numerical policy: state and sums in float32 (float64 for float64) whatever the inputs or autocast; one
        rounding of each result.  Chunks of bfloat16 round the factors of matrix products to bfloat16.
        Bitwise reproducible, and a sequence's result does not depend on the others under one config.  The
        gradient of a gate is a sum of products and not a difference, so that it loses no digits under a
        strong decay, where it is small (docs/operators.md).

    Raises:
        TypeError: an argument is no tensor, a dtype is not listed above, or q, k, v have several dtypes.
        ValueError: shapes that do not fit, devices that differ, offsets that do not ascend within 0 to T, a
            scale that is not finite, an unknown option.
        NotImplementedError: implementation="helion" on a CPU, in float64 or beyond the kernels' sizes;
            method="chunked" with gv, with cu_seqlens or for Dk > 128; double backward.

    Source: Yang et al., Gated Linear Attention Transformers (arXiv 2312.06635), section 3; the gates and
        their order as in ejkernel's recurrent kernels.
    """
    named = {"g": g, "g_gamma": g_gamma, "gk": gk, "gv": gv, "initial_state": initial_state}
    _check_tensors({"q": q, "k": k, "v": v, **{name: x for name, x in named.items() if x is not None}})
    _check_shapes(q, k, v, named, cu_seqlens)
    implementation = check_implementation(implementation)
    _check_options(scale, output_final_state, reverse, method)
    if initial_state is not None:
        initial_state = initial_state.to(torch.promote_types(q.dtype, torch.float32))
    arguments = (
        q, k, v, g, g_gamma, gk, gv, float(q.size(-1) ** -0.5 if scale is None else scale),
        initial_state, reverse, cu_seqlens, _serves(implementation, method, q, v, gv, cu_seqlens),
    )  # fmt: skip
    o, state = _attend(*arguments)
    return (o, state) if output_final_state else o


def _attend(*arguments):
    """(o, last state) of checked arguments."""
    if "torch.distributed.tensor" in sys.modules:
        from helion_sinkhorn.ops.linear_attention import distributed

        if distributed.is_distributed(arguments):
            return distributed.attend(_attend, arguments)
    return torch_op.apply(*arguments)


def _check_tensors(tensors: dict[str, torch.Tensor]) -> None:
    q = tensors["q"]
    for name, x in tensors.items():
        check_tensor(name, x, SHAPES[name])
        if name in ("k", "v"):
            check_same_dtype(name, x, "q", q)
        check_same_device(name, x, "q", q)


def _check_shapes(q, k, v, named, cu_seqlens) -> None:
    if q.dim() != 4 or v.dim() != 4:
        raise ValueError(
            f"q has shape {tuple(q.shape)}, v {tuple(v.shape)}; pass (B, T, H, Dk) and (B, T, H, Dv)"
        )
    batch, steps, heads, dk = q.shape
    dv = v.size(3)
    if 0 in (dk, dv):
        raise ValueError(f"Dk is {dk}, Dv {dv}; a state needs at least one row and one column")
    sequences = batch
    if cu_seqlens is not None:
        _check_offsets(cu_seqlens, q)
        sequences = cu_seqlens.numel() - 1
    tokens = batch, steps, heads
    expected = {
        "k": (k, (*tokens, dk)), "v": (v, (*tokens, dv)), "g": (named["g"], tokens),
        "g_gamma": (named["g_gamma"], (heads,)), "gk": (named["gk"], (*tokens, dk)),
        "gv": (named["gv"], (*tokens, dv)),
        "initial_state": (named["initial_state"], (sequences, heads, dk, dv)),
    }  # fmt: skip
    for name, (x, shape) in expected.items():
        if x is not None and tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; for these q, v and sequences pass {shape}")


def _check_offsets(cu_seqlens, q) -> None:
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        is_tensor = isinstance(cu_seqlens, torch.Tensor)
        what = f"has dtype {cu_seqlens.dtype}" if is_tensor else f"is {type_of(cu_seqlens)}"
        raise TypeError(f"cu_seqlens {what}; pass a torch.Tensor of int32 or int64")
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2:
        raise ValueError(f"cu_seqlens has shape {tuple(cu_seqlens.shape)}; pass (N + 1,) with N >= 1")
    if q.size(0) != 1:
        raise ValueError(f"q has batch {q.size(0)} with cu_seqlens; pack all sequences along T, with B = 1")
    if cu_seqlens.device != q.device:
        raise ValueError(f"cu_seqlens is on {cu_seqlens.device}, q on {q.device}; move cu_seqlens there")


def _check_options(scale, output_final_state, reverse, method) -> None:
    if scale is not None:
        check_number("scale", scale, "a float or None")
    check_flag("output_final_state", output_final_state)
    check_flag("reverse", reverse)
    check_option("method", method, METHODS)


def _serves(implementation: str, method: str, q, v, gv, cu_seqlens) -> str:
    """ "recurrent", "chunked" or "pytorch" for these tensors."""
    why = why_not_chunked(gv is not None, cu_seqlens is not None, q.size(3))
    if method == "chunked" and why:
        raise NotImplementedError(f"method='chunked': {why}; use method='auto', which is 'recurrent' here")

    def beyond() -> str:
        return f"the kernels take Dk and Dv up to {KERNEL_LARGEST}, these are {q.size(3)} and {v.size(3)}"

    is_beyond = max(q.size(3), v.size(3)) > KERNEL_LARGEST
    if implementation_for(implementation, "q", q, beyond if is_beyond else None) == "pytorch":
        return "pytorch"
    gains = q.dtype in CHUNKED_DTYPES and q.size(1) >= CHUNKED_STEPS and not why
    return "chunked" if method == "chunked" or (method == "auto" and gains) else "recurrent"
