"""ONNX Runtime's session with onegru in it: a program that runs a model there changes one import."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from onegru.arguments import choice
from onegru.engine import ENGINES
from onegru.errors import SpecError, needs_extra
from onegru.execution_provider import register
from onegru.files.graph import Observer, Run, Whole
from onegru.model_stream import ModelStream
from onegru.pickling import state_of
from onegru.session import Model, graph_of

with needs_extra("onnxruntime", "onnxruntime", "onegru.InferenceSession"):
    import onnxruntime

__all__ = ["InferenceSession"]

_CPU = "CPUExecutionProvider"

Provider = str | tuple[str, Mapping[str, object]]


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """`onnxruntime.InferenceSession` with `onegru.execution_provider` before its other providers.

    It is that class in everything else: methods, options, input and output binding, exceptions.

    Args:
        path_or_bytes: an ONNX model's file, or its content.
        sess_options: ONNX Runtime's `SessionOptions`.
        providers: ONNX Runtime's execution providers for the other nodes; None for the CPU's.
        provider_options: for each of `providers` a mapping.
        engine: what runs the GRU nodes, as in `onegru.GRU`.
        kwargs: as ONNX Runtime takes them; it falls back to its own GRU only if `enable_fallback` is 1.

    Raises:
        SpecError: providers or engine are not legal.
        FormatError: this ONNX Runtime is too old.

    What ONNX Runtime raises comes through; the message of an illegal GRU node has onegru's words.
    """

    __module__ = "onegru"

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[object, object]] | None = None,
        *,
        engine: str = "auto",
        **kwargs: Any,
    ) -> None:
        before = set(vars(self))
        self._made_with = (path_or_bytes, sess_options, providers, provider_options, engine, kwargs)
        self._engine = choice("engine", engine, ("auto", *ENGINES))
        if isinstance(providers, str) or not isinstance(providers, Sequence | None):
            raise SpecError(f"providers: {providers!r}; must be a list of names")
        own = register()
        chosen = list(providers or [_CPU])
        names = [provider if isinstance(provider, str) else provider[0] for provider in chosen]
        if own not in names:
            chosen.insert(0, (own, {"engine": engine}) if provider_options is None else own)
            if provider_options is not None:
                provider_options = [{"engine": engine}, *provider_options]
        kwargs.setdefault("enable_fallback", 0)
        super().__init__(path_or_bytes, sess_options, chosen, provider_options, **kwargs)
        self._model: Model | None = None
        self._made = {*vars(self), "_made"} - before  # what no pickle needs

    @classmethod
    def _of(cls, *made_with: Any) -> Self:
        """A session of this class again, where one was pickled or copied."""
        session = cls.__new__(cls)
        *arguments, engine, kwargs = made_with
        InferenceSession.__init__(session, *arguments, engine=engine, **kwargs)
        return session

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self)._of, self._made_with, state_of(self, self._made))

    def __repr__(self) -> str:
        return f"InferenceSession({self._model_path or 'model in memory'!r})"

    @property
    def model(self) -> Model:
        """The model as onegru has it: its GRU layers, its streams. It is run by this session."""
        if self._model is None:
            graph = graph_of(self._model_path or self._model_bytes)
            if graph.whole is not None:
                graph = replace(graph, whole=_Opened(self, graph.whole))
            self._model = Model(graph, engine=self._engine)
        return self._model

    def stream(
        self, state: Mapping[str, str] | None = None, *, dims: Mapping[str, int] | None = None
    ) -> ModelStream:
        """The model, fed piece by piece: see `onegru.Model.stream`."""
        return self.model.stream(state, dims=dims)


class _Opened(Whole):
    """A model that a session has opened already."""

    def __init__(self, session: InferenceSession, whole: Whole) -> None:
        super().__init__(whole.node_count, whole.shared)
        self._session = session
        self._whole = whole

    def open(self, engine: str, observer: Observer | None = None) -> Run:
        """The session's own way to run; one of its own for an observer."""
        if observer is not None:
            return self._whole.open(engine, observer)
        session = self._session
        names = [output.name for output in session.get_outputs()]
        return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))
