"""Iterative graph queries, for chains of any length.

A recursive query of a file's long chain of operators would exceed Python's recursion limit. `answered_once`
stores each answer. It answers deep queries from the bottom first, and then calls the function again. So these
functions can be written recursively. They must not change anything before their last query is answered.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec, TypeVar

_Owner = TypeVar("_Owner")
_Key = TypeVar("_Key", bound=Hashable)
_Rest = ParamSpec("_Rest")
_Answer = TypeVar("_Answer")

_LEVELS = 30  # of nested queries, with up to ten calls each


class _Later(BaseException):  # callers' `except Exception` must not catch it
    """Query to be answered before the queries that led to it."""

    def __init__(self, question: Hashable, find: Callable[[], object]) -> None:
        super().__init__()
        self.question = question
        self.find = find


class _State(threading.local):
    def __init__(self) -> None:
        self.level = 0
        self.open: set[Hashable] = set()
        self.failed: dict[Hashable, Exception] = {}


_state = _State()


def answered_once(
    memo: str, circle: Callable[..., Any] = lambda owner, key: None
) -> Callable[
    [Callable[Concatenate[_Owner, _Key, _Rest], _Answer]], Callable[Concatenate[_Owner, _Key, _Rest], _Answer]
]:
    """Return a decorator for a method that computes an answer from its first argument and other answers."""

    def decorate(
        find: Callable[Concatenate[_Owner, _Key, _Rest], _Answer],
    ) -> Callable[Concatenate[_Owner, _Key, _Rest], _Answer]:
        @functools.wraps(find)
        def ask(owner: _Owner, key: _Key, /, *args: _Rest.args, **kwargs: _Rest.kwargs) -> _Answer:
            known: dict[Hashable, _Answer] = getattr(owner, memo)
            if key in known:
                return known[key]
            question = (memo, id(owner), key)
            if question in _state.open:
                of_circle: _Answer = circle(owner, key, *args, **kwargs)
                return of_circle
            if question in _state.failed:
                raise _state.failed[question]

            def answer() -> _Answer:
                found = find(owner, key, *args, **kwargs)
                getattr(owner, memo)[key] = found
                return found

            if _state.level >= _LEVELS:
                raise _Later(question, answer)
            return _nested(question, answer) if _state.level else _bottom_up(question, answer)

        return ask

    return decorate


def _nested(question: Hashable, answer: Callable[[], _Answer]) -> _Answer:
    _state.level += 1
    _state.open.add(question)
    try:
        return answer()
    finally:
        _state.level -= 1
        _state.open.discard(question)


def _bottom_up(question: Hashable, answer: Callable[[], _Answer]) -> _Answer:
    """Answer a query, and first those that are nested too deeply."""
    waiting: list[tuple[Hashable, Callable[[], object]]] = [(question, answer)]
    _state.level = 1
    _state.open.add(question)
    try:
        while True:
            last, find = waiting[-1]
            try:
                if len(waiting) == 1:
                    return answer()
                find()
            except _Later as later:
                waiting.append((later.question, later.find))
                _state.open.add(later.question)
                continue
            except Exception as error:
                if len(waiting) == 1:
                    raise
                _state.failed[last] = error  # for its caller
            waiting.pop()
            _state.open.discard(last)
    finally:
        _state.level = 0
        _state.open.clear()
        _state.failed.clear()
