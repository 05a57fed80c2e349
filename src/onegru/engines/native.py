"""The native core: its engine, its threads and its SIMD targets."""

from __future__ import annotations

import functools
import math
import os
import re
import sys
from dataclasses import dataclass

import numpy as np

from onegru import _native
from onegru.core.activations import ACTIVATIONS
from onegru.core.arguments import integer
from onegru.core.dtypes import ACTIVATION_STORAGES, ELEMENT_TYPES, Array, contiguous, group_size, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.machine import usable_cores
from onegru.core.spec import ATTENTIONS, Spec, Weights
from onegru.engines.interface import EngineOptions, EngineStream, Problem

_STORAGES = (*ELEMENT_TYPES, "int8")  # as in native/problem.h

_FUNCTIONS = {name: index for index, name in enumerate(ACTIVATIONS)}

#: The largest number of threads of a call.
MOST_THREADS = 64

# The last argument of `set_num_threads`; 0 for the default.
_asked = 0

# Digest of _native.pyi.
# table: native_digest
_DIGEST = "b96eea54fe5f"
# end

#: The interface that the compiled module must have: its functions, as a digest, and the tables whose rows are
#: passed to it by number. `python -m docs.generate` writes it into the module's sources.
INTERFACE = " ".join((_DIGEST, *ACTIVATIONS, *_STORAGES, str(MOST_THREADS)))


def check_module(found: str | None) -> None:
    """Raise ImportError if the module was built from other sources, as in a tree that was updated."""
    if found != INTERFACE:
        raise ImportError(
            "onegru: the compiled module does not match the Python files; build it again: `make run` or "
            "`make test` in a clone, `pip install --force-reinstall .` otherwise"
        )


if "docs.generate" not in sys.modules:  # it writes the sources of the next module
    check_module(_native.interface() if hasattr(_native, "interface") else None)


@dataclass(frozen=True, slots=True)
class Targets:
    """The SIMD targets of the native core.

    Attributes:
        available: the compiled targets that this processor supports, best first.
        chosen: the target in use: the best, or the one that the environment variable ONEGRU_TARGET names.
        int8: the instructions for int8 matmuls: "simd" for the target's usual instructions, "vnni" for
            AVX-512 VNNI or AVX-VNNI, "amx" for AMX with several rows and VNNI with one row.
        is_native: whether the build has only one target, such as an editable install for the target of the
            machine that built it. `pip install .` and wheels have every target.
    """

    available: tuple[str, ...]
    chosen: str
    int8: str
    is_native: bool


Targets.__module__ = "onegru.reports"


def targets() -> Targets:
    """Return the available SIMD targets and the one in use.

    Raises:
        SpecError: ONEGRU_TARGET or ONEGRU_NUM_THREADS is invalid.
    """
    _honour_environment()
    return Targets(
        tuple(_native.available_targets()),
        _native.chosen_target(),
        _native.int8_products(),
        _native.is_native(),
    )


def set_num_threads(n: int | None) -> None:
    """Set the maximum number of threads of a call, including the calling thread.

    The number never changes a result. The environment variable ONEGRU_NUM_THREADS has the same effect.

    Args:
        n: 1…64. None for the default: the first number of the environment variable OMP_NUM_THREADS, else the
            number of physical cores that the process can use. On Linux, a call uses fewer of these cores
            while other processes need them.

    Raises:
        SpecError: n is not a number from 1 to 64.
    """
    _honour_environment()
    _set(0 if n is None else integer("n", n, 1, MOST_THREADS))


def get_num_threads() -> int:
    """Return the maximum number of threads of a call."""
    _honour_environment()
    return _native.num_threads()


def asked_threads() -> int | None:
    """Return the last argument of `set_num_threads`. With None, the default, a call may use fewer threads."""
    _honour_environment()
    return _asked or None


def empty_cache() -> int:
    """Release the cached memory of outputs.

    New outputs of 64 KiB and more reuse the memory of deleted outputs, because fresh memory costs more than
    the arithmetic of a small layer. At most 64 MiB are kept. Memory that was unused for ten seconds is
    released by the next call that makes or frees such an output.

    Returns:
        the number of bytes released to the system.
    """
    return _native.release_memory()


@functools.cache
def _honour_environment() -> None:
    """Read ONEGRU_TARGET and ONEGRU_NUM_THREADS once, when the native core is first used."""
    name = os.environ.get("ONEGRU_TARGET")
    if name and name not in _native.available_targets():
        must = ", ".join(_native.available_targets())
        error = f"ONEGRU_TARGET: {name!r}; must be one of {must}, the targets for this CPU in this build"
        raise SpecError(error, "ONEGRU_TARGET")
    threads = os.environ.get("ONEGRU_NUM_THREADS", "")
    if threads and (re.fullmatch(r"[0-9]{1,3}", threads) is None or not 1 <= int(threads) <= MOST_THREADS):
        raise SpecError.of("ONEGRU_NUM_THREADS", f"{threads!r}; must be 1…{MOST_THREADS}")
    _native.select_target(name or None)
    _set(int(threads or 0))


def _set(threads: int) -> None:
    """Set the number of threads; 0 for the default."""
    # OMP_NUM_THREADS can be a list with a number for each level. Other libraries report its errors.
    global _asked
    _asked = threads
    first = re.match(r"\s*0*([1-9][0-9]*)\s*(,|$)", os.environ.get("OMP_NUM_THREADS", ""))
    if not threads and first:
        threads = int(first[1][:3])
    _native.set_num_threads(min(threads or usable_cores(), MOST_THREADS), not threads)


def layer_arguments(
    spec: Spec,
) -> tuple[int, int, list[bool], bool, int, float, list[tuple[int, float, float]]]:
    """Translate a specification for the native core, without the type."""
    _honour_environment()
    return (
        spec.input_size,
        spec.hidden_size,
        list(spec.reversed_directions),
        spec.linear_before_reset,
        (None, *ATTENTIONS).index(spec.attention),
        math.inf if spec.clip is None else spec.clip,
        [(_FUNCTIONS[a.name], *a.parameters) for pair in spec.activations for a in pair],
    )


class NativeEngine:
    """The SIMD kernels. They compute in float64 or float32, like the layer, and round 16-bit outputs once."""

    name = "native"

    def __init__(self, spec: Spec, weights: Weights, options: EngineOptions) -> None:
        self._compute = np.dtype(np.float64 if spec.dtype == "float64" else np.float32)
        self._dtype = numpy_dtype(spec.dtype)
        self._B = weights.B
        self.native = _native.Layer(
            *layer_arguments(spec),
            ELEMENT_TYPES.index(spec.dtype),
            _STORAGES.index((options.weight_storage or spec.dtype).partition("_")[0]),
            ACTIVATION_STORAGES.get(options.activation_storage or "", 1),
            group_size(options.weight_storage),
            options.flush_subnormals,
            self._dtype,
            *(contiguous(a, self._compute) for a in (weights.W, weights.R, weights.B)),
        )
        self._shapes = weights.W.shape, weights.R.shape

    @property
    def weights(self) -> Weights:
        """Return the weights, unpacked."""
        W, R = (np.empty(shape, self._compute) for shape in self._shapes)
        self.native.unpack(W, R)
        return Weights(W.astype(self._dtype), R.astype(self._dtype), self._B)

    def run(self, problem: Problem) -> None:
        """Write the outputs of `problem`."""
        lengths = problem.sequence_lens
        outputs = [None if array is None else _rows(array) for array in (problem.Y, problem.Y_h)]
        self.native.run(
            _rows(problem.X),
            None if problem.initial_h is None else _rows(problem.initial_h),
            None if lengths is None else contiguous(lengths, np.int64),
            problem.attention,
            outputs[0],
            outputs[1],
            False,
        )
        for array, written in zip((problem.Y, problem.Y_h), outputs, strict=True):
            if array is not None and written is not array:
                array[...] = written

    def stream(self, state: Array) -> EngineStream:
        """Return a stream with this state."""
        return _NativeStream(_native.Stream(self.native, state))


class _NativeStream:
    """Steps of a stream in native code."""

    def __init__(self, stream: _native.Stream) -> None:
        self.native = stream

    def run(self, X: Array, attention: Array | None, rows: Array | None, Y: Array) -> None:
        """Run checked steps."""
        written = _rows(Y)
        self.native.run(_rows(X), attention, rows, written)
        if written is not Y:
            Y[...] = written


def _rows(array: Array) -> Array:
    """Return `array`, or a copy if its last axis is not contiguous or its elements are not aligned."""
    is_contiguous = array.shape[-1] <= 1 or array.strides[-1] == array.itemsize
    return array if is_contiguous and array.flags.aligned else np.array(array, order="C")
