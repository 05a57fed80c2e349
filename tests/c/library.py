"""libonegru by Python's foreign-function interface: onegru.h, and nothing of onegru._native."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from onegru.core.activations import ACTIVATIONS
from onegru.core.dtypes import ELEMENT_TYPES, Array, group_size
from onegru.core.spec import ATTENTIONS, DIRECTIONS, Spec, Weights
from tests.support.machine.repository import ROOT

OK, INVALID_ARGUMENT, OUT_OF_MEMORY, CANNOT_READ, BAD_FILE, NO_SUCH_LAYER, UNSUPPORTED, INTERNAL = range(8)
ALL_ROWS = 2 ** (8 * ctypes.sizeof(c_size_t)) - 1


class CActivation(ctypes.Structure):
    """onegru_activation."""

    _fields_: ClassVar = [
        ("function", c_int32),
        ("reserved", c_int32),
        ("alpha", c_double),
        ("beta", c_double),
    ]


class CStorage(ctypes.Structure):
    """onegru_storage."""

    _fields_: ClassVar = [("weight_storage", c_int32), ("activation_bits", c_int32), ("group", c_uint32)]


class CSpec(ctypes.Structure):
    """onegru_spec."""

    _fields_: ClassVar = [
        ("size", c_uint32),
        ("input_size", c_uint32),
        ("hidden_size", c_uint32),
        ("dtype", c_int32),
        ("direction", c_int32),
        ("linear_before_reset", c_int32),
        ("attention", c_int32),
        ("storage", CStorage),
        ("clip", c_double),
        ("activations", CActivation * 4),
        ("flush_subnormals", c_int32),
        ("reserved", c_int32),
    ]


class COptions(ctypes.Structure):
    """onegru_options."""

    _fields_: ClassVar = [
        ("size", c_uint32),
        ("storage", CStorage),
        ("flush_subnormals", c_int32),
        ("reserved", c_int32),
    ]


class CCall(ctypes.Structure):
    """onegru_call."""

    _fields_: ClassVar = [
        ("size", c_uint32),
        ("layout", c_int32),
        ("T", c_size_t),
        ("B", c_size_t),
        ("X", c_void_p),
        ("sequence_lens", c_void_p),
        ("initial_h", c_void_p),
        ("attention", c_void_p),
        ("Y", c_void_p),
        ("Y_h", c_void_p),
    ]


class StatusError(Exception):
    """A status that is not ONEGRU_OK."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


_SIGNATURES: dict[str, Sequence[Any]] = {
    "onegru_set_num_threads": (c_size_t,),
    "onegru_layer_create": (POINTER(CSpec), c_void_p, c_void_p, c_void_p, POINTER(c_void_p)),
    "onegru_layer_open": (c_char_p, c_size_t, POINTER(COptions), POINTER(c_void_p)),
    "onegru_layer_read": (c_void_p, c_size_t, c_size_t, POINTER(COptions), POINTER(c_void_p)),
    "onegru_layers_open": (c_char_p, POINTER(COptions), c_size_t, POINTER(c_void_p), POINTER(c_size_t)),
    "onegru_layers_read": (
        c_void_p,
        c_size_t,
        POINTER(COptions),
        c_size_t,
        POINTER(c_void_p),
        POINTER(c_size_t),
    ),
    "onegru_layer_spec": (c_void_p, POINTER(CSpec)),
    "onegru_layer_run": (c_void_p, POINTER(CCall)),
    "onegru_stream_create": (c_void_p, c_size_t, POINTER(c_void_p)),
    "onegru_stream_step": (c_void_p, c_void_p, c_void_p, c_void_p),
    "onegru_stream_run": (c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p),
    "onegru_stream_get_state": (c_void_p, c_void_p),
    "onegru_stream_set_state": (c_void_p, c_void_p),
    "onegru_stream_reset": (c_void_p, c_size_t),
}


def _load() -> ctypes.CDLL | None:
    built = sorted(ROOT.glob("build/module-*/libonegru.so"), key=lambda path: path.stat().st_mtime)
    return ctypes.CDLL(str(built[-1])) if built else None


LIBRARY = _load()
if LIBRARY is not None:
    for _name, _arguments in _SIGNATURES.items():
        getattr(LIBRARY, _name).argtypes = _arguments
    LIBRARY.onegru_error_message.restype = c_char_p
    LIBRARY.onegru_version.restype = c_uint32
    for _name in ("onegru_layer_destroy", "onegru_stream_destroy"):
        getattr(LIBRARY, _name).argtypes, getattr(LIBRARY, _name).restype = (c_void_p,), None
    LIBRARY.onegru_spec_init.argtypes = (POINTER(CSpec), c_uint32, c_uint32)
    LIBRARY.onegru_spec_init.restype = None

needs_library = pytest.mark.skipif(LIBRARY is None, reason="libonegru is not built")


def call(name: str, *arguments: Any) -> None:
    """Call a function; raises StatusError."""
    assert LIBRARY is not None
    status = getattr(LIBRARY, name)(*arguments)
    if status != OK:
        raise StatusError(status, LIBRARY.onegru_error_message().decode())


def at(array: Array | None) -> int | None:
    """Where an array's memory is."""
    return None if array is None else array.ctypes.data


def storage_of(weight_storage: str | None, activation_storage: str | None, dtype: str) -> CStorage:
    """The storage that arguments of `onegru.GRU` name."""
    kind = (weight_storage or dtype).partition("_")[0]
    bits = 16 if activation_storage == "bfloat16" else 0
    if kind == "int8":
        bits = int((activation_storage or "int16")[3:])
    return CStorage((*ELEMENT_TYPES, "int8").index(kind), bits, group_size(weight_storage))


class Layer:
    """An onegru_layer."""

    def __init__(self, handle: c_void_p) -> None:
        self.handle = handle
        self.spec = CSpec(size=ctypes.sizeof(CSpec))
        call("onegru_layer_spec", handle, byref(self.spec))

    @classmethod
    def create(
        cls, spec: Spec, weights: Weights, weight_storage: str | None, activation: str | None
    ) -> Layer:
        """A layer of the Python package's specification and weights."""
        given = c_spec(spec)
        given.storage = storage_of(weight_storage, activation, spec.dtype)
        computed = np.float64 if spec.dtype == "float64" else np.float32
        arrays = [np.ascontiguousarray(a, computed) for a in (weights.W, weights.R, weights.B)]
        handle = c_void_p()
        call("onegru_layer_create", byref(given), *map(at, arrays), byref(handle))
        return cls(handle)

    @classmethod
    def open(cls, path: Path, index: int = 0, options: COptions | None = None) -> Layer:
        """A layer of a file."""
        handle = c_void_p()
        call("onegru_layer_open", str(path).encode(), index, options and byref(options), byref(handle))
        return cls(handle)

    @classmethod
    def read(cls, content: bytes, index: int = 0) -> Layer:
        """A layer of a file in memory, which is gone afterwards."""
        memory = ctypes.create_string_buffer(content, len(content))
        handle = c_void_p()
        call("onegru_layer_read", memory, len(content), index, None, byref(handle))
        return cls(handle)

    @classmethod
    def read_all(cls, content: bytes) -> list[Layer]:
        """All layers of a file in memory."""
        handles, count = (c_void_p * 256)(), c_size_t()
        first = ctypes.cast(handles, POINTER(c_void_p))
        call("onegru_layers_read", content, len(content), None, 256, first, byref(count))
        return [cls(c_void_p(handle)) for handle in handles[: count.value]]

    def run(
        self,
        X: Array,
        *,
        layout: int = 0,
        lengths: Array | None = None,
        initial_h: Array | None = None,
        attention: Array | None = None,
    ) -> tuple[Array, Array]:
        """Y and Y_h."""
        D, H = 1 + (self.spec.direction == 2), self.spec.hidden_size
        T, B = X.shape[:2] if layout == 0 else X.shape[1::-1]
        Y = np.full((T, D, B, H) if layout == 0 else (B, T, D, H), np.nan, X.dtype)
        Y_h = np.full((D, B, H) if layout == 0 else (B, D, H), np.nan, X.dtype)
        lengths = None if lengths is None else np.ascontiguousarray(lengths, np.int32)
        inputs = [None if a is None else np.ascontiguousarray(a) for a in (X, initial_h, attention)]
        X, initial_h, attention = inputs  # type: ignore[assignment]
        arrays = [at(array) for array in (X, lengths, initial_h, attention, Y, Y_h)]
        given = c_call(T, B, layout, *arrays)
        call("onegru_layer_run", self.handle, byref(given))
        return Y, Y_h

    def __del__(self) -> None:
        assert LIBRARY is not None
        LIBRARY.onegru_layer_destroy(self.handle)


def c_call(T: int, B: int, layout: int, *arrays: int | None) -> CCall:
    """A call, with the addresses of its arrays in order."""
    return CCall(ctypes.sizeof(CCall), layout, T, B, *arrays)


def options_of(storage: CStorage | None, flush_subnormals: int = -1) -> COptions:
    """Options that change the storage, or subnormal states."""
    return COptions(ctypes.sizeof(COptions), storage or CStorage(-1, 0, 0), flush_subnormals, 0)


def c_spec(spec: Spec) -> CSpec:
    """The specification as C has it."""
    assert LIBRARY is not None
    given = CSpec(size=ctypes.sizeof(CSpec))
    LIBRARY.onegru_spec_init(byref(given), spec.input_size, spec.hidden_size)
    given.dtype = given.storage.weight_storage = ELEMENT_TYPES.index(spec.dtype)
    given.direction = DIRECTIONS.index(spec.direction)
    given.linear_before_reset = spec.linear_before_reset
    given.attention = (None, *ATTENTIONS).index(spec.attention)
    if spec.clip is not None:
        given.clip = spec.clip
    for index, function in enumerate(item for pair in spec.activations for item in pair):
        given.activations[index] = CActivation(
            list(ACTIVATIONS).index(function.name), 0, *function.parameters
        )
    return given


class Stream:
    """An onegru_stream."""

    def __init__(self, layer: Layer, rows: int = 1) -> None:
        self.handle = c_void_p()
        call("onegru_stream_create", layer.handle, rows, byref(self.handle))
        self.rows, self.H = rows, layer.spec.hidden_size
        self.computed = np.float64 if layer.spec.dtype == ELEMENT_TYPES.index("float64") else np.float32

    def run(self, X: Array, attention: Array | None = None, rows: Array | None = None) -> Array:
        """Y [T, n, H] of X [T, n, I]."""
        X = np.ascontiguousarray(X)
        Y = np.full((*X.shape[:2], self.H), np.nan, X.dtype)
        where = None if rows is None else np.ascontiguousarray(rows, np.int32)
        attention = None if attention is None else np.ascontiguousarray(attention)
        call("onegru_stream_run", self.handle, len(X), at(where), X.shape[1], at(X), at(attention), at(Y))
        return Y

    @property
    def state(self) -> Array:
        """[rows, H]."""
        h = np.empty((self.rows, self.H), self.computed)
        call("onegru_stream_get_state", self.handle, at(h))
        return h

    @state.setter
    def state(self, h: Array) -> None:
        call("onegru_stream_set_state", self.handle, at(np.ascontiguousarray(h, self.computed)))

    def reset(self, row: int = ALL_ROWS) -> None:
        """Zeros again."""
        call("onegru_stream_reset", self.handle, row)

    def __del__(self) -> None:
        assert LIBRARY is not None
        LIBRARY.onegru_stream_destroy(self.handle)
