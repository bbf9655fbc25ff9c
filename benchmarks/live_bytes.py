"""The bytes of tensors that are still referred to, on any device."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts what operators made inside it and somebody still holds; `peak` is the most so far."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for t in tree_leaves(found):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                self.sizes[StorageWeakRef(storage)] = storage.nbytes()
        self.peak = max(self.peak, self.held)
        return found

    @property
    def held(self) -> int:
        self.sizes = {ref: size for ref, size in self.sizes.items() if not ref.expired()}
        return sum(self.sizes.values())
