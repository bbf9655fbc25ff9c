"""What a thread is about to need, which the layers of a call leave for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Upcoming(threading.local):
    """What a thread is about to need."""

    call: tuple[type[torch.autograd.Function], Callable[..., Any], str, Sequence[Any]] | None = None
    """The call whose forward this thread is in: Function, what computes it, public name, arguments."""
    notes: bool = False
    """Whether operators on meta tensors go as far as their launches, which are then recorded."""


upcoming = Upcoming()
