"""Memoized methods that can call each other to any depth.

A recursive query of a file's long chain of operators would exceed Python's recursion limit. `memoized`
stores each result. It computes deep queries from the bottom first, and then calls the method again. So these
methods can be written recursively. They must not change anything before their last query has a result.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec, TypeVar

_Owner = TypeVar("_Owner")
_Key = TypeVar("_Key", bound=Hashable)
_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")

_MAX_DEPTH = 30  # of nested queries, with up to ten Python calls each


class _TooDeepError(BaseException):  # callers' `except Exception` must not catch it
    """A query must be computed before the queries that led to it."""

    def __init__(self, query: Hashable, compute: Callable[[], object]) -> None:
        super().__init__()
        self.query = query
        self.compute = compute


class _State(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        self.open: set[Hashable] = set()
        self.failed: dict[Hashable, Exception] = {}


_state = _State()


def memoized(
    attribute: str, if_circular: Callable[..., Any] = lambda owner, key: None
) -> Callable[
    [Callable[Concatenate[_Owner, _Key, _Rest], _Result]], Callable[Concatenate[_Owner, _Key, _Rest], _Result]
]:
    """Return a decorator that stores results in a dict of the owner; a circular query gets `if_circular`."""

    def decorate(
        method: Callable[Concatenate[_Owner, _Key, _Rest], _Result],
    ) -> Callable[Concatenate[_Owner, _Key, _Rest], _Result]:
        @functools.wraps(method)
        def query_result(owner: _Owner, key: _Key, /, *args: _Rest.args, **kwargs: _Rest.kwargs) -> _Result:
            known: dict[Hashable, _Result] = getattr(owner, attribute)
            if key in known:
                return known[key]
            query = (attribute, id(owner), key)
            if query in _state.open:
                circular: _Result = if_circular(owner, key, *args, **kwargs)
                return circular
            if query in _state.failed:
                raise _state.failed[query]

            def compute() -> _Result:
                result = method(owner, key, *args, **kwargs)
                getattr(owner, attribute)[key] = result
                return result

            if _state.depth >= _MAX_DEPTH:
                raise _TooDeepError(query, compute)
            return _nested(query, compute) if _state.depth else _bottom_up(query, compute)

        return query_result

    return decorate


def _nested(query: Hashable, compute: Callable[[], _Result]) -> _Result:
    _state.depth += 1
    _state.open.add(query)
    try:
        return compute()
    finally:
        _state.depth -= 1
        _state.open.discard(query)


def _bottom_up(query: Hashable, compute: Callable[[], _Result]) -> _Result:
    """Compute a query, after those that are nested too deeply."""
    waiting: list[tuple[Hashable, Callable[[], object]]] = [(query, compute)]
    _state.depth = 1
    _state.open.add(query)
    try:
        while True:
            last, compute_last = waiting[-1]
            try:
                if len(waiting) == 1:
                    return compute()
                compute_last()
            except _TooDeepError as deeper:
                waiting.append((deeper.query, deeper.compute))
                _state.open.add(deeper.query)
                continue
            except Exception as error:
                if len(waiting) == 1:
                    raise
                _state.failed[last] = error  # raised when its caller asks again
            waiting.pop()
            _state.open.discard(last)
    finally:
        _state.depth = 0
        _state.open.clear()
        _state.failed.clear()
