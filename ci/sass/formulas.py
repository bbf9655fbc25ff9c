"""Formulas: every distinct result of an instruction has a number, and equal numbers mean equal arithmetic.

A word is an int64.  0 and more is a known 32-bit word; a negative one stands for a formula, whose lowest bit
says whether its sign is turned (of a predicate: whether it is negated).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

SIGN_BIT = 1 << 31
ONE = 0x3F800000
COMPARISONS = {
    # name: (named after, operands exchanged, negated)
    "LT": ("LT", False, False), "GT": ("LT", True, False), "GEU": ("LT", False, True),
    "LEU": ("LT", True, True), "LE": ("LE", False, False), "GE": ("LE", True, False),
    "GTU": ("LE", False, True), "LTU": ("LE", True, True), "EQ": ("EQ", False, False),
    "NEU": ("EQ", False, True), "NE": ("NE", False, False), "EQU": ("NE", False, True),
    "NUM": ("NUM", False, False), "NAN": ("NUM", False, True),
}  # fmt: skip
"""Comparisons of floats: those of one name are one fact, `U` being true of NaN too."""


class Formulas:
    """The formulas met so far."""

    def __init__(self) -> None:
        self.number: dict[Hashable, int] = {}
        self.keys: list[Hashable] = []
        self.never_negative: list[bool] = []
        """For each key, whether its value is 0 or more and not -0, or NaN."""

    def of(self, *key: Hashable) -> int:
        """The word of a formula: an operation and the words that it was applied to."""
        if key not in self.number:
            self.number[key] = len(self.keys)
            self.keys.append(key)
            self.never_negative.append(self._is_never_negative(*key))
        return -2 * self.number[key] - 1

    def key(self, word: int) -> Hashable:
        """What a formula is made of, its sign aside."""
        return self.keys[(-word - 1) >> 1]

    @staticmethod
    def turned(word: int) -> bool:
        """Whether the sign of a formula is turned."""
        return word < 0 and bool((-word - 1) & 1)

    @staticmethod
    def negated(word: int) -> int:
        """The word with its sign turned."""
        return word ^ SIGN_BIT if word >= 0 else -((-word - 1) ^ 1) - 1

    def absolute(self, word: int) -> int:
        """|word|."""
        if word >= 0:
            return word & ~SIGN_BIT
        plain = self.negated(word) if self.turned(word) else word
        key = self.key(plain)
        return plain if key[0] == "abs" else self.of("abs", plain)

    def flipped(self, words: list[int]) -> tuple[list[int], bool]:
        """Words without turned signs, and whether an odd number of them was turned."""
        odd = False
        out = []
        for w in words:
            if self.turned(w) or (w >= SIGN_BIT):
                w, odd = self.negated(w), not odd
            out.append(w)
        return out, odd

    def is_never_negative(self, word: int) -> bool:
        """Whether a float is known to be 0 or more and not -0, or NaN."""
        if word >= 0:
            return word < SIGN_BIT
        return not self.turned(word) and self.never_negative[(-word - 1) >> 1]

    def _is_never_negative(self, name: Hashable, *operands: Hashable) -> bool:
        if name == "MUFU EX2":
            return True
        keeps = name in ("MUFU RCP", "FADD", "FMUL") or (name == "FFMA" and operands[0] == "+")
        return keeps and all(self.is_never_negative(w) for w in operands if isinstance(w, int))

    # ------------------------------------------------------------------------------- float32 arithmetic

    def product(self, name: str, a: int, b: int) -> int:
        (a, b), odd = self.flipped([a, b])
        found = self.of(name, *sorted((a, b)))
        return self.negated(found) if odd else found

    def sum(self, name: str, a: int, b: int) -> int:
        # x + 0 is x, but for -0
        for x, zero in ((a, b), (b, a)):
            if zero == 0 and self.is_never_negative(x):
                return x
        # x - y and y - x are one formula, with its sign turned or not
        a, b = sorted((a, b), key=lambda w: self.flipped([w])[0])
        (first,), odd = self.flipped([a])
        found = self.of(name, first, self.negated(b) if odd else b)
        return self.negated(found) if odd else found

    def multiply_add(self, name: str, a: int, b: int, c: int) -> int:
        if name == "FFMA":
            for factor, one in ((a, b), (b, a)):
                if one in (ONE, ONE | SIGN_BIT):
                    return self.sum("FADD", factor if one == ONE else self.negated(factor), c)
            if c == 0 and self.is_never_negative(product := self.product("FMUL", a, b)):
                return product
        (a, b), odd = self.flipped([a, b])
        a, b = sorted((a, b))
        if self.turned(c) or c >= SIGN_BIT:
            return self.negated(self._multiply_add(name, a, b, not odd, self.negated(c)))
        return self._multiply_add(name, a, b, odd, c)

    def _multiply_add(self, name: str, a: int, b: int, minus: bool, c: int) -> int:
        return self.of(name, "-" if minus else "+", a, b, c)

    def compared(self, how: str, a: int, b: int) -> int:
        """The word of a predicate: a float comparison."""
        name, exchanged, not_ = COMPARISONS[how]
        a, b = (b, a) if exchanged else (a, b)
        if name in ("EQ", "NE", "NUM"):
            a, b = sorted((a, b))
        found = self.of(name, a, b)
        return self.negated_truth(found) if not_ else found

    @staticmethod
    def negated_truth(word: int) -> int:
        """The negation of a predicate, known (0 or 1) or not."""
        return 1 - word if word >= 0 else -((-word - 1) ^ 1) - 1

    def both(self, a: int, b: int) -> int:
        """a and b, predicates."""
        if a == 0 or b == 0:
            return 0
        if a == 1 or b == 1:
            return a if b == 1 else b
        return a if a == b else self.of("and", *sorted((a, b)))

    def either(self, a: int, b: int) -> int:
        """a or b, predicates."""
        return self.negated_truth(self.both(self.negated_truth(a), self.negated_truth(b)))

    def chosen(self, condition: int, a: int, b: int) -> int:
        """a where the condition holds, else b."""
        if condition >= 0:
            return a if condition else b
        if a == b:
            return a
        if self.turned(condition):
            condition, a, b = self.negated_truth(condition), b, a
        return self.of("chosen", condition, a, b)

    def is_number(self, word: int) -> bool:
        """Whether a word is known but for predicates that choose between numbers."""
        if word >= 0:
            return True
        name, *rest = self.key(word)
        return name == "chosen" and not self.turned(word) and all(map(self.is_number, rest[1:]))

    def computed(self, name: str, function: Callable[..., int], words: tuple[int, ...], truth=False) -> int:
        """function of numbers, case by case where predicates choose between them; a formula of other words.

        truth: whether the result is a predicate.
        """
        if min(words) >= 0:
            return function(*words)
        if not all(map(self.is_number, words)):
            return self.of(name, *words)
        condition = min(self.key(w)[1] for w in words if w < 0)
        cases = []
        for k in (2, 3):
            case = tuple(
                self.key(w)[k] if w < 0 and self.key(w)[1] == condition else w for w in words
            )  # fmt: skip
            cases.append(self.computed(name, function, case, truth))
        if truth and sorted(cases) == [0, 1]:
            return condition if cases[0] else self.negated_truth(condition)
        return self.chosen(condition, *cases)

    # ----------------------------------------------------------------------------------------- in words

    def told(self, word: int, depth: int = 4) -> str:
        """A formula in words, as deep as asked for."""
        if word >= 0:
            return f"{word:#x}"
        name, *rest = self.key(word)
        sign = "-" if self.turned(word) else ""
        if depth == 0:
            return f"{sign}{name}#{(-word - 1) >> 1}"
        inner = (self.told(w, depth - 1) if isinstance(w, int) else str(w) for w in rest)
        return f"{sign}{name}({', '.join(inner)})"

    def parts(self, word: int) -> set[int]:
        """The formulas within a formula, itself included, signs aside."""
        found: set[int] = set()
        todo = [word]
        while todo:
            w = todo.pop()
            plain = self.negated(w) if self.turned(w) else w
            if plain < 0 and plain not in found:
                found.add(plain)
                todo += [k for k in self.key(plain)[1:] if isinstance(k, int) and k < 0]
        return found

    def first_difference(self, a: int, b: int) -> tuple[int, int]:
        """The innermost formula of a that b lacks, and the reverse; a formula itself where there is none."""
        of_a, of_b = self.parts(a), self.parts(b)
        return max(of_a - of_b, default=a), max(of_b - of_a, default=b)
