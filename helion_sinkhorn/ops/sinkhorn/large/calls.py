"""The kernels of large matrices, and their launches on matrices whose lead side is the rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.sinkhorn.large import space
from helion_sinkhorn.ops.sinkhorn.large.ranks import ALONE, Ranks
from helion_sinkhorn.ops.sinkhorn.large.sides import SHORTEST, kept_entries
from helion_sinkhorn.ops.sinkhorn.large.space import LargeCall
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Choices, Chosen, chosen_for, launch, repeated
from helion_sinkhorn.runtime.space import default_only, power_of_two
from helion_sinkhorn.runtime.views import INT32_ELEMENTS

ROOM = "helion_sinkhorn.ops.sinkhorn.large"


@functools.lru_cache(maxsize=4096)
def call_for(n: int, m: int, dtype: torch.dtype, turned: bool = False) -> LargeCall:
    """What configs are chosen for; the n lines are normalised first."""
    return LargeCall(str(dtype)[6:], n, m, turned)


def call_of(x: torch.Tensor) -> LargeCall:
    """`call_for` of matrices whose rows are normalised first."""
    n, m = x.shape[-2:]
    return call_for(n, m, x.dtype, n > 1 and x.stride(-2) < x.stride(-1))


def rows_facts(chosen: Chosen, call: LargeCall, *numbers: Any) -> tuple[Any, ...]:
    """What the bodies of rows take after their tensors."""
    return *numbers, call.n, call.m, rows_of(chosen.choice)


def rows_of(choice: Choice) -> int:
    return dict(choice.variant)["rows"]


def columns_facts(chosen: Chosen, call: LargeCall, *values: Any) -> tuple[Any, ...]:
    """What the bodies that add parts take after their tensors: numbers, and the parts' count and shape."""
    *numbers, count, of = values
    return *numbers, count, call.m, of


def parts_facts(chosen: Chosen, call: LargeCall, count: int) -> tuple[int, int]:
    """What the bodies that make g of `count` parts take after their tensors."""
    return count, call.m


def sizes(chosen: Chosen, call: LargeCall, *values: Any) -> tuple[Any, ...]:
    """What the other bodies take after their tensors."""
    return call.n, call.m, *values


def inverting(facts: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """`facts` for the deepseek form, whose bodies compute reciprocals."""
    return lambda chosen, *values: (*facts(chosen, *values), chosen.reciprocal)


def eps_sizes(chosen: Chosen, call: LargeCall, eps: float) -> tuple[Any, ...]:
    """What the body that writes P of the deepseek form takes after its tensors."""
    return eps, call.n, call.m


eps_rows, eps_columns, eps_whole = (inverting(f) for f in (rows_facts, columns_facts, eps_sizes))
KERNELS = {
    f"sinkhorn_large_{name}": Kernel(
        f"sinkhorn_large_{name}", f"{ROOM}.{body}:sinkhorn_large_{name}", LargeCall, default,
        tried or default_only(default), facts, numbers=numbers,
        # launches of long lines take a tenth of a millisecond or more
        traits=frozenset({"overlaps"} if body != "wide_kernels" else ())
        | frozenset({"in place"} if name.endswith("gradient") else ()),
    )
    # tried: the space, or None for nothing but the default
    for name, body, default, tried, facts, numbers in (
        ("first", "kernels", space.steps_default, None, rows_facts, 0),
        ("step", "kernels", space.steps_default, space.rows_space, rows_facts, 0),
        ("columns", "kernels", space.columns_default, space.columns_space, parts_facts, 0),
        ("columns_of_logs", "kernels", space.of_logs_default, None, parts_facts, 0),
        ("write", "kernels", space.write_default, None, sizes, 0),
        ("sums", "adjoint", space.rows_default, None, rows_facts, 0),
        ("turn", "adjoint", space.rows_default, None, rows_facts, 0),
        ("back", "adjoint", space.steps_default, space.rows_space, rows_facts, 0),
        ("apart_step", "apart_kernels", space.steps_default, space.rows_space, rows_facts, 0),
        ("apart_back", "apart_kernels", space.steps_default, space.rows_space, rows_facts, 0),
        ("gather", "adjoint", space.columns_default, space.columns_space, columns_facts, 0),
        ("left", "segment_kernels", space.vectors_default, None, sizes, 0),
        ("right", "segment_kernels", space.vectors_default, None, sizes, 0),
        ("terms", "adjoint", space.terms_default, space.terms_space, sizes, 0),
        ("gradient", "adjoint", space.whole_default, space.whole_space, sizes, 0),
        ("eps_first", "eps_kernels", space.rows_default, None, eps_rows, 1),
        ("eps_step", "eps_kernels", space.rows_default, space.rows_space, eps_rows, 2),
        ("eps_columns", "eps_kernels", space.columns_default, space.columns_space, eps_columns, 1),
        ("eps_write", "eps_kernels", space.write_default, None, eps_whole, 1),
        ("eps_sums", "eps_kernels", space.rows_default, None, eps_rows, 1),
        ("eps_turn", "eps_kernels", space.rows_default, None, eps_rows, 2),
        ("eps_back", "eps_kernels", space.steps_default, space.rows_space, eps_rows, 2),
        ("wide_first", "wide_kernels", space.wide_rows_default, space.wide_rows_space, sizes, 0),
        ("wide_logs", "wide_kernels", space.wide_columns_default, space.wide_columns_space, sizes, 0),
        ("wide_rows", "wide_kernels", space.wide_rows_default, space.wide_rows_space, sizes, 0),
        ("wide_columns", "wide_kernels", space.wide_columns_default, space.wide_columns_space, sizes, 0),
        ("wide_gradient", "wide_kernels", space.wide_rows_default, space.wide_rows_space, sizes, 0),
    )
}  # fmt: skip


OF_VECTORS = {
    f"sinkhorn_large_{k}" for k in ("columns", "columns_of_logs", "gather", "eps_columns", "left", "right")
}
"""The kernels that read no matrix, so that it does not matter to them how one lies in memory."""


APART = {
    "sinkhorn_large_step": ("sinkhorn_large_apart_step", (0, 5, 6, 9)),
    "sinkhorn_large_back": ("sinkhorn_large_apart_back", (0, 5, 6, 7, 9)),
}
"""The forms of kernels for rows of 2^k + 1 entries, and the operands whose last column they take apart."""
WHOLE = {apart: name for name, (apart, _) in APART.items()}


@functools.lru_cache(maxsize=4096)
def form_of(name: str, call: LargeCall) -> tuple[str, tuple[int, ...]]:
    """The kernel that a call launches for `name`, and the operands whose last column is apart."""
    apart = call.m > SHORTEST and call.m - 1 == power_of_two(call.m - 1) and not call.turned
    # Helion chooses 32-bit indices by the entries without the last column, and up to 8 matrices run together
    apart = apart and 8 * call.n * call.m < INT32_ELEMENTS
    return APART[name] if apart and name in APART else (name, ())


@functools.lru_cache(maxsize=4096)
def for_kernel(name: str, call: LargeCall) -> LargeCall:
    """What the config of one kernel of a call is chosen for."""
    if name in WHOLE:
        return replace(call, m=call.m - 1)
    return replace(call, turned=False) if call.turned and name in OF_VECTORS else call


@dataclass(frozen=True)
class Stack:
    """Vectors (T, B, k); each launch of a sequence takes one of the T."""

    vectors: torch.Tensor


def split(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All but the last entry of each line, and the last."""
    return t[..., :-1], t[..., -1:]


class Calls:
    """Launches on matrices x (B, n, m): the choice of each kernel, and memory for the parts of sums."""

    def __init__(self, x: torch.Tensor, choices: Choices, call: LargeCall | None = None) -> None:
        self.x = x
        self.batch = len(x)
        self.call = call or call_of(x)
        self.choices = choices
        self.parts: dict[tuple[int, int], torch.Tensor] = {}

    def empty(self, *shape: int) -> torch.Tensor:
        return self.x.new_empty(shape, dtype=torch.float32)

    def form(self, name: str) -> tuple[Kernel, LargeCall, Choice | None, tuple[int, ...]]:
        """The kernel for `name`, its call, its choice if one is given, and the operands of `form_of`."""
        name, apart = form_of(name, self.call)
        return KERNELS[name], for_kernel(name, self.call), self.choices.get(name), apart

    def launch(self, name: str, *tensors: torch.Tensor, values: tuple[Any, ...] = ()) -> None:
        kernel, call, choice, apart = self.form(name)
        given = [k for place, t in enumerate(tensors) for k in (split(t) if place in apart else (t,))]
        launch(kernel, call, tuple(given), *values, batch=self.batch, choice=choice)

    def sequence(
        self, name: str, *operands: torch.Tensor | Stack, values: tuple[Any, ...] = ()
    ) -> Callable[..., None]:
        """Launches of one kernel, each called with the places of its vectors in the stacks."""
        kernel, call, choice, apart = self.form(name)
        tensors, stacks, order, count = [], [], [], 0
        for place, t in enumerate(operands):
            of = t.vectors if isinstance(t, Stack) else t
            given = split(of) if place in apart else (of,)
            if isinstance(t, Stack):
                stacks += range(len(tensors), len(tensors) + len(given))
                order += [count] * len(given)
                count += 1
            tensors += given
        run = repeated(kernel, call, tensors, stacks, *values, batch=self.batch, choice=choice)
        return (lambda *places: run(*[places[k] for k in order])) if apart else run

    def part(self, name: str) -> torch.Tensor:
        """Memory for the parts (B, K, m) that a kernel of rows writes."""
        kernel, call, choice, apart = self.form(name)
        count = -(-call.n // rows_of(choice or chosen_for(kernel, call, self.batch, self.x)))
        m = self.call.m
        # rows without the last column are written by vector stores
        room = kept_entries(m) if apart else m
        if (count, room) not in self.parts:
            self.parts[count, room] = self.empty(self.batch, count, room)[..., :m]
        return self.parts[count, room]

    def rows(self, name: str, *tensors: torch.Tensor, values: tuple[Any, ...] = ()) -> torch.Tensor:
        """Launch a kernel of rows and return the parts that it writes."""
        part = self.part(name)
        self.launch(name, *tensors, part, values=values)
        return part


class State(NamedTuple):
    """The inputs of iterations on some matrices (B, n, m), and the vectors that they write."""

    scale: torch.Tensor
    """(1,): 1 / temperature."""
    log_r: torch.Tensor
    log_c: torch.Tensor
    bases: torch.Tensor
    """(T, B, n), or (1, B, n) in the deepseek form."""
    fs: torch.Tensor
    """(T, B, n): f, or u of the deepseek form, of all iterations, or of the first and of two in turn."""
    gs: torch.Tensor
    """(T, B, m): g, or v of the deepseek form."""
    rests: torch.Tensor
    """(T, B, m): the factors that rounding leaves of e^g; without entries in the deepseek form."""
    eps: float
    ranks: Ranks = ALONE

    @property
    def base(self) -> torch.Tensor:
        """The base of the first iteration, which in the deepseek form is the base of all."""
        return self.bases[0]

    def of(self, part: slice) -> State:
        stacks = (t[:, part] for t in (self.bases, self.fs, self.gs, self.rests))
        return State(self.scale, self.log_r[part], self.log_c[part], *stacks, self.eps, self.ranks)


def place(t: int, count: int) -> int:
    """The place among `count` vectors that iteration t writes: its own, or one of the two after the first."""
    return t if t < count else 1 + (t - 1) % 2
