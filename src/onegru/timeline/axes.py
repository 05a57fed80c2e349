"""Find the axes of a model's values that are equal.

An axis is a tuple of factors: one number for most axes, two for [batch·time]. If an operator combines two
axes element by element, their factors become the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from onegru.dataflow.operator import TIMES, Size

Axis = tuple[int, ...]

_MOST_FACTORS = 64  # of one axis; in a malicious file, the number could double with each node


class EqualAxes:
    """Factors of axes, grouped into equal ones by a union-find forest."""

    def __init__(self) -> None:
        self._parents: list[int] = []  # an equal factor, by factor; itself for the root of a group
        self._sizes: list[Size] = []  # by factor
        self._named: dict[str, int] = {}  # factors by the names of their sizes
        self._parts: dict[int, Axis] = {}  # factors that are products of others
        self._changed: set[int] = set()

    def new(self, size: Size) -> Axis:
        """Return an axis of this size: the existing axis of a known name; "" for an unknown size."""
        if isinstance(size, str) and size in self._named:
            return (self._named[size],)
        self._parents.append(len(self._parents))
        self._sizes.append(size)
        if size and isinstance(size, str):
            self._named[size] = self._parents[-1]
        return (self._parents[-1],)

    def find(self, factor: int) -> int:
        """Return the root of the factors that equal this one."""
        while self._parents[factor] != factor:
            self._parents[factor] = self._parents[self._parents[factor]]
            factor = self._parents[factor]
        return factor

    def sizes_of(self, factor: int) -> list[Size]:
        """Return the size or name of a factor, and the sizes of factors that differ only in their size."""
        same = (size for other, size in enumerate(self._sizes) if self.find(other) == self.find(factor))
        return [self._sizes[factor], *same]

    def named(self, size: str) -> Axis | None:
        """Return the axis of a named size."""
        return (self._named[size],) if size in self._named else None

    def flat(self, axis: Axis) -> Axis:
        """Return an axis as factors that are not divided further."""
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
        """Record that two axes are equal."""
        a, b = self.flat(first), self.flat(second)
        if len(a) == len(b):
            for left, right in zip(a, b, strict=True):
                self._parents[self.find(right)] = self.find(left)
        elif min(len(a), len(b)) == 1:
            (one,), many = (a, b) if len(a) == 1 else (b, a)
            if one not in many:
                self._parts[one] = many

    def resized(self, axis: Axis, size: Size | None, changes: bool = False) -> Axis:
        """Return the same axis with another size, because an operator changed it or uses another name."""
        flat = self.flat(axis)
        large = [factor for factor in flat if self._sizes[factor] != 1] or list(flat[:1])
        is_one = len(large) == 1
        if size is None or not (is_one or (large and changes)) or (is_one and self._sizes[large[0]] == size):
            return axis
        self._parents.append(self.find(large[0]))
        self._sizes.append(size if is_one else "")  # unknown which of several factors changes
        if changes or large[0] in self._changed:
            self._changed.add(len(self._parents) - 1)
        return tuple(len(self._parents) - 1 if factor == large[0] else factor for factor in flat)

    def is_changed(self, factor: int) -> bool:
        """Whether a factor's size differs from the sizes of equal factors."""
        return factor in self._changed

    def main(self, axis: Axis) -> set[int]:
        """Return the factors of an axis; those of size 1 only if it has no others."""
        flat = self.flat(axis)
        large = [factor for factor in flat if self._sizes[factor] != 1]
        return set(map(self.find, large or flat))

    def regroup(
        self, axes: Sequence[Axis], sizes: Sequence[Size], wanted: Sequence[Size]
    ) -> tuple[list[Axis | None], set[int]]:
        """Return the axes of a tensor after a Reshape to these sizes, and the factors that it divides."""
        factors: list[tuple[int, Size]] = []
        for axis, size in zip(axes, sizes, strict=True):
            flat = self.flat(axis)
            factors += [(flat[0], size)] if len(flat) == 1 else [(part, self._sizes[part]) for part in flat]
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
        """Return the first axes that are certain, and the remaining factors and sizes."""
        factors, found = list(factors), list[Axis | None]()
        while len(found) < len(wanted) and factors:
            size, matched, product = wanted[len(found)], list[int](), 1
            ones = _count_ones(own for _, own in factors)
            if size == 1:
                wanting = _count_ones(wanted[len(found) :])
                count = min(ones, max(1, ones - wanting + 1))
                matched = [factor for factor, _ in factors[:count]]
                del factors[:count]
            elif isinstance(size, str):
                if len(factors) == ones or not self._is_size(size, *factors[ones]):
                    break
                matched = [factor for factor, _ in factors[: ones + 1]]
                del factors[: ones + 1]
            elif size == 0:
                break
            else:
                count = 0
                while count < len(factors) and product != size:
                    own = factors[count][1]
                    if not isinstance(own, int) or own < 1 or size % (product * own):
                        break
                    product, count = product * own, count + 1
                if product != size and count < len(factors):
                    factor, own = factors[count]
                    if not isinstance(own, int) or own % (size // product):
                        break
                    piece, rest = self._split(factor, own, size // product, backwards)
                    cut.add(self.find(factor))
                    factors[count : count + 1] = [(piece, size // product), (rest, own * product // size)]
                    count += 1
                elif product != size:
                    break
                matched = [factor for factor, _ in factors[:count]]
                del factors[:count]
            found.append(tuple(matched[::-1] if backwards else matched) or self.new(1))
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
        """Whether a name belongs to a factor, or to an equal factor of unknown size."""
        named = self._named.get(size)
        return own == size or (
            named is not None and isinstance(own, str) and self.find(named) == self.find(factor)
        )

    def _split(self, factor: int, size: int, piece: int, backwards: bool) -> tuple[int, int]:
        """Split a factor in two; the result is the same each time."""
        first, second = (size // piece, piece) if backwards else (piece, size // piece)
        known = self._parts.get(factor)
        if known is None or [self._sizes[part] for part in known] != [first, second]:
            known = self._parts[factor] = (*self.new(first), *self.new(second))
        return (known[1], known[0]) if backwards else (known[0], known[1])

    def time_factors(self, time: Collection[int]) -> tuple[set[int], set[int]]:
        """Return all factors with a part of time, and those that are only time."""
        divided = {
            self.find(factor): {self.find(part) for part in self.flat(axis) if self._sizes[part] != 1}
            for factor, axis in self._parts.items()
        }
        only_time, before = set(time), 0
        while len(only_time) > before:
            before = len(only_time)
            for factor, parts in divided.items():
                if factor in only_time:
                    only_time |= parts
                elif parts and parts <= only_time:
                    only_time.add(factor)
        with_time = {factor for factor, parts in divided.items() if not parts.isdisjoint(only_time)}
        return only_time | with_time, only_time

    def goes_along(self, axis: Axis | None, time: Collection[int]) -> bool:
        """Whether an axis is one of these factors, or contains one."""
        return axis is not None and not self.main(axis).isdisjoint(time)


def parts_of(size: Size) -> list[str]:
    """Return the factors in a size's name as text."""
    return str(size).split(TIMES)


def _count_ones(sizes: Iterable[Size]) -> int:
    count = 0
    for size in sizes:
        if size != 1:
            break
        count += 1
    return count
