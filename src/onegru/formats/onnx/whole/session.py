"""Create and run ONNX Runtime sessions."""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import bfloat16, contiguous
from onegru.core.errors import FormatError, MissingExtraError, SpecError, SpecWarning, is_own_mistake
from onegru.engines.native import get_num_threads
from onegru.formats.onnx.validate import FOLDER_OPTION, Source, without_links
from onegru.runtimes.execution_provider import get_ep_name, register

# The prefix of ONNX Runtime's messages: a code and its name.
_STATUS = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
# The message of a GRU node that is invalid, or has invalid inputs, within its own.
_OURS = re.compile(r"INVALID_ARGUMENT.* onegru: (.*)")
_ONLY_FATAL = 4  # ONNX Runtime's log level; it logs errors in addition to raising them
_MOST_AHEAD = "optimization.constant_folding_max_output_size_in_bytes"
_NO_FALLBACK = "session.disable_cpu_ep_fallback"
# Without VNNI, ONNX Runtime's kernels saturate sums of two 8-bit products unless this option is set.
_EXACT_INT8 = "session.x64quantprecision"
_FOLDED_WEIGHTS = "session.disable_quant_qdq"
_CPU = "CPUExecutionProvider"
_BFLOAT16 = "tensor(bfloat16)"
_BFLOAT16_CODE = 16
# Optimizers that merge equal GRU nodes, or move nodes out of an If and rename them.
_MERGERS = ["CommonSubexpressionElimination", "ConstantFolding"]


def providers() -> list[str]:
    """Return the execution providers for sessions in this process, including onegru's."""
    own = register()
    import onnxruntime

    return [*dict.fromkeys([*onnxruntime.get_available_providers(), own])]


class Session:
    """ONNX Runtime session of a serialized model."""

    def __init__(
        self,
        model: bytes | str,
        source: Source,
        where: str = "the model",
        provider: Mapping[str, str] | None = None,
        most_ahead: int | None = None,
        disabled: Sequence[str] = (),
        only_provider: str = "",
        exact_int8: bool = False,
        folded_weights: bool = False,
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtraError("onnxruntime", "onnxruntime", f"{source.name}: {where}") from error
        folder = source.folder
        if isinstance(model, bytes):
            model, folder = without_links(source, model)
        elif source.target_folder is not None:
            folder = None  # it follows links on its own
        entries = {} if most_ahead is None else {_MOST_AHEAD: str(most_ahead)}
        entries |= {} if folder is None else {FOLDER_OPTION: str(folder.resolve())}
        entries |= {_FOLDED_WEIGHTS: "1"} if folded_weights else {}
        self._source = source
        providers: list[Any] = [_CPU]
        if provider is not None:
            providers.insert(0, (register(), dict(provider)))
        if only_provider:
            entries[_NO_FALLBACK] = "1"
            providers = [register() if only_provider == get_ep_name() else only_provider]
        if provider and "observer" in provider:
            disabled = [*dict.fromkeys((*disabled, *_MERGERS))]

        def opened(entries: Mapping[str, str]) -> Any:
            options = self._options(source, entries)
            with warnings.catch_warnings(action="ignore", category=SpecWarning):  # shown by the reader
                return onnxruntime.InferenceSession(
                    model, options, providers=providers, disabled_optimizers=list(disabled), enable_fallback=0
                )

        self._session: Any = None
        if exact_int8:
            with contextlib.suppress(Exception):  # tried again below without the option
                self._session = opened({**entries, _EXACT_INT8: "1"})
        try:
            self._session = self._session or opened(entries)
        except FormatError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise self._error(error, "refuses it") from error
        outputs = self._session.get_outputs()
        self.output_names = [output.name for output in outputs]
        # bfloat16 arrays cannot be passed directly.
        self._has_bfloat16 = any(_BFLOAT16 in item.type for item in (*self._session.get_inputs(), *outputs))
        # Bypasses the Python methods of the session, which take some µs.
        self._run = (getattr(self._session, "_sess", None) or self._session).run

    @staticmethod
    def _options(source: Source, entries: Mapping[str, str]) -> Any:
        """Return ONNX Runtime's options with these entries."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ONLY_FATAL
        options.intra_op_num_threads = get_num_threads()
        for key, value in entries.items():
            try:
                options.add_session_config_entry(key, value)
            except TypeError as error:
                raise FormatError(f"{source.name!r}: the name of its folder is not UTF-8") from error
        return options

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs for these inputs, in the order of the model."""
        try:
            if self._has_bfloat16:
                given = {name: _value_of(array) for name, array in feeds.items()}
                return [
                    _array_of(value) for value in self._session.run_with_ort_values(self.output_names, given)
                ]
            results: list[Any] = self._run(self.output_names, feeds, None)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise self._error(error, "fails") from error
        return results

    def _error(self, error: Exception, what: str) -> Exception:
        if isinstance(error, MemoryError) or is_own_mistake(error):
            return error  # not from ONNX Runtime
        line = " ".join(str(error).split())
        if (ours := _OURS.search(line)) is not None:
            return SpecError(f"{self._source.name}: {ours[1]}")
        return FormatError(f"{self._source.name}: ONNX Runtime {what} ({_STATUS.sub('', line)})")


def _value_of(given: Any) -> Any:
    from onnxruntime import OrtValue

    array = contiguous(given)
    if array.dtype.name == "bfloat16":
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16_CODE)
    return OrtValue.ortvalue_from_numpy(array)


def _array_of(value: Any) -> Any:
    if value.data_type() != _BFLOAT16:
        return value.numpy()
    shape = value.shape()
    data = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape)) if all(shape) else b""
    return np.frombuffer(bytearray(data), bfloat16()).reshape(shape)
