"""ONNX Runtime: the one module that imports it."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from onegru.dtypes import Array
from onegru.errors import FormatError, MissingExtraError
from onegru.files.graph import ValueType
from onegru.files.onnx_read import Source
from onegru.native import get_num_threads

__all__ = ["Session"]

# What its messages begin with: a code and its name.
_STATUS = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_ONLY_FATAL = 4  # of ONNX Runtime's log levels; it logs an error and raises it as well
_MOST_AHEAD = "optimization.constant_folding_max_output_size_in_bytes"
# Up to so many bytes in and out, a run is so short that handing arrays over takes part of it.
_MOST_BYTES_BOUND = 1 << 16


class Session:
    """An ONNX Runtime session on a serialized model.

    Args:
        model: the model.
        source: the file that it comes from; its external data are looked up in the file's folder.
        where: what to call this part of the file in messages; empty for all of it.
        threads: how many threads it may use; None for as many as onegru.
        most_ahead: how many bytes a value may have that is computed here, ahead of all runs; None for ONNX
            Runtime's own bound.

    Raises:
        MissingExtraError: ONNX Runtime is not installed.
        FormatError: ONNX Runtime refuses the model.
    """

    def __init__(
        self,
        model: bytes,
        source: Source,
        where: str,
        threads: int | None = None,
        most_ahead: int | None = None,
    ) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError(
                "onnxruntime", "onnxruntime", f"{source.name}: {where or 'the model'}"
            ) from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ONLY_FATAL
        options.intra_op_num_threads = threads or get_num_threads()
        # Its threads spin within a run, not between runs: there they would take the cores of the next GRU's.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if most_ahead is not None:
            options.add_session_config_entry(_MOST_AHEAD, str(most_ahead))
        if source.folder is not None:
            key = "session.model_external_initializers_file_folder_path"
            try:
                options.add_session_config_entry(key, str(source.folder.resolve()))
            except TypeError:
                raise FormatError(f"{source.name!r}: the name of its folder is not UTF-8") from None
        self._place = f"{source.name}: the part around {where}" if where else source.name
        try:
            self._session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as error:  # its exceptions share no base class
            raise FormatError(f"{self._place}: ONNX Runtime refuses it ({_one_line(error)})") from None
        self._outputs = [output.name for output in self._session.get_outputs()]
        # Below its Python methods, which take some µs of a frame that takes a hundred, one of them 30.
        self._inner = getattr(self._session, "_sess", None)
        self._run = (self._inner or self._session).run
        self._options = onnxruntime.RunOptions()
        self._bound: _Bound | None = None
        self._may_bind = hasattr(self._inner, "run_with_iobinding")
        self._before: list[tuple[int, ...]] = []  # the shapes of the run before

    @property
    def output_names(self) -> list[str]:
        """The name of each output."""
        return list(self._outputs)

    @property
    def output_types(self) -> dict[str, ValueType]:
        """The type of each output, in ONNX Runtime's words."""
        return {output.name: ValueType(output.type, _shape(output)) for output in self._session.get_outputs()}

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs for these inputs, in the order of the model.

        Raises:
            FormatError: ONNX Runtime fails.
        """
        try:
            results: list[Any] = self._run(self._outputs, feeds, self._options)
        except Exception as error:  # its exceptions share no base class
            raise FormatError(f"{self._place}: ONNX Runtime fails ({_one_line(error)})") from None
        if self._may_bind:
            shapes = [value.shape for value in (*feeds.values(), *results) if _is_small(value)]
            if shapes == self._before and len(shapes) == len(feeds) + len(results):
                self._bound = _Bound(self._session, self._inner, self._options, feeds, results)
            self._before = shapes
        return results

    def run_again(self, values: Mapping[str, Any]) -> list[Any] | None:
        """The outputs, where the last runs were on small arrays of these very shapes; else None.

        Args:
            values: all that `run` takes, and any others.
        """
        bound = self._bound
        if bound is None:
            return None
        try:
            return bound.run(values)
        except Exception:  # an output of another shape than before, or what the other way will tell
            self._bound, self._may_bind = None, False
            return None


class _Bound:
    """Arrays that a session reads and writes in place, for runs on the same shapes again and again.

    Args:
        session: ONNX Runtime's session.
        inner: what it is made on.
        options: for its runs.
        feeds: inputs of the shapes and types that are meant.
        results: what came of them.
    """

    def __init__(
        self, session: Any, inner: Any, options: Any, feeds: Mapping[str, Array], results: list[Array]
    ) -> None:
        self._run = inner.run_with_iobinding
        self._options = options
        self._inputs = [(name, np.empty(value.shape, value.dtype)) for name, value in feeds.items()]
        self._outputs = [np.empty(value.shape, value.dtype) for value in results]
        self._lock = threading.Lock()
        binding = session.io_binding()
        for name, array in self._inputs:
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for output, array in zip(session.get_outputs(), self._outputs, strict=True):
            binding.bind_output(output.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self._binding = binding._iobinding

    def run(self, values: Mapping[str, Any]) -> list[Array] | None:
        """The outputs, the caller's own; None if these inputs do not fit, or another thread is at it."""
        if not self._lock.acquire(False):
            return None
        try:
            for name, array in self._inputs:
                value = values[name]
                if (
                    type(value) is not np.ndarray
                    or value.dtype is not array.dtype
                    or value.shape != array.shape
                ):
                    return None
                array[...] = value
            self._run(self._binding, self._options)
            return [array.copy() for array in self._outputs]
        finally:
            self._lock.release()


def _is_small(value: object) -> bool:
    """Whether it is an array of plain numbers, and not a large one."""
    return type(value) is np.ndarray and value.dtype.kind in "biuf" and 0 < value.nbytes <= _MOST_BYTES_BOUND


def _shape(output: Any) -> tuple[int | None, ...] | None:
    # It gives an empty list for an unknown rank too. Its names for dimensions hold within its part only.
    return tuple(size if isinstance(size, int) else None for size in output.shape) or None


def _one_line(error: Exception) -> str:
    return _STATUS.sub("", " ".join(str(error).split()))
