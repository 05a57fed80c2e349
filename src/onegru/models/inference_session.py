"""A drop-in replacement for ONNX Runtime's `InferenceSession`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from onegru.core.arguments import flag, shown
from onegru.core.errors import SpecError, SpecWarning, needs_extra
from onegru.core.pickling import state_of
from onegru.engines.interface import EngineOptions
from onegru.engines.select import model_options, storage_text
from onegru.formats.graph import Observer, Run, RuntimeModel
from onegru.models.load import graph_of
from onegru.models.model import Model
from onegru.models.stream import ModelStream
from onegru.runtimes.execution_provider import register

with needs_extra("onnxruntime", "onnxruntime", "onegru.InferenceSession"):
    import onnxruntime

_CPU = "CPUExecutionProvider"
_FOLDER = "session.model_external_initializers_file_folder_path"

Provider = str | tuple[str, Mapping[str, object]]


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """`onnxruntime.InferenceSession` with onegru's execution provider.

    Methods, options, input and output binding, and exceptions are those of ONNX Runtime's class. AUGRU nodes
    need no function in the file. ONNX Runtime without onegru cannot open such a file.

    Args:
        path_or_bytes: an ONNX model's file, or its content.
        sess_options: ONNX Runtime's `SessionOptions`.
        providers: ONNX Runtime's execution providers for the other nodes. Default: None (the CPU's).
        provider_options: a mapping for each of `providers`.
        engine: the engine of the GRU nodes, as in `onegru.GRU`.
        weight_storage: storage type of the weights of float32 GRU nodes, as in `onegru.GRU`: one type
            for all, or a mapping from node names to types. Default: None (float32), also for missing names.
        activation_storage: type to which activations are rounded, as in `onegru.GRU`.
        flush_subnormals: whether states that are almost 0 count as 0, as in `onegru.GRU`.
        kwargs: as for ONNX Runtime; it falls back to its own GRU only if `enable_fallback` is 1.

    Raises:
        SpecError: an argument is invalid.
        MissingExtraError: this ONNX Runtime is too old.

    Warns:
        SpecWarning: a GRU node has an attribute or input without effect.

    ONNX Runtime's exceptions pass through; the message for an invalid GRU node is onegru's.
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
        weight_storage: str | Mapping[str, str] | None = None,
        activation_storage: str | Mapping[str, str] | None = None,
        flush_subnormals: bool = False,
        **kwargs: Any,
    ) -> None:
        before = set(vars(self))
        asked = EngineOptions(
            engine,
            storage_text("weight_storage", weight_storage),  # type: ignore[arg-type]
            storage_text("activation_storage", activation_storage),  # type: ignore[arg-type]
            flag("flush_subnormals", flush_subnormals),
        )
        self._made_with = (path_or_bytes, sess_options, providers, provider_options, asked, kwargs)
        self._asked = asked
        chosen, chosen_options, self._engine_options = self._with_own(providers, provider_options, asked)
        for name, wanted in asked._asdict().items():
            found = getattr(self._engine_options, name)
            if wanted not in (None, False, "auto", found):
                raise SpecError.of(name, f"{wanted!r}; must be {found!r}, as in the provider's options")
        for name, without in (("weight_storage", None), ("flush_subnormals", False)):
            found = getattr(self._engine_options, name)
            if self._engine_options.engine == "reference" and found != without:
                raise SpecError.of(name, f"{found!r}; must be {without} with the reference engine")
        kwargs.setdefault("enable_fallback", 0)
        model, folder, harmful = _prepared(path_or_bytes)
        if harmful:
            kwargs["disabled_optimizers"] = [*(kwargs.get("disabled_optimizers") or []), *harmful]
        if folder is not None:
            sess_options = sess_options or onnxruntime.SessionOptions()
            sess_options.add_session_config_entry(_FOLDER, folder)
        self._given, self._folder = path_or_bytes, _folder_of(sess_options)
        self._model: Model | None = None
        self._set: tuple[Any, Any] | None = None  # the arguments of the last `set_providers`
        if self._engine_options.named:
            self.model  # noqa: B018  rejects names that no node has
        super().__init__(model, sess_options, chosen, chosen_options, **kwargs)
        self._made = {*vars(self), "_made"} - before  # not pickled

    def _with_own(
        self,
        providers: Sequence[Provider] | None,
        options: Sequence[Mapping[object, object]] | None,
        asked: EngineOptions,
    ) -> tuple[list[Provider], list[Mapping[object, object]] | None, EngineOptions]:
        """Return all providers including onegru's, their options, and the options of onegru's engine."""
        if isinstance(providers, str) or not isinstance(providers, Sequence | None):
            raise SpecError.of("providers", f"{shown(providers)}; must be a list of names")
        chosen = list(providers or [_CPU])
        for item in chosen:
            if not isinstance(item, str) and not (isinstance(item, tuple) and len(item) == 2):
                raise SpecError.of(
                    "providers", f"{shown(item)}; must contain names, or tuples of a name and options"
                )
        own = register()
        names = [item if isinstance(item, str) else item[0] for item in chosen]
        found = None if options is None else list(options)
        if own not in names:
            chosen.insert(0, own)
            names.insert(0, own)
            if found is not None:
                found.insert(0, {})
        index = names.index(own)
        item = chosen[index]
        own_options: Any = item[1] if isinstance(item, tuple) else {}
        if found is not None and index < len(found):
            own_options = found[index]
        if not isinstance(own_options, Mapping):
            return chosen, found, model_options(*asked)  # ONNX Runtime raises the error
        given: dict[Any, Any] = {**asked.texts, **own_options}
        if found is None:
            chosen[index] = (own, given)
        elif index < len(found):
            found[index] = given
        engine, weights, activations, flushes = (given.get(name) or None for name in EngineOptions._fields)
        return chosen, found, model_options(engine, weights, activations, flushes == "1")

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[object, object]] | None = None,
    ) -> None:
        """Set the providers of the other nodes, like ONNX Runtime's method."""
        before = self._engine_options, self._model
        chosen, options, self._engine_options = self._with_own(providers, provider_options, self._asked)
        self._model = None
        try:
            if self._engine_options.named:
                self.model  # noqa: B018  rejects names that no node has
            super().set_providers(chosen, options)
        except BaseException:
            self._engine_options, self._model = before
            raise
        self._set = providers, provider_options

    @classmethod
    def _of(cls, providers: tuple[Any, Any] | None, *made_with: Any) -> Self:
        """Create a session from a pickled or copied session."""
        session = cls.__new__(cls)
        *arguments, options, kwargs = made_with
        InferenceSession.__init__(session, *arguments, **{**options._asdict(), **kwargs})
        if providers is not None:
            InferenceSession.set_providers(session, *providers)
        return session

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self)._of, (self._set, *self._made_with), state_of(self, self._made))

    def __repr__(self) -> str:
        given = "model in memory" if isinstance(self._given, bytes) else os.fspath(self._given)
        return f"InferenceSession({given!r})"

    @property
    def model(self) -> Model:
        """The `onegru.Model` of this session, with its GRU nodes; this session runs it."""
        if self._model is None:
            with warnings.catch_warnings(action="ignore", category=SpecWarning):  # given with the session
                graph = graph_of(self._given, folder=self._folder)
            if (whole := graph.whole) is not None:
                graph = replace(graph, whole=_OpenedModel(whole.node_count, whole.shared, self, whole))
            self._model = Model(graph, self._engine_options)
        return self._model

    def stream(
        self, state: Mapping[str, str] | None = None, *, dims: Mapping[str, int] | None = None
    ) -> ModelStream:
        """Create a stream of the model, like `onegru.Model.stream`."""
        return self.model.stream(state, dims=dims)


def _folder_of(options: Any) -> Path | None:
    """Return the external-data folder in ONNX Runtime's options; None if it is not set."""
    try:
        return Path(os.path.realpath(options.get_session_config_entry(_FOLDER)))
    except (AttributeError, RuntimeError):  # there are no options, or they do not name it
        return None


def _prepared(
    path_or_bytes: str | os.PathLike[str] | bytes,
) -> tuple[str | os.PathLike[str] | bytes, str | None, tuple[str, ...]]:
    """Return a model as ONNX Runtime can open it."""
    try:
        import onnx

        from onegru.formats.onnx.functions.augru import add_augru_functions, lacks_augru_functions
        from onegru.formats.onnx.validate import Source, serialized, without_links
        from onegru.formats.onnx.whole.optimizers import harmful_optimizers

        if isinstance(path_or_bytes, bytes):
            source, model = Source("model in memory"), onnx.load_from_string(path_or_bytes)
        else:
            source = Source.of_path(Path(path_or_bytes))
            model = onnx.load(path_or_bytes, load_external_data=False)
        harmful = harmful_optimizers(model)
        is_whole = not lacks_augru_functions(model)
    except Exception:
        return path_or_bytes, None, ()
    if is_whole:
        return path_or_bytes, None, harmful
    add_augru_functions(model, source)
    data, folder = without_links(source, serialized(source, model))
    return data, None if folder is None else os.path.realpath(folder), harmful


@dataclass(frozen=True, eq=False)
class _OpenedModel(RuntimeModel):
    """A model that a session has already opened."""

    session: InferenceSession
    whole: RuntimeModel

    def open(self, options: EngineOptions, observer: Observer | None = None) -> Run:
        """Return the session's `run`; with an observer, the `run` of another session."""
        if observer is not None:
            return self.whole.open(options, observer)
        session = self.session  # not opened yet if node names must be checked first

        def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
            names = [output.name for output in session.get_outputs()]
            return dict(zip(names, session.run(names, feeds), strict=True))

        return run
