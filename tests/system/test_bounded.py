"""Untrusted JSON."""

from __future__ import annotations

import time

import pytest

from onegru.system.bounded import parse_json


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^JSON object with a duplicate key, 'a'$"):
        parse_json('[{"b": {"a": 1, "c": 2, "a": 1}}]')
    assert parse_json('[{"a": 1, "b": {"a": 2}}, {"a": NaN}]')[0] == {"a": 1, "b": {"a": 2}}


def test_many_names_twice_take_no_time() -> None:
    names = ",".join(f'"{index}":0' for index in [*range(100_000), *range(100_000)])
    started = time.perf_counter()
    with pytest.raises(ValueError, match="duplicate key, '0'"):
        parse_json(f"{{{names}}}")
    assert time.perf_counter() - started < 20  # each for itself would take minutes


def test_deep_json_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON nested more than 64 levels deep"):
        parse_json("[" * 65 + "]" * 65)
