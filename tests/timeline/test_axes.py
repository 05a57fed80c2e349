"""Axes through a Reshape."""

from __future__ import annotations

import pytest

from onegru.timeline.axes import EqualAxes


@pytest.mark.parametrize(
    ("sizes", "wanted", "found"),
    [
        ((2, 3, 4), (6, 4), ["ab", "c"]),
        ((2, "T", 4), (2, "T", 2, 2), ["a", "b", "?", "?"]),
        ((2, "T", 4), ("new", 4), ["ab", "c"]),
        ((2, "T", 4), (2, "new"), ["a", "bc"]),
        ((1, 1, 33, 16), (1, 33, 16), ["ab", "c", "d"]),
        ((1, 33, 1, 16), (33, 1, 16), ["ab", "c", "d"]),
        ((33, 1, 16), (1, 33, 1, 16), ["?", "a", "b", "c"]),
        ((2, 3), (2, 1, 3), ["a", "?", "b"]),
        ((2, 3), (3, 2), [None, None]),
        (("T", "B"), ("x", "y"), [None, None]),
        ((1, 5), (5,), ["ab"]),
        ((5, 1), (5,), ["ab"]),
        ((1,), (), []),
    ],
)
def test_a_reshape(sizes: tuple, wanted: tuple, found: list) -> None:  # type: ignore[type-arg]
    axes = EqualAxes()
    given = [axes.new(size) for size in sizes]
    names = {axis[0]: letter for axis, letter in zip(given, "abcd", strict=False)}
    got, lost = axes.regroup(given, sizes, wanted)
    words = [None if axis is None else "".join(names.get(item, "?") for item in axis) for axis in got]
    assert words == found
    assert bool(lost) == (None in found or wanted[-2:] == (2, 2))


def test_an_axis_that_was_split_is_whole_again() -> None:
    axes = EqualAxes()
    wide, time = axes.new(8), axes.new("T")
    (first, second, same), _ = axes.regroup([wide, time], (8, "T"), (2, 4, "T"))
    assert same == time and first is not None and second is not None
    (whole, _), _ = axes.regroup([first, second, time], (2, 4, "T"), (8, "T"))
    assert axes.main(whole or ()) == axes.main((*first, *second)) == axes.main(wide)


def test_axes_side_by_side_are_the_same() -> None:
    axes = EqualAxes()
    time, batch, rows = axes.new("T"), axes.new("B"), axes.new("rows")
    folded = (*batch, *time)
    assert not axes.goes_along(rows, axes.main(time))
    axes.join(folded, rows)
    assert axes.goes_along(rows, axes.main(time))
    assert not axes.goes_along(batch, axes.main(time))
    assert not axes.goes_along(None, axes.main(time))


def test_ones_do_not_count_with_others() -> None:
    axes = EqualAxes()
    step, rows = axes.new(1), axes.new(33)
    assert axes.main((*step, *rows)) == axes.main(rows)
    assert axes.goes_along(step, axes.main(step))


def test_an_axis_of_too_many_factors() -> None:
    axes = EqualAxes()
    axis = axes.new("n")
    with pytest.raises(ValueError, match="too many factors"):
        for _ in range(40):
            wide = axes.new(f"{_}")
            axes.join((*axis, *axis), wide)
            axis = wide


def test_axes_whose_sizes_nobody_knows_are_not_the_same() -> None:
    axes = EqualAxes()
    assert axes.new("") != axes.new("")
    assert axes.named("") is None


def test_a_size_that_is_changed_is_that_of_the_factor_that_is_not_1() -> None:
    axes = EqualAxes()
    axis = (*axes.new(1), *axes.new(3))
    one, three = axis
    same, smaller = axes.resized(axis, "fewer", changes=True)
    assert same == one and axes.find(smaller) == three
    assert axes.is_changed(smaller) and axes.sizes_of(smaller)[0] == "fewer"
    assert axes.resized((*axes.new(2), three), "other name")[1] == three


def test_which_of_several_factors_is_changed_is_not_known() -> None:
    axes = EqualAxes()
    axis = (*axes.new(2), *axes.new(3))
    changed, three = axes.resized(axis, 4, changes=True)
    assert three == axis[1] and axes.is_changed(changed) and axes.sizes_of(changed)[0] == ""
