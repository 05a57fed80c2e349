"""Whole models with many encodings of their GRUs' weights, drawn from a seed, by the available writers.

A model is a GRU and a dense layer. Its weights are small integers times a power of two, which float16, int8
and int4 store exactly. So one result is right for all encodings except those of quantizers.

    onnx    a GRU node in the main graph, a body or a function. A chain of nodes computes its matrices from
            constants, defaults of inputs, or external data. Also PyTorch's two exporters, and some of these
            files after ONNX Runtime's quantizers
    ir      the same files, as OpenVINO reads or converts them, and PyTorch's modules, in float32 and float16;
            matrices dequantized as by NNCF; a TensorIterator of one GRUCell, as by Model Optimizer
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models.cases import Array, Case, Shape, layer_of, torch_gru

__all__ = ["Way", "draw_way"]

FOLDER = Path(__file__).resolve().parents[2] / "build" / "benchmarks" / "ways"
MOST_FLOPS = 2e8
OUTPUTS = 16  # of the dense layer
EXACT, QUANTISED = 2e-4, 0.05  # tolerances: an int8 number may be off by one

# The options to draw from, with their frequencies.
BY_HAND, LEGACY, DEFAULT, MODULE = "by hand", "legacy exporter", "default exporter", "module"
NNCF, OPTIMIZER = "NNCF", "Model Optimizer"
WRITERS = {
    "onnx": {BY_HAND: 16, LEGACY: 4, DEFAULT: 2},
    "ir": {BY_HAND: 8, LEGACY: 2, MODULE: 2, NNCF: 3, OPTIMIZER: 4},
}
LINKS = {"Unsqueeze": 3, "Squeeze": 1, "Reshape": 2, "Transpose": 2, "Cast": 2, "Slice": 2, "Concat": 2}
ENDS = {"": 12, "Identity": 2, "int8": 2, "float16 scales": 2, "int4": 2}
PLACES = {"main": 8, "If": 2, "Loop": 2, "Scan": 2, "function": 2}
STORED = {"initializers": 3, "Constant nodes": 2, "defaults of inputs": 2, "external data": 2}
QUANTISERS = {"": 6, "QDQ": 1, "dynamic int8": 1, "4 bits": 1}
OPTIONS = {
    LEGACY: ("keep_initializers_as_inputs", "do_constant_folding"),
    DEFAULT: ("external_data", "optimize"),
    MODULE: (),
}


@dataclass(frozen=True)
class Way:
    """A model, and the options that were drawn for it.

    Attributes:
        form: "onnx" or "ir".
        seed: the seed of the draw.
        number: the index of the model for that seed.
        case: the GRU's sizes and reset mode.
        is_open: whether rows and steps are dynamic in the file.
        has_state: whether the first state is an input.
        writer: the program that writes the file.
        links: the operations between W and R and the stored arrays, from the GRU on; or options of the
            writer.
        stored: the encoding in the file.
        place: the location of the GRU.
        inside: whether the nodes that compute W and R are there, too.
        last: the last change of the file: by a quantizer, or by a converter to an IR.
    """

    form: str
    seed: int
    number: int
    case: Case
    is_open: bool
    has_state: bool
    writer: str
    links: tuple[str, ...] = ()
    stored: str = "parameters"
    place: str = "main"
    inside: bool = False
    last: str = ""

    def __str__(self) -> str:
        where = f"in {self.place}{', the chain too' * self.inside}" * (self.place != "main")
        parts = [self.writer, " < ".join((*self.links, self.stored)), where, self.last]
        sizes = "open" if self.is_open else "fixed"
        name = f"{self.form} {self.seed}/{self.number}"
        return f"{name}: {'; '.join(filter(None, parts))}; {sizes} {self.case}"

    @classmethod
    def read(cls, text: str) -> Way:
        """Return the way with this name."""
        found = re.match(r"(\w+) (\d+)/(\d+):", text)
        assert found, text
        return draw_way(found[1], int(found[2]), int(found[3]))

    @property
    def path(self) -> Path:
        """The file that `write` writes."""
        suffix = "onnx" if self.form == "onnx" else "xml"
        return FOLDER / f"{self.form}_{self.seed}_{self.number}.{suffix}"

    @property
    def tolerance(self) -> float:
        """The tolerance of results, compared with `right`."""
        return QUANTISED if self.last in QUANTISERS and self.last else EXACT

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """Weights and inputs."""
        s, rng = self.case.shape, np.random.default_rng((self.seed, self.number))
        step = 2.0 ** np.round(np.log2(0.25 / np.sqrt(s.H)))

        def exact(*shape: int) -> Array:
            drawn: Array = (rng.integers(-7, 8, shape) * step).astype(np.float32)
            return drawn

        arrays = {"W": exact(s.D, 3 * s.H, s.I), "R": exact(s.D, 3 * s.H, s.H), "B": exact(s.D, 6 * s.H)}
        arrays |= {"dense": exact(s.D * s.H, OUTPUTS), "bias": exact(OUTPUTS)}
        steps = (2, s.T) if self.place == "Scan" else (s.T,)
        arrays["X"] = rng.standard_normal((*steps, s.B, s.I)).astype(np.float32)
        arrays["h0"] = rng.uniform(-1, 1, (s.D, s.B, s.H)).astype(np.float32) * self.has_state
        return arrays

    @property
    def feed(self) -> dict[str, Array]:
        """The inputs of the model."""
        names = ("X", "h0") if self.has_state else ("X",)
        choice = {"on": np.array(True)} if self.place == "If" else {}
        return {name: self.arrays[name] for name in names} | choice

    @property
    def right(self) -> Array:
        """The first output, by the float64 reference; for a quantized file by ONNX Runtime."""
        if self.tolerance > EXACT:
            import onnxruntime

            onnxruntime.set_default_logger_severity(3)
            options = onnxruntime.SessionOptions()
            options.add_session_config_entry("session.x64quantprecision", "1")  # also exact without VNNI
            session = onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])
            return np.asarray(session.run(None, self.feed)[0])
        layer, h = layer_of(self.case, self.arrays, "reference"), self.arrays["h0"]
        X, Y = self.arrays["X"], np.zeros(())
        for part in X if self.place == "Scan" else [X] * (2 if self.place == "Loop" else 1):
            Y, h = layer(part, h)
        rows = Y.transpose(0, 2, 1, 3)
        return np.asarray(rows.reshape(*rows.shape[:2], -1) @ self.arrays["dense"] + self.arrays["bias"])

    def write(self) -> Path:
        """Write the file. The writer may not be installed, and can raise any exception."""
        from benchmarks.models import way_graphs

        FOLDER.mkdir(parents=True, exist_ok=True)
        logging.disable(logging.CRITICAL)
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                source = self.path.with_suffix(".onnx")
                if self.writer in (LEGACY, DEFAULT):
                    _export(self, source)
                elif self.writer == BY_HAND:
                    way_graphs.write_onnx(self, source)
                if self.form == "ir":
                    _write_ir(self, source)
                elif self.last:
                    _quantise(self)
        finally:
            logging.disable(logging.NOTSET)
        return self.path


def draw_way(form: str, seed: int, number: int) -> Way:
    """Return the way with this number, always the same."""
    rng = np.random.default_rng((seed, number, form == "ir"))

    def one(choices: Mapping[str, int]) -> str:
        shares = np.array(list(choices.values()))
        return str(rng.choice(list(choices), p=shares / shares.sum()))

    def size(low: int, high: int, of_one: float = 0.0) -> int:
        return 1 if rng.random() < of_one else int(low * ((high + 1) / low) ** rng.random())

    writer, D = one(WRITERS[form]), 1 + int(rng.random() < 0.25)
    after, is_open, has_state, inside = (bool(flag) for flag in rng.integers(2, size=4))
    shape = Shape(10**9, 1, 1, 1, 1)
    while shape.flops > MOST_FLOPS:
        shape = Shape(size(2, 60, 0.4), size(2, 16, 0.6), size(16, 512), size(32, 640), D)
    chosen: dict[str, Any] = {}
    if writer == BY_HAND:
        # OpenVINO does not read functions, defaults of inputs, or a Scan whose body uses outer values.
        is_ir, never = form == "ir", ("function", "defaults of inputs") if form == "ir" else ()
        place = one({name: n for name, n in PLACES.items() if name not in never})
        inside = place != "main" and (inside or (is_ir and place == "Scan"))
        stored = {name: n for name, n in list(STORED.items())[: 2 if inside else None] if name not in never}
        chosen = {"place": place, "inside": inside, "stored": one(stored)}
        end, links = one(ENDS), [one(LINKS) for _ in range(rng.integers(1, 4))]
        at = len(links) if end == "int4" else rng.integers(len(links) + 1)  # few runtimes support much int4
        chosen["links"] = tuple(filter(None, [*links[:at], end, *links[at:]]))
        has_state = has_state or place in ("Loop", "Scan")
    elif writer in OPTIONS:
        after, chosen = True, {"links": tuple(name for name in OPTIONS[writer] if rng.integers(2))}
    elif writer == NNCF:
        integers, scales = {"int8": 1, "uint8": 1, "int4": 1}, {"float32 scales": 1, "float16 scales": 1}
        chosen = {"links": (one(integers), one(scales))}
    else:
        shape = Shape(max(2, shape.T), shape.B, shape.I, shape.H, 1)
    if form == "ir":
        half, read = one({"float32": 1, "float16": 1}), one({"converted": 1, "read": writer != MODULE})
        chosen["last"] = half if writer in (NNCF, OPTIMIZER) else f"{read}, {half}"
    elif chosen.get("place", "main") == "main":
        chosen["last"] = one(QUANTISERS)
    return Way(form, seed, number, Case(shape, after), is_open, has_state, writer, **chosen)


def _module(way: Way) -> tuple[Any, tuple[Any, ...]]:
    """Return the model in PyTorch, and its inputs."""
    import torch

    class Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.gru = torch_gru(way.case.shape, way.arrays)
            self.dense = torch.nn.Linear(len(way.arrays["dense"]), OUTPUTS).requires_grad_(False)
            self.dense.weight.copy_(torch.from_numpy(way.arrays["dense"].T))
            self.dense.bias.copy_(torch.from_numpy(way.arrays["bias"]))

        def forward(self, X: Any, h0: Any = None) -> Any:
            Y, h = self.gru(X, h0)
            return self.dense(Y) if h0 is None else (self.dense(Y), h)

    return Model().eval(), tuple(map(torch.from_numpy, way.feed.values()))


def _export(way: Way, path: Path) -> None:
    """Write the file with one of PyTorch's exporters."""
    import torch

    options: dict[str, Any] = {name: name in way.links for name in OPTIONS[way.writer]}
    options |= {"input_names": list(way.feed), "output_names": ["out", "h"][: len(way.feed)]}
    if way.is_open:
        # The default exporter still fixes one of them.
        axes = {"X": {0: "steps", 1: "rows"}, "h0": {1: "rows"}}
        axes = {name: axes[name] for name in way.feed}
        if way.writer == DEFAULT:
            dims = {name: torch.export.Dim(name, min=1, max=4096) for name in ("steps", "rows")}
            options["dynamic_shapes"] = [{i: dims[n] for i, n in sizes.items()} for sizes in axes.values()]
        else:
            options["dynamic_axes"] = axes
    more = (
        {"dynamo": True, "verbose": False}
        if way.writer == DEFAULT
        else {"dynamo": False, "opset_version": 17}
    )
    torch.onnx.export(*_module(way), str(path), **options, **more)


def _quantise(way: Way) -> None:
    """Change the file with one of ONNX Runtime's quantizers."""
    import onnx
    from onnxruntime import quantization

    model, path = onnx.load(way.path), str(way.path)
    if way.last == "QDQ":
        feeds = iter([way.feed])
        methods = {"get_next": lambda _: next(feeds, None)}
        reader = type("Reader", (quantization.CalibrationDataReader,), methods)()
        quantization.quantize_static(model, path, reader, op_types_to_quantize=["GRU", "MatMul"])
    elif way.last == "dynamic int8":
        quantization.quantize_dynamic(model, path)
    else:  # only MatMul; it needs onnx_ir, which comes with PyTorch's exporter
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantiser = MatMulNBitsQuantizer(model, block_size=32, quant_format=quantization.QuantFormat.QDQ)
        quantiser.process()
        quantiser.model.save_model_to_file(path)


def _write_ir(way: Way, source: Path) -> None:
    import openvino

    from benchmarks.models import way_graphs

    if way.writer in (NNCF, OPTIMIZER):
        model = way_graphs.ir_model(way)
    elif way.writer == MODULE:
        module, sample = _module(way)
        model = openvino.convert_model(module, example_input=sample)
        if not way.is_open:
            model.reshape({place: list(part.shape) for place, part in enumerate(sample)})
        for port, name in zip(model.inputs, way.feed, strict=True):
            port.get_tensor().set_names({name})
    else:
        is_read = way.last.startswith("read")  # as in the converter, but without its simplifications
        model = openvino.Core().read_model(source) if is_read else openvino.convert_model(source)
    openvino.save_model(model, way.path, compress_to_fp16=way.last.endswith("float16"))
