"""Choose the number of threads of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from onegru import _native

_P = ParamSpec("_P")
_T = TypeVar("_T")


def with_threads(run: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
    """Run a call with the smaller of `torch.get_num_threads` and `onegru.get_num_threads`."""
    _native.limit_threads(torch.get_num_threads())
    try:
        return run(*args, **options)
    finally:
        _native.limit_threads(0)
