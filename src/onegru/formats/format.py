"""Define the formats of files, and the reader of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from onegru.core.errors import FormatError, needs_extra
from onegru.formats.graph import Graph
from onegru.formats.opened import Kind, Opened

if TYPE_CHECKING:  # these import the readers of all formats
    from onegru.formats.onnx.validate import ModelProto
    from onegru.layers.gru import GRU
    from onegru.layers.stack import Stack

    Layers = dict[str, GRU | Stack]

_MOST_NAMED = 3  # layers in a message


class LayerChain(NamedTuple):
    """Whether a file is known to only call its GRUs, one after another."""

    is_chain: bool
    obstacle: str = ""  # the reason as text if it does more


class Format:
    """Format of files. This base class reads neither layers nor graphs."""

    runtime = ""  # the other runtime that opens such files; "" if there is none
    has_versions = False  # whether `keras_version` applies to it

    def read_graph(self, file: Opened, *, keep_parsed: bool = False) -> Graph:
        """Return the graph of a model, as plain data; with `keep_parsed`, the file keeps the parsed model."""
        raise FormatError(f"{file}: {file.kind.words}; contains no model")

    def read_layers(self, file: Opened, name: str | None, keras_version: str | None) -> Layers:
        """Return the GRUs of a checkpoint by name; at least the one called `name`, if that is given."""
        raise FormatError(f"{file}: {file.kind.words}; contains no layers")

    def left_out(self, file: Opened, grus: Collection[str], keras_version: str | None) -> tuple[str, ...]:
        """Return the tensors or layers that none of these GRUs uses, or no GRU at all if none are given."""
        return ()

    def layer_chain(self, file: Opened, keras_version: str | None) -> LayerChain:
        """Return whether a file only calls its GRUs, one after another."""
        return LayerChain(False)

    def files(self, file: Opened) -> list[Path]:
        """Return the files that belong to the model."""
        return [file.path]


class OnnxFormat(Format):
    """ONNX model, possibly with external data."""

    runtime = "onnxruntime"

    def read_graph(self, file: Opened, *, keep_parsed: bool = False) -> Graph:
        """See `Format.read_graph`."""
        with needs_extra("onnx", "onnx", str(file)):
            from onegru.formats.onnx.parse import read_onnx
        return read_onnx(file, keep_parsed=keep_parsed)

    def files(self, file: Opened) -> list[Path]:
        """See `Format.files`."""
        with needs_extra("onnx", "onnx", str(file)):
            from onegru.formats.onnx.validate import Source, external_files, external_tensors, parse_file
        external = external_files(Source.of(file), external_tensors(file.once(parse_file)))
        return [file.path, *sorted(external)]


class OpenVinoFormat(Format):
    """OpenVINO IR with its .bin."""

    runtime = "openvino"

    def read_graph(self, file: Opened, *, keep_parsed: bool = False) -> Graph:
        """See `Format.read_graph`."""
        from onegru.formats.openvino.reader import read_ir

        return read_ir(file, keep_parsed=keep_parsed)

    def files(self, file: Opened) -> list[Path]:
        """See `Format.files`."""
        return [file.path, *filter(Path.is_file, [file.path.with_suffix(".bin")])]


class KerasFormat(Format):
    """Keras model: a .keras archive or HDF5."""

    has_versions = True

    def read_layers(self, file: Opened, name: str | None, keras_version: str | None) -> Layers:
        """See `Format.read_layers`."""
        from onegru.formats.keras_archive import read_keras

        model = read_keras(file, name, keras_version)
        if not model.layers:
            raise FormatError(f"{file}: {_without_gru(model.others)}")
        return dict(model.layers)

    def left_out(self, file: Opened, grus: Collection[str], keras_version: str | None) -> tuple[str, ...]:
        """See `Format.left_out`."""
        from onegru.formats.keras_archive import read_keras

        model = read_keras(file, None, keras_version)
        return (*model.others, *(name for name in model.layers if grus and name not in grus))

    def layer_chain(self, file: Opened, keras_version: str | None) -> LayerChain:
        """See `Format.layer_chain`."""
        from onegru.formats.keras_archive import read_keras

        model = read_keras(file, None, keras_version)
        why = "is more than its GRU, or calls it more than once" if len(model.layers) == 1 else ""
        if model.others:
            first, kind = next(iter(model.others.items()))
            why = f"computes more than its GRUs: {first!r} is a {kind}"
        return LayerChain(model.is_chain, "" if model.is_chain else why)


class CheckpointFormat(Format):
    """A PyTorch state dict, or a safetensors file from onegru or from a framework."""

    def read_layers(self, file: Opened, name: str | None, keras_version: str | None) -> Layers:
        """See `Format.read_layers`."""
        from onegru.formats.checkpoints.checkpoint import read_pytorch, read_safetensors

        read = read_pytorch if file.kind is Kind.PYTORCH else read_safetensors
        return read(file, name) if name is not None else file.once(read)

    def left_out(self, file: Opened, grus: Collection[str], keras_version: str | None) -> tuple[str, ...]:
        """See `Format.left_out`."""
        from onegru.formats.checkpoints.checkpoint import other_tensors

        return other_tensors(file, grus or self.read_layers(file, None, None))

    def files(self, file: Opened) -> list[Path]:
        """See `Format.files`."""
        from onegru.formats.checkpoints.shards import shards_of

        return list(dict.fromkeys([file.path, *(shard.path for shard in shards_of(file))]))


class TfliteFormat(Format):
    """TensorFlow Lite model, in which `onegru.models.fusing` finds GRUs."""

    def left_out(self, file: Opened, grus: Collection[str], keras_version: str | None) -> tuple[str, ...]:
        """Return the kinds of operators that are not read, and so cannot belong to a GRU."""
        return file.once(tflite_model)[1]


def tflite_model(file: Opened) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a TensorFlow Lite model as ONNX, and the kinds without equivalents; for `Opened.once`."""
    with needs_extra("onnx", "tflite", str(file)), needs_extra("tflite", "tflite", str(file)):
        from onegru.formats.tflite.rules import onnx_model
    return onnx_model(file)


#: The formats that onegru reads.
FORMATS: Mapping[Kind, Format] = {
    Kind.ONNX: OnnxFormat(),
    Kind.OPENVINO: OpenVinoFormat(),
    Kind.PYTORCH: CheckpointFormat(),
    Kind.SAFETENSORS: CheckpointFormat(),
    Kind.KERAS: KerasFormat(),
    Kind.TFLITE: TfliteFormat(),
}


def format_of(file: Opened) -> Format:
    """Return the format of a file."""
    return FORMATS.get(file.kind, Format())


def _without_gru(others: Mapping[str, str]) -> str:
    """Describe a Keras model without a readable GRU, with a remedy."""
    if list(others) == [""]:
        listed = f": a {others['']!r}, whose layers are defined only in its program"
    else:
        named = [f"{name!r}, a {kind}" for name, kind in others.items()]
        more = f"; and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        listed = f": {'; '.join(named[:_MOST_NAMED])}{more}" if named else ""
    remedy = "load the model with Keras and pass the GRU layer: onegru.from_keras(model.layers[i])"
    return f"no GRU with its own weights{listed}; {remedy}"
