"""WORKLOADS: the calls that tuning, benchmarks, CI and tritonbench loop over, and how inputs are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

LARGEST_ENTRIES = 1 << 26
"""Most entries of a tuned batch, 256 MiB in float32: far more blocks than any device holds at once."""


def _normal(generator: np.random.Generator, *shape: int) -> torch.Tensor:
    """Standard normal numbers: NumPy's come from integers and tables, torch's from the host's vector log."""
    return torch.from_numpy(generator.standard_normal(shape).astype(np.float32))


def _mask(batch: int, n: int, m: int, generator: np.random.Generator, density: float) -> torch.Tensor:
    """True where an entry stays: a random share of them, and one in every row and column."""
    keep = torch.from_numpy(generator.random((batch, n, m)) < density)
    for k in range(max(n, m)):
        keep[:, k % n, k % m] = True
    rows = torch.from_numpy(generator.random((batch, n)).argsort(-1))
    return keep.gather(-2, rows.unsqueeze(-1).expand(batch, n, m))


def _randn(scale: float) -> Callable[..., torch.Tensor]:
    return lambda batch, n, m, generator: scale * _normal(generator, batch, n, m)


def _identity_like(batch, n, m, generator):
    return torch.full((batch, n, m), -8.0).masked_fill(torch.eye(n, m, dtype=torch.bool), 0.0)


def _masked(batch, n, m, generator):
    x = _normal(generator, batch, n, m)
    return x.masked_fill(~_mask(batch, n, m, generator, 0.6), -math.inf)


def _permutation(batch, n, m, generator):
    x = _normal(generator, batch, n, m)
    return x.masked_fill(~_mask(batch, n, m, generator, 0.0), -math.inf)


def _rank_one(batch, n, m, generator):
    return _normal(generator, batch, n, 1) + _normal(generator, batch, 1, m)


def _uniform_4(batch, n, m, generator):
    return torch.from_numpy(4.0 * generator.random((batch, n, m), dtype=np.float32))


LOGITS: dict[str, Callable[..., torch.Tensor]] = {
    "randn_0.01": _randn(0.01),
    "randn_1": _randn(1.0),
    "randn_3": _randn(3.0),
    "randn_8": _randn(8.0),
    "randn_30": _randn(30.0),
    "uniform_4": _uniform_4,
    "identity_like": _identity_like,
    "masked": _masked,
    "permutation": _permutation,
    "rank_one": _rank_one,
}
"""name -> (batch, n, m, generator) -> logits.  uniform_4: uniform(0, 4); identity_like: 0 on the diagonal,
-8 off it; the masks leave an entry in every row and column; a square permutation leaves nothing else."""


def make_logits(
    name: str, batch: int, n: int, m: int, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The logits LOGITS[name], (batch, n, m), the same bits for the same seed on every machine."""
    return LOGITS[name](batch, n, m, np.random.default_rng(seed)).to(dtype)


def make_cotangents(x: torch.Tensor, *, seed: int = 1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Random upstream gradients of the shape of x: one that is constant along a line would hide errors."""
    return _normal(np.random.default_rng(seed), *x.shape).to(dtype or x.dtype)


Row = TypeVar("Row")


@dataclass(frozen=True)
class Workload:
    """One row of WORKLOADS: a call of `sinkhorn`, what it stands for, and who loops over it."""

    name: str
    n: int
    m: int
    batch: int
    tags: frozenset[str]
    """ci: accuracy gate; tune: has a tuned config; bench: tritonbench and reports; stress: extreme inputs;
    implicit: the approximate gradient, judged against the equations of stationarity."""
    source: str
    n_iters: int = 20
    form: str = "deepseek"
    first: str = "rows"
    dtype: torch.dtype = torch.float32
    eps: float = 1e-6
    logits: str = "randn_1"
    backward: str = "exact"

    @property
    def shape(self) -> dict[str, int]:
        """Of a matrix."""
        return {"n": self.n, "m": self.m}

    @property
    def entries(self) -> int:
        """Of a matrix."""
        return self.n * self.m

    @property
    def arguments(self) -> tuple[int, float, str, str]:
        """(n_iters, eps, form, first), as the operators take them."""
        return self.n_iters, self.eps, self.form, self.first

    @property
    def options(self) -> dict[str, object]:
        """The same as keywords of `sinkhorn`."""
        own = {} if self.backward == "exact" else {"backward": self.backward}
        return {"n_iters": self.n_iters, "eps": self.eps, "form": self.form, "first": self.first, **own}

    def make_inputs(
        self, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits, upstream gradient), each (batch, n, m) of `dtype`, bit for bit the same everywhere."""
        x = make_logits(self.logits, self.batch, self.n, self.m, seed=seed, dtype=self.dtype)
        return x.to(device), make_cotangents(x, seed=seed + 1).to(device)


TUNED_SIZES = (4, 8, 16, 32, 64)
TUNED_BATCHES = tuple(1 << k for k in (7, 10, 13, 17, 20))
FORMS = ("deepseek", "log")
_SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _square(n: int, batch: int, dtype: torch.dtype, form: str, tags: str, source: str) -> Workload:
    name = f"{form}_{n}x{n}_{_SHORT[dtype]}_b{batch}"
    return Workload(name, n, n, batch, frozenset(tags.split()), source, form=form, dtype=dtype)


def _tuned_batches(n: int) -> list[int]:
    """TUNED_BATCHES up to LARGEST_ENTRIES, and the largest that fits: it serves all beyond."""
    most = LARGEST_ENTRIES // (n * n)
    return sorted({min(batch, most) for batch in TUNED_BATCHES})


_TUNED = [
    _square(n, batch, dtype, form, "tune bench" if form == "deepseek" else "tune", source)
    for source in ("mHC: a matrix a token and layer (arXiv 2512.24880); n > 4: wider streams, routing",)
    for n in TUNED_SIZES
    for batch in _tuned_batches(n)
    for dtype in (torch.float32, torch.bfloat16)
    for form in FORMS
]


def _gate(name: str, n: int, m: int, source: str, tags: str = "ci", batch: int = 4096, **options) -> Workload:
    return Workload(name, n, m, batch, frozenset(tags.split()), source, **options)


_MHC = "mHC layer, the default call"
_GATED = [
    _gate("mhc_fp32", 4, 4, _MHC),
    _gate("mhc_bf16", 4, 4, _MHC, dtype=torch.bfloat16),
    _gate("mhc_fp16", 4, 4, _MHC, dtype=torch.float16),
    _gate("mhc_one_iteration", 4, 4, "first trail step alone", n_iters=1),
    _gate("mhc_five_iterations", 4, 4, "not converged: the exact gradient is another than the implicit one",
          n_iters=5),
    _gate("log_4", 4, 4, "log form of triton-sinkhorn and TransformerEngine", form="log"),
    _gate("log_4_columns_first", 4, 4, "columns first", form="log", first="cols"),
    _gate("sharp_4", 4, 4, "peaky logits", "ci stress", logits="randn_8"),
    _gate("identity_like_4", 4, 4, "slow convergence", "ci stress", logits="identity_like", form="log"),
    _gate("masked_8", 8, 8, "masked matching", "ci stress", logits="masked", form="log"),
    _gate("tail_5x3", 5, 3, "padded in both axes, a batch that fills no tile", batch=1021),
    _gate("wide_4x8", 4, 8, "rectangular routing"),
    _gate("driver_8", 8, 8, "randn 4096 x 8 x 8, ten iterations", n_iters=10),
    _gate("uniform_8", 8, 8, "uniform(0, 4), ten iterations", n_iters=10, logits="uniform_4"),
    _gate("mid_16", 16, 16, "implicit-differentiation study: 100 iterations", n_iters=100, batch=512),
    _gate("mid_16_deepseek", 16, 16, "register history, two warps a matrix or fewer", batch=1024),
    _gate("lane_32", 32, 32, "history in memory", batch=512),
    _gate("matching_64", 64, 64, "Gumbel-Sinkhorn matching", form="log", batch=256),
    _gate("largest_128", 128, 128, "the largest matrix the kernels take", batch=64),
]  # fmt: skip

_JUDGED = "ci implicit"
_IMPLICIT = [
    *(
        _gate(f"implicit_{n}_{_SHORT[dtype]}_b{batch}", n, n, "implicit differentiation, beside exact",
              "tune", batch, form="log", dtype=dtype, backward="implicit")
        for n in TUNED_SIZES
        for batch in _tuned_batches(n)
        for dtype in (torch.float32, torch.bfloat16)
    ),
    *(
        _gate(f"implicit_{n}_b{batch}", n, n, "implicit differentiation, beside exact", "implicit", batch,
              form="log", backward="implicit")
        for n in (4, 8, 16)
        for batch in (1 << 16, 1 << 20)
    ),
    *(
        _gate(f"implicit_{n}", n, n, "the calls above, as many as are judged", _JUDGED, (1 << 16) // (n * n),
              form="log", backward="implicit")
        for n in (4, 8, 16, 32)
    ),
    _gate("implicit_mhc", 4, 4, _MHC, _JUDGED, backward="implicit"),
    _gate("implicit_bf16", 4, 4, _MHC, _JUDGED, dtype=torch.bfloat16, backward="implicit"),
    _gate("implicit_five_iterations", 4, 4, "not converged: exact and implicit gradients differ", _JUDGED,
          n_iters=5, backward="implicit"),
    _gate("implicit_driver_8", 8, 8, "randn 4096 x 8 x 8, ten iterations", _JUDGED, n_iters=10, form="log",
          first="cols", backward="implicit"),
    _gate("implicit_uniform_16", 16, 16, "uniform(0, 4), 4096 x 16 x 16, 100 iterations", _JUDGED,
          n_iters=100, form="log", first="cols", logits="uniform_4", backward="implicit"),
    _gate("implicit_tail_5x3", 5, 3, "padded in both axes, a batch that fills no tile", _JUDGED, 1021,
          backward="implicit"),
    _gate("implicit_wide_4x8", 4, 8, "rectangular routing", _JUDGED, backward="implicit"),
    _gate("implicit_masked_8", 8, 8, "masked matching", _JUDGED, logits="masked", form="log",
          backward="implicit"),
    _gate("implicit_sharp_4", 4, 4, "peaky logits, far from a fixed point", _JUDGED, logits="randn_8",
          backward="implicit"),
    _gate("implicit_identity_like", 4, 4, "nearly disconnected: no digit may be lost", _JUDGED,
          logits="identity_like", form="log", backward="implicit"),
    _gate("implicit_64", 64, 64, "conjugate gradients", _JUDGED, 256, form="log", backward="implicit"),
]  # fmt: skip


@dataclass(frozen=True)
class DotWorkload:
    """One row of WORKLOADS: a call of `dot_compress`."""

    name: str
    batch: int
    m: int
    d: int
    k: int
    tags: frozenset[str]
    """As those of Workload."""
    source: str
    dtype: torch.dtype = torch.bfloat16
    has_z: bool = False
    precise: bool = False
    grad_scale: float = 1.0

    @property
    def shape(self) -> dict[str, int]:
        """Of an element."""
        return {"m": self.m, "d": self.d, "k": self.k}

    @property
    def entries(self) -> int:
        """Of x and y of an element."""
        return self.m * (self.d + self.k)

    @property
    def options(self) -> dict[str, object]:
        """The keywords of `dot_compress`, and whether z is given."""
        return {"z": self.has_z, "precise_intermediate": self.precise}

    @property
    def parts(self) -> int:
        """Numbers that carry an entry of the intermediate."""
        return 2 if self.precise and self.dtype != torch.float32 else 1

    def make_inputs(
        self, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """(x, y, z or None, upstream gradient) of `dtype`, standard normal, the same bits everywhere."""
        generator = np.random.default_rng(seed)
        x, y, z, grad = (
            _normal(generator, self.batch, *shape)
            for shape in ((self.m, self.d), (self.m, self.k), (self.d, self.k), (self.m, self.k))
        )
        made = x, y, z if self.has_z else None, self.grad_scale * grad
        return tuple(t if t is None else t.to(device, self.dtype) for t in made)


def _dot(name: str, batch: int, m: int, d: int, k: int, tags: str, source: str, **options) -> DotWorkload:
    return DotWorkload(f"dot_{name}", batch, m, d, k, frozenset(tags.split()), source, **options)


_DCPP = "dot compression of embeddings (pytorch/helion#1661)"
_DOT = [
    *(
        _dot(f"dcpp_b{batch}", batch, 3219, 256, 64, "tune bench", _DCPP, grad_scale=0.1)
        for batch in (16, 128, 1152)
    ),
    _dot("dcpp_precise", 1152, 3219, 256, 64, "tune", _DCPP, precise=True),
    _dot("dcpp_fp32", 128, 3219, 256, 64, "tune", _DCPP, dtype=torch.float32),
    _dot("reported", 5, 3219, 256, 64, "ci", _DCPP, grad_scale=0.1),
    _dot("precise", 5, 3219, 256, 64, "ci", _DCPP, precise=True),
    _dot("fp16", 2, 1000, 128, 64, "ci", "half precision, z given", dtype=torch.float16, has_z=True),
    _dot("fp32", 2, 1000, 64, 32, "ci", "single precision, z given", dtype=torch.float32, has_z=True),
    _dot("tail", 5, 129, 48, 5, "ci", "padded in every axis, z given", has_z=True),
    _dot("wide", 2, 300, 1000, 64, "ci", "several blocks of x"),
]


@dataclass(frozen=True)
class AttentionWorkload:
    """One row of WORKLOADS: a call of `recurrent_linear_attention` and its gradient."""

    name: str
    sequences: int
    steps: int
    heads: int
    dk: int
    dv: int
    tags: frozenset[str]
    """As those of Workload."""
    source: str
    gates: str = "gk"
    """Names with spaces between: "g g_gamma gk gv" at most."""
    dtype: torch.dtype = torch.bfloat16
    states: bool = False
    """Whether there is an initial state, and a gradient of the last one."""
    reverse: bool = False
    lengths: tuple[int, ...] = ()
    """Of packed sequences, `steps` in all; `sequences` is 1 then."""

    @property
    def shape(self) -> dict[str, int]:
        """Of a sequence, or of a packing of them."""
        return {"steps": self.steps, "heads": self.heads, "dk": self.dk, "dv": self.dv}

    @property
    def entries(self) -> int:
        """Of the vectors of a sequence."""
        return 2 * self.steps * self.heads * (self.dk + self.dv)

    @property
    def options(self) -> dict[str, object]:
        """What else makes the call."""
        return {"gates": self.gates, "states": self.states, "reverse": self.reverse, "lengths": self.lengths}

    @property
    def chunks_serve(self) -> bool:
        """Whether method="chunked" takes the call."""
        return "gv" not in self.gates.split() and not self.lengths

    @property
    def batch(self) -> int:
        """States that are walked independently."""
        return (len(self.lengths) or self.sequences) * self.heads

    def make_inputs(
        self, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor | None]:
        """(tensor arguments by name, gradient of o, gradient of the last state or None).

        Vectors are standard normal, decays exp(-|x| / 8) of such x: a memory of some ten steps.
        """
        generator = np.random.default_rng(seed)
        tokens = self.sequences, self.steps, self.heads
        state = len(self.lengths) or self.sequences, self.heads, self.dk, self.dv
        shapes = {"g": tokens, "g_gamma": (self.heads,), "gk": (*tokens, self.dk), "gv": (*tokens, self.dv)}
        vectors = {"q": self.dk, "k": self.dk, "v": self.dv, "do": self.dv}
        found = {name: _normal(generator, *tokens, d).to(self.dtype) for name, d in vectors.items()}
        for name in self.gates.split():
            found[name] = (_normal(generator, *shapes[name]).abs() / -8).to(self.dtype)
        dend = None
        if self.states:
            found["initial_state"], dend = _normal(generator, *state), _normal(generator, *state).to(device)
        if self.lengths:
            offsets = np.cumsum((0, *self.lengths), dtype=np.int32)
            found["cu_seqlens"] = torch.from_numpy(offsets)
        found = {name: x.to(device) for name, x in found.items()}
        return found, found.pop("do"), dend


def _attention(name: str, shape: tuple[int, ...], tags: str, source: str, **options) -> AttentionWorkload:
    return AttentionWorkload(name, *shape, frozenset(tags.split()), source, **options)


_GLA = "gated linear attention, a layer of 16 heads (arXiv 2312.06635)"
_SMALL = (2, 33, 2, 8, 12)
_ATTENTION = [
    *(
        _attention(f"attention_{gates.replace(' ', '_') or 'plain'}_{_SHORT[dtype]}", (8, 2048, 16, 64, 128),
                   tags, _GLA, gates=gates, dtype=dtype)
        for gates, dtype, tags in (
            ("gk", torch.bfloat16, "tune bench"), ("gk", torch.float32, "tune"),
            ("g", torch.bfloat16, "tune"), ("g_gamma", torch.bfloat16, "tune"), ("", torch.bfloat16, "tune"),
        )
    ),
    _attention("attention_every_gate", _SMALL, "ci", "all options at once", gates="g g_gamma gk gv",
               dtype=torch.float32, states=True),
    _attention("attention_reverse", _SMALL, "ci", "the same walked backwards", gates="g g_gamma gk gv",
               dtype=torch.float32, states=True, reverse=True),
    _attention("attention_packed", (1, 40, 2, 16, 8), "ci", "sequences of any length, one empty",
               gates="g gk", dtype=torch.float32, states=True, lengths=(17, 0, 1, 22)),
    _attention("attention_ungated", (2, 96, 2, 16, 16), "ci", "linear attention (arXiv 2006.16236)",
               gates="", dtype=torch.float32),
    _attention("attention_chunks", (2, 150, 2, 24, 20), "ci", "three chunks walked backwards, one short",
               gates="g g_gamma gk", dtype=torch.float32, states=True, reverse=True),
    _attention("attention_retention", (2, 100, 2, 16, 32), "ci", "one decay a head (arXiv 2307.08621)",
               gates="g_gamma", states=True),
    _attention("attention_gla_bf16", (2, 128, 1, 64, 128), "ci", _GLA),
    _attention("attention_gla_fp16", (1, 64, 2, 32, 48), "ci", _GLA, dtype=torch.float16, states=True),
]  # fmt: skip

_ROWS = (*_TUNED, *_GATED, *_IMPLICIT, *_DOT, *_ATTENTION)
WORKLOADS: dict[str, Workload | DotWorkload | AttentionWorkload] = {w.name: w for w in _ROWS}
assert len(WORKLOADS) == len(_ROWS)


def tagged(tag: str, kind: type[Row] = Workload) -> list[Row]:
    """The rows of one operator, or with kind=object of all, that carry a tag, in the order of the table."""
    return [w for w in WORKLOADS.values() if isinstance(w, kind) and tag in w.tags]
