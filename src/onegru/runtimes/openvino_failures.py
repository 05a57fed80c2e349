"""Failures of onegru's operators in OpenVINO.

OpenVINO loses every exception of a synchronous run on one thread (seen with 2025.4 and 2026.4). Its outputs
are then empty, or those of an earlier run. The next run begins with the failed task, whose request may no
longer exist. Asynchronous runs report all exceptions. So operators raise no exception that would be lost.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from onegru import _native
from onegru.operators.schema import OpSchema

# `tbb::detail::r1::max_concurrency`, mangled as by all compilers but MSVC. It is 1 if exceptions are lost.
_MAX_CONCURRENCY = "_ZN3tbb6detail2r115max_concurrencyEPKNS0_2d115task_arena_baseE"


@functools.cache
def _max_concurrency() -> Callable[[None], int]:
    try:
        (library,) = (Path(openvino.__file__).parent / "libs").glob("libtbb.*so*")
        function = ctypes.CDLL(str(library))[_MAX_CONCURRENCY]
    except (ValueError, OSError, AttributeError):
        return lambda _: 1
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
    return function


def are_lost() -> bool:
    """Whether OpenVINO would lose an exception of a run on this thread."""
    return _max_concurrency()(None) <= 1


def evaluate(
    run: Callable[[], None],
    operator: OpSchema,
    sizes: Mapping[str, int],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    is_watched: bool,
) -> bool:
    """Run an operator; if OpenVINO would lose its exception, store the message and fill the outputs."""
    try:
        run()
    except Exception as error:
        if _native.graph_fail(str(error), is_watched, _max_concurrency()(None)):
            raise
        X = tuple(inputs[0].shape)
        sizes = {**sizes, **dict(zip(operator.inputs[0].axes, X, strict=False))}
        for port, tensor in zip(operator.outputs, outputs, strict=True):
            tensor.shape = [sizes.get(axis, 1) for axis in port.axes]
            if tensor.size:
                is_bfloat16 = tensor.element_type.to_string() == "bf16"
                nan = 0x7FC0 if is_bfloat16 else np.nan
                (tensor.data.view(np.uint16) if is_bfloat16 else tensor.data)[...] = 0 if is_watched else nan
    return True
