"""Find the axes of a model's values that are the same axis.

An axis is a tuple of factors: one number for most axes, two for [batch·time]. If an operator combines two
axes element by element, their factors become the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from onegru.dataflow.operator import Size

Axis = tuple[int, ...]

_MOST_FACTORS = 64  # of one axis; hostile files could have it double with each node


class Axes:
    """Factors, of which some turn out to be the same."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._sizes: list[Size] = []
        self._named: dict[str, int] = {}
        self._parts: dict[int, Axis] = {}
        self._changed: set[int] = set()

    def new(self, size: Size) -> Axis:
        """An axis of this size: the same one for a name that is known; "" for a size that is not."""
        if isinstance(size, str) and size in self._named:
            return (self._named[size],)
        self._parents.append(len(self._parents))
        self._sizes.append(size)
        if size and isinstance(size, str):
            self._named[size] = self._parents[-1]
        return (self._parents[-1],)

    def find(self, factor: int) -> int:
        """The first of the factors that are the same as this one."""
        while self._parents[factor] != factor:
            self._parents[factor] = self._parents[self._parents[factor]]
            factor = self._parents[factor]
        return factor

    def sizes_of(self, factor: int) -> list[Size]:
        """The size of a factor, or its name, and those of all that are the same but for their size."""
        same = (size for item, size in enumerate(self._sizes) if self.find(item) == self.find(factor))
        return [self._sizes[factor], *same]

    def named(self, size: str) -> Axis | None:
        """The axis of a named size."""
        return (self._named[size],) if size in self._named else None

    def flat(self, axis: Axis) -> Axis:
        """An axis in factors that are not divided any further."""
        waiting, found = [*axis][::-1], []
        while waiting:
            factor = waiting.pop()
            if factor in self._parts:
                waiting += self._parts[factor][::-1]
            else:
                found.append(factor)
            if len(found) + len(waiting) > _MOST_FACTORS:
                raise ValueError("too many factors")
        return tuple(found)

    def join(self, first: Axis, second: Axis) -> None:
        """Note that two axes are the same."""
        a, b = self.flat(first), self.flat(second)
        if len(a) == len(b):
            for left, right in zip(a, b, strict=True):
                self._parents[self.find(right)] = self.find(left)
        elif min(len(a), len(b)) == 1:
            (one,), many = (a, b) if len(a) == 1 else (b, a)
            if one not in many:
                self._parts[one] = many

    def resized(self, axis: Axis, size: Size | None, changes: bool = False) -> Axis:
        """The same axis by another size, which an operator has changed, or which only has another name."""
        flat = self.flat(axis)
        large = [item for item in flat if self._sizes[item] != 1] or list(flat[:1])
        is_one = len(large) == 1
        if size is None or not (is_one or (large and changes)) or (is_one and self._sizes[large[0]] == size):
            return axis
        self._parents.append(self.find(large[0]))
        self._sizes.append(size if is_one else "")  # which of several factors it changes is not known
        if changes or large[0] in self._changed:
            self._changed.add(len(self._parents) - 1)
        return tuple(len(self._parents) - 1 if item == large[0] else item for item in flat)

    def is_changed(self, factor: int) -> bool:
        """Whether the size of a factor is another than that of others that are the same."""
        return factor in self._changed

    def main(self, axis: Axis) -> set[int]:
        """The factors that an axis goes along: those of size 1 only if it has no others."""
        flat = self.flat(axis)
        return {self.find(item) for item in [f for f in flat if self._sizes[f] != 1] or flat}

    def regroup(
        self, axes: Sequence[Axis], sizes: Sequence[Size], wanted: Sequence[Size]
    ) -> tuple[list[Axis | None], set[int]]:
        """The axes of a tensor that a Reshape gives these sizes."""
        factors: list[tuple[int, Size]] = []
        for axis, size in zip(axes, sizes, strict=True):
            flat = self.flat(axis)
            factors += [(flat[0], size)] if len(flat) == 1 else [(item, self._sizes[item]) for item in flat]
        cut: set[int] = set()
        head, factors, wanted = self._matched(factors, list(wanted), cut)
        tail, rest, left = self._matched(factors[::-1], wanted[::-1], cut, backwards=True)
        middle: list[Axis | None] = [None] * len(left)
        rest = rest[::-1]
        if len(left) == 1 and rest:
            middle, rest = [tuple(factor for factor, _ in rest)], []
        return [*head, *middle, *tail[::-1]], cut | {self.find(factor) for factor, size in rest if size != 1}

    def _matched(
        self, factors: list[tuple[int, Size]], wanted: list[Size], cut: set[int], backwards: bool = False
    ) -> tuple[list[Axis | None], list[tuple[int, Size]], list[Size]]:
        """The first axes as far as they are certain, and what is left of the factors and the sizes."""
        factors, found = list(factors), list[Axis | None]()
        while len(found) < len(wanted) and factors:
            size, taken, product = wanted[len(found)], list[int](), 1
            ones = _count_ones(item for _, item in factors)
            if size == 1:
                wanting = _count_ones(wanted[len(found) :])
                count = min(ones, max(1, ones - wanting + 1))
                taken = [factor for factor, _ in factors[:count]]
                del factors[:count]
            elif isinstance(size, str):
                if len(factors) == ones or not self._is_size(size, *factors[ones]):
                    break
                taken = [factor for factor, _ in factors[: ones + 1]]
                del factors[: ones + 1]
            elif size == 0:
                break
            else:
                count = 0
                while count < len(factors) and product != size:
                    item = factors[count][1]
                    if not isinstance(item, int) or item < 1 or size % (product * item):
                        break
                    product, count = product * item, count + 1
                if product != size and count < len(factors):
                    factor, item = factors[count]
                    if not isinstance(item, int) or item % (size // product):
                        break
                    piece, rest = self._split(factor, item, size // product, backwards)
                    cut.add(self.find(factor))
                    factors[count : count + 1] = [(piece, size // product), (rest, item * product // size)]
                    count += 1
                elif product != size:
                    break
                taken = [factor for factor, _ in factors[:count]]
                del factors[:count]
            found.append(tuple(taken[::-1] if backwards else taken) or self.new(1))
        left = wanted[len(found) :]
        if not factors and all(size == 1 for size in left):
            return [*found, *(self.new(1) for _ in left)], [], []
        if not left and found and all(size == 1 for _, size in factors):
            ones_left = tuple(factor for factor, _ in factors)
            last = found[-1] or ()
            found[-1] = (*ones_left[::-1], *last) if backwards else (*last, *ones_left)
            return found, [], []
        return found, factors, left

    def _is_size(self, size: str, factor: int, own: Size) -> bool:
        """Whether a name is that of a factor, or of one that differs only in its size, which nobody knows."""
        named = self._named.get(size)
        return own == size or (
            named is not None and isinstance(own, str) and self.find(named) == self.find(factor)
        )

    def _split(self, factor: int, size: int, piece: int, backwards: bool) -> tuple[int, int]:
        """A factor in two; the same two each time."""
        first, second = (size // piece, piece) if backwards else (piece, size // piece)
        known = self._parts.get(factor)
        if known is None or [self._sizes[item] for item in known] != [first, second]:
            known = self._parts[factor] = (*self.new(first), *self.new(second))
        return (known[1], known[0]) if backwards else (known[0], known[1])

    def of_time(self, time: Collection[int]) -> tuple[set[int], set[int]]:
        """What else time is called: by factors that it is divided into, or was before it was resized."""
        parts = {
            self.find(factor): {self.find(item) for item in self.flat(axis) if self._sizes[item] != 1}
            for factor, axis in self._parts.items()
        }
        alone, before = set(time), 0
        while len(alone) > before:
            before = len(alone)
            for factor, roots in parts.items():
                if factor in alone:
                    alone |= roots
                elif roots and roots <= alone:
                    alone.add(factor)
        return alone | {factor for factor, roots in parts.items() if not roots.isdisjoint(alone)}, alone

    def goes_along(self, axis: Axis | None, time: Collection[int]) -> bool:
        """Whether an axis is one of these factors, or is made of one."""
        return axis is not None and not self.main(axis).isdisjoint(time)


def _count_ones(sizes: Iterable[Size]) -> int:
    count = 0
    for size in sizes:
        if size != 1:
            break
        count += 1
    return count
