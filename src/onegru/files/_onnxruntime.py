"""ONNX Runtime: the one module that imports it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from onegru.errors import FormatError, MissingExtraError
from onegru.files.graph import ValueType
from onegru.files.onnx_read import Source
from onegru.native import get_num_threads

__all__ = ["Session"]

# What its messages begin with: a code and its name.
_STATUS = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_ONLY_FATAL = 4  # of ONNX Runtime's log levels; it logs an error and raises it as well


class Session:
    """An ONNX Runtime session on a serialized model.

    Args:
        model: the model.
        source: the file that it comes from; its external data are looked up in the file's folder.
        where: what to call this part of the file in messages.
        threads: how many threads it may use; None for as many as onegru.

    Raises:
        MissingExtraError: ONNX Runtime is not installed.
        FormatError: ONNX Runtime refuses the model.
    """

    def __init__(self, model: bytes, source: Source, where: str, threads: int | None = None) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("onnxruntime", "onnxruntime", f"{source.name}: {where}") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ONLY_FATAL
        options.intra_op_num_threads = threads or get_num_threads()
        # Its threads spin within a run, not between runs: there they would take the cores of the next GRU's.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if source.folder is not None:
            key = "session.model_external_initializers_file_folder_path"
            try:
                options.add_session_config_entry(key, str(source.folder.resolve()))
            except TypeError:
                raise FormatError(f"{source.name!r}: the name of its folder is not UTF-8") from None
        self._place = f"{source.name}: the part around {where}"
        try:
            self._session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as error:  # its exceptions share no base class
            raise FormatError(f"{self._place}: ONNX Runtime refuses it ({_one_line(error)})") from None
        self._outputs = [output.name for output in self._session.get_outputs()]
        # Below its Python method, which looks for every input again: some µs of a frame that takes a hundred.
        self._run = getattr(self._session, "_sess", self._session).run

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
            results: list[Any] = self._run(self._outputs, feeds, None)
            return results
        except Exception as error:  # its exceptions share no base class
            raise FormatError(f"{self._place}: ONNX Runtime fails ({_one_line(error)})") from None


def _shape(output: Any) -> tuple[int | None, ...] | None:
    # It gives an empty list for an unknown rank too. Its names for dimensions hold within its part only.
    return tuple(size if isinstance(size, int) else None for size in output.shape) or None


def _one_line(error: Exception) -> str:
    return _STATUS.sub("", " ".join(str(error).split()))
