"""A session with ONNX Runtime's methods: a program that runs a model there changes one import."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onegru.dtypes import Array
from onegru.errors import SpecError, SpecWarning
from onegru.files.graph import TensorInfo
from onegru.native import get_num_threads
from onegru.session import Model, load

__all__ = ["InferenceSession", "NodeArg"]

_CPU = "CPUExecutionProvider"

# ONNX Runtime's words for element types, where NumPy's differ.
_WORDS = {"float32": "float", "float64": "double", "str": "string"}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, described as ONNX Runtime describes it.

    Attributes:
        name: its name.
        type: its type, such as "tensor(float)".
        shape: its dimensions: sizes, names of symbolic ones, None for unknown ones.
    """

    name: str
    type: str
    shape: list[int | str | None]


class InferenceSession:
    """A model, run as `onnxruntime.InferenceSession` runs it, its GRU nodes by onegru.

    Args:
        path_or_bytes: an ONNX model's file, or its content; an OpenVINO IR's `.xml` will do as well.
        sess_options: ONNX Runtime's `SessionOptions`. Of these, `intra_op_num_threads` is compared with
            onegru's number of threads, which is one for the whole process (`onegru.set_num_threads`); the
            others have no effect.
        providers: ONNX Runtime's execution providers; must include the CPU's, which is what there is.
        provider_options: without effect.
        engine: what runs the GRU nodes, as in `onegru.GRU`.

    Raises:
        FormatError: the file is broken, hostile, or holds what onegru does not run.
        SpecError: a GRU node or an argument is not legal.
        MissingExtraError: the model needs a package that is not installed.

    Warns:
        SpecWarning: an argument has no effect.

    `run_with_iobinding` and `io_binding` are left out: outputs are new arrays.
    """

    __module__ = "onegru"

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[str | tuple[str, Mapping[str, object]]] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        *,
        engine: str = "auto",
    ) -> None:
        _check_providers(providers)
        if provider_options and any(provider_options):
            warnings.warn("provider_options: without effect, as onegru has none", SpecWarning, stacklevel=2)
        wanted = getattr(sess_options, "intra_op_num_threads", 0)
        if wanted and wanted != get_num_threads():
            warnings.warn(
                f"sess_options: intra_op_num_threads {wanted}; without effect, as onegru uses "
                f"{get_num_threads()} (onegru.set_num_threads)",
                SpecWarning,
                stacklevel=2,
            )
        self._model = load(path_or_bytes, engine=engine)
        self._names = [info.name for info in self._model.outputs]

    def __repr__(self) -> str:
        return f"InferenceSession({self._model!r})"

    @property
    def model(self) -> Model:
        """The model as onegru has it: its GRU layers, its streams."""
        return self._model

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        run_options: object = None,
    ) -> list[Array]:
        """Run the model.

        Args:
            output_names: the outputs that are wanted, in this order; None, or none, for all.
            input_feed: an array for each input, by name.
            run_options: must be None.

        Returns:
            the outputs.

        Raises:
            SpecError: an argument is not legal.
            FormatError: another runtime fails on its part.
        """
        if run_options is not None:
            raise SpecError("run_options: given; must be None, as onegru has none")
        if output_names is not None and (
            isinstance(output_names, str)
            or not isinstance(output_names, Sequence)
            or not all(isinstance(name, str) for name in output_names)
        ):
            raise SpecError(f"output_names: {output_names!r}; must be a list of names, or None")
        results = self._model.run(input_feed)
        if not output_names:
            return list(results.values())
        try:
            return [results[name] for name in output_names]
        except KeyError as error:
            known = ", ".join(map(repr, self._names))
            raise SpecError(f"output_names: {error.args[0]!r}; must be of {known}") from None

    def get_inputs(self) -> list[NodeArg]:
        """What the model requires; inputs with a default are `get_overridable_initializers()`."""
        return [_node_arg(info) for info in self._model.inputs if not info.optional]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that may be left out, as the file holds a default for them."""
        return [_node_arg(info) for info in self._model.inputs if info.optional]

    def get_outputs(self) -> list[NodeArg]:
        """What the model gives."""
        return [_node_arg(info) for info in self._model.outputs]

    def get_providers(self) -> list[str]:
        """The CPU's alone."""
        return [_CPU]


def _check_providers(providers: Sequence[str | tuple[str, Mapping[str, object]]] | None) -> None:
    if providers is None:
        return
    if isinstance(providers, str):
        raise SpecError(f"providers: {providers!r}; must be a list of names")
    names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
    if names and _CPU not in names:
        raise SpecError(f"providers: {', '.join(names)}; must include {_CPU}, which is what onegru runs on")
    if others := [name for name in names if name != _CPU]:
        warnings.warn(
            f"providers: {', '.join(others)}; without effect, as onegru runs on the CPU",
            SpecWarning,
            stacklevel=3,
        )


def _node_arg(info: TensorInfo) -> NodeArg:
    words = _WORDS.get(info.dtype, info.dtype)
    kind = f"tensor({words})" if info.is_tensor else words
    return NodeArg(info.name, kind, list(info.shape or ()))
