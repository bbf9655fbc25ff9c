"""recompute_streams: keep fewer residual streams for the backward, which computes the others again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from helion_sinkhorn.ops.mhc.post.api import hc_post
from helion_sinkhorn.runtime.checks import check_int
from helion_sinkhorn.runtime.updates import Update, observing


@contextmanager
def recompute_streams(every: int) -> Iterator[None]:
    """Keep the residual streams of every k-th update for the backward, which computes the others again.

        with recompute_streams(every=8):
            loss = model(tokens)
        loss.backward()
    An update is a call of `hc_post` or `hc_boundary`; a layer of a transformer has two.  The backward calls
    `hc_post` with the same arguments, which are kept anyway, so that no sublayer runs twice.  It computes the
    streams between two kept ones when it reaches the last of them, and frees each after its use.  With L
    updates, L / every streams are kept and at most every - 1 are computed again at a time, so sqrt(L) is the
    value with the lowest peak.  The price is one more `hc_post` forward for each stream that is not kept.

    Args:
        every: k, at least 1; 1 keeps all streams.

    Numerical policy: results and gradients have the same bits as without it.

    Streams that are changed in place after their update, or made inside `torch.compile` or
    `torch.utils.checkpoint`, are kept as without it.  With retain_graph=True streams that were computed again
    stay until the graph is freed.

    Raises:
        TypeError, ValueError: every is no integer of at least 1.
        RuntimeError: in the backward, when a tensor that was saved has been changed in place since.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), section 4.3.2.
    """
    every = check_int("every", every, 1)
    if torch.compiler.is_compiling():
        yield
        return
    recorder = _Recorder(every)
    hooks = torch.autograd.graph.saved_tensors_hooks(recorder.pack, recorder.unpack)
    with observing(recorder.updated), hooks:
        yield


class _Saved:
    """A tensor that autograd saved, or a view of streams that can be computed again."""

    def __init__(self, t: torch.Tensor, source: torch.Tensor | _Remade) -> None:
        self.source, self.version = source, t._version
        self.view = t.size(), t.stride(), t.storage_offset()

    def tensor(self) -> torch.Tensor:
        if isinstance(self.source, _Remade):
            return self.source.streams().as_strided(*self.view)
        if self.source._version != self.version:
            raise RuntimeError(
                f"a tensor of shape {tuple(self.source.shape)} was changed in place after the forward saved "
                f"it (version {self.source._version}, saved at {self.version}); change a copy of it"
            )
        return self.source


class Finished(NamedTuple):
    """The time at which a CUDA stream had made a tensor.

    Autograd orders CUDA streams along gradients.  If two sites saved the same residual streams, one computes
    them again, and only this lets the other wait.
    """

    stream: torch.cuda.Stream
    event: torch.cuda.Event

    @classmethod
    def here(cls, made: torch.Tensor) -> Finished | None:
        """The time at which the current CUDA stream will have done what is queued; None on a CPU."""
        if not made.is_cuda:
            return None
        stream = torch.cuda.current_stream(made.device)
        return cls(stream, stream.record_event())

    def await_here(self, made: torch.Tensor) -> None:
        """Let the current stream wait, and keep the memory of the tensor until it has read it."""
        stream = torch.cuda.current_stream(made.device)
        if stream != self.stream:
            stream.wait_event(self.event)
            made.record_stream(stream)


class _Remade:
    """Streams that are not kept: their update, and the streams once the backward has computed them again."""

    def __init__(self, streams: torch.Tensor, x: _Saved, update: Update, options: dict[str, str]) -> None:
        self.storage = StorageWeakRef(streams.untyped_storage())
        self.version, self.dtype = streams._version, streams.dtype
        self.x, self.made, self.finished = x, None, None
        self.post, self.comb = _saved(update.post), _saved(update.comb)
        self.f, self.bias = _saved(update.f), _saved(update.bias)
        self.options = options

    def is_view(self, t: torch.Tensor) -> bool:
        """Whether t, in the same storage, is these streams as they were made."""
        return t._version == self.version and t.dtype == self.dtype

    def streams(self) -> torch.Tensor:
        chain = [self]
        while chain[-1].made is None and isinstance(before := chain[-1].x.source, _Remade):
            chain.append(before)
        for remade in reversed(chain):
            if remade.made is None:
                remade.made = remade.make()
                remade.finished = Finished.here(remade.made)
        if self.finished is not None:
            self.finished.await_here(self.made)
        return self.made

    @torch.no_grad()
    def make(self) -> torch.Tensor:
        given = (self.f, self.x, self.post, self.comb, self.bias)
        return hc_post(*(s if s is None else s.tensor() for s in given), **self.options)


def _saved(t: torch.Tensor | None) -> _Saved | None:
    # what autograd keeps must not hold the graph that keeps it
    return None if t is None else _Saved(t, t.detach())


class _Recorder:
    """The storages that hold streams that can be computed again, and what autograd saves meanwhile."""

    def __init__(self, every: int) -> None:
        self.every, self.updates, self.thread = every, 0, threading.get_ident()
        self.known: dict[int, _Remade] = {}
        self.recent: list[weakref.ref[_Saved]] = []

    def updated(self, streams: torch.Tensor, update: Update, comb_order: str, implementation: str) -> None:
        # hooks belong to a thread; a DTensor's storage is not where its values are
        if threading.get_ident() != self.thread or type(streams) is not torch.Tensor:
            return
        # what other hooks save, as inside a checkpoint, cannot be computed again by these
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        if not streams.requires_grad or hooks != (self.pack, self.unpack):
            return
        # graphs that were dropped without a backward
        self.forget()
        self.updates += 1
        if self.updates % self.every:
            options = {"comb_order": comb_order, "implementation": implementation}
            remade = _Remade(streams, self.pack(update.x), update, options)
            self.known[remade.storage.cdata] = remade
            # hc_boundary saves its new streams before it announces them
            for saved in filter(None, (reference() for reference in self.recent)):
                if isinstance(saved.source, torch.Tensor):
                    saved.source = self.source(saved.source)
        self.recent.clear()

    def pack(self, t: torch.Tensor) -> _Saved:
        saved = _Saved(t, self.source(t))
        self.recent.append(weakref.ref(saved))
        return saved

    def unpack(self, saved: _Saved) -> torch.Tensor:
        # a backward inside the block, too, frees what it has used
        self.forget()
        return saved.tensor()

    def forget(self) -> None:
        """Release the arguments of streams that no longer exist."""
        # a backward may run in another thread than the forward that adds to them
        for at, remade in list(self.known.items()):
            if remade.storage.expired() and self.known.get(at) is remade:
                self.known.pop(at, None)

    def source(self, t: torch.Tensor) -> torch.Tensor | _Remade:
        """The streams of which t is a view, if they can be computed again; otherwise t."""
        # no other storage can have the address while a weak reference is there
        remade = self.known.get(t.untyped_storage()._cdata) if type(t) is torch.Tensor else None
        return remade if remade is not None and remade.is_view(t) else t.detach()
