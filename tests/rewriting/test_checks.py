"""What checks compare: finite numbers, many steps, what decides integers; and that they find faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto

import onegru
from onegru import FormatError, SpecError
from onegru.cli.commands.bench import measure
from onegru.core.compare import TOLERANCE_REWRITTEN
from onegru.core.dtypes import Array
from onegru.formats.onnx.parse import parse_onnx, read_onnx
from onegru.formats.onnx.validate import Source
from onegru.formats.opened import open_model
from onegru.rewriting.check import Check
from onegru.rewriting.compare import check_result
from onegru.scoring.programs.model_program import ModelProgram
from tests.support.decomposed.draw import decomposed
from tests.support.files.int8_files import store_in_int8
from tests.support.files.onnx_models import H, I, graph, gru, model, node, save, value, weights

ONE = {"half": np.array(0.5, np.float32), "one": np.array(1, np.float32)}

# What is planted in front of a model, and whether some numbers make it finite.
PLANTS: dict[str, Callable[[str, str], list[NodeProto]]] = {
    "Log": lambda x, y: [node("Log", [x], [y])],
    "Sqrt": lambda x, y: [node("Sqrt", [x], [y])],
    "Pow": lambda x, y: [node("Pow", [x, "half"], [y])],
    "Div": lambda x, y: [node("Sqrt", [x], ["root"]), node("Div", ["one", "root"], [y])],
    "Log of what is below": lambda x, y: [node("Neg", [x], ["less"]), node("Log", ["less"], [y])],
    "Log of what is above": lambda x, y: [node("Sub", [x, "one"], ["more"]), node("Log", ["more"], [y])],
}


def never_finite(x: str, y: str) -> list[NodeProto]:
    least = node("Sub", ["less", "one"], ["least"])
    return [node("Abs", [x], ["size"]), node("Neg", ["size"], ["less"]), least, node("Sqrt", ["least"], [y])]


def planted(proto: ModelProto, plant: Callable[[str, str], list[NodeProto]]) -> ModelProto:
    """The model, with nodes in front of its first input."""
    changed = ModelProto()
    changed.CopyFrom(proto)
    first, rest = changed.graph.input[0], list(changed.graph.node)
    inner, first.name = first.name, "raw"
    del changed.graph.node[:]
    changed.graph.node.extend([*plant("raw", inner), *rest])
    changed.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in ONE.items())
    return changed


def plain(*, I: int = I, H: int = H, **constants: Any) -> ModelProto:
    X = value("X", "float32", ["time", "batch", I])
    return model(
        graph([gru("X", ["Y"], bias="B", name="g", hidden_size=H)], [X], ["Y"], constants or weights())
    )


def rewritten(source: Path, target: Path) -> tuple[int, int]:
    return counts(onegru.rewrite(source, target, decompose=True).outputs)


def counts(outputs: Any) -> tuple[int, int]:
    assert all(item.steps > 1 and item.input_dependent > item.compared / 2 for item in outputs)
    return sum(item.compared for item in outputs), sum(item.left_out for item in outputs)


def streamed(source: Path, target: Path) -> tuple[int, int]:
    return counts(onegru.make_streaming(source, target).outputs)


def fused(source: Path, target: Path) -> tuple[int, int]:
    return counts(onegru.fuse(source, target).outputs)


def verified(source: Path, target: Path) -> tuple[int, int]:
    found = onegru.verify(source, runtimes=["onnxruntime"])
    assert found.agrees and found.steps == 4
    (item,) = found.runtimes[0].outputs
    return item.compared, item.left_out


def quantized(source: Path, target: Path) -> tuple[int, int]:
    report: Any = onegru.quantize(source, min_snr_db=20)
    assert 20 <= report.chosen.snr < 100
    return counts(store_in_int8(source, target).outputs)


CHECKS = {
    "rewrite": rewritten,
    "streaming": streamed,
    "fuse": fused,
    "verify": verified,
    "quantize": quantized,
}


def source_of(check: str) -> ModelProto:
    return decomposed("chain", np.random.default_rng(1)).model if check == "fuse" else plain()


@pytest.mark.parametrize(
    ("check", "plant"),
    [(check, plant) for check in CHECKS for plant in PLANTS if check == "rewrite" or " " not in plant],
)
def test_random_inputs_give_finite_outputs(check: str, plant: str, tmp_path: Path) -> None:
    source = save(tmp_path, planted(source_of(check), PLANTS[plant]))
    compared, left_out = CHECKS[check](source, tmp_path / "target.onnx")
    assert compared > 0 and left_out == 0


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_would_prove_nothing(check: str, tmp_path: Path) -> None:
    source = save(tmp_path, planted(source_of(check), never_finite))
    words = (
        r"only \d+ of \d+ values of output '\w+' are finite.*, so the (check|comparison) is inconclusive.*-i"
    )
    with pytest.raises((FormatError, SpecError), match=words):
        CHECKS[check](source, tmp_path / "target.onnx")
    assert not (tmp_path / "target.onnx").exists()


def test_outputs_that_do_not_change(tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], bias="B", name="g"), node("Sub", ["Y", "Y"], ["Z"])]
    X = value("X", "float32", ["time", "batch", I])
    source = save(tmp_path, model(graph(nodes, [X], ["Z"], weights())))
    with pytest.raises(FormatError, match=r"no output depends on the random inputs, .* inconclusive"):
        onegru.rewrite(source, tmp_path / "target.onnx", decompose=True)
    given = {"X": np.ones((3, 2, I), np.float32)}
    onegru.rewrite(source, tmp_path / "target.onnx", decompose=True, check=onegru.Check(inputs=given))
    with pytest.raises(FormatError, match=r"no output depends on the random inputs, .* inconclusive"):
        onegru.verify(source)
    assert onegru.verify(source, given, runtimes=["onnxruntime"]).input_dependent is None


def test_samples_that_show_nothing(tmp_path: Path) -> None:
    """They keep any ratio of signal to noise: none of their rows has a step, or each output is zero."""
    relu = [gru("X", ["Y"], name="g"), node("Sub", ["Y", "one"], ["less"]), node("Relu", ["less"], ["Z"])]
    info = value("X", "float32", ["time", "batch", I])
    source = save(tmp_path, model(graph(relu, [info], ["Z"], {**weights(), **ONE})))
    with pytest.raises(SpecError, match="samples: all outputs are zero, so the comparison is inconclusive"):
        onegru.quantize(source, min_snr_db=200)
    nodes = [gru("X", ["Y"], lens="l", name="g")]
    infos = [value("X", "float32", ["time", "batch", I]), value("l", "int32", ["batch"])]
    source = save(tmp_path, model(graph(nodes, infos, ["Y"], weights())))
    X = np.ones((3, 2, I), np.float32)
    for lengths in ([0, 1], [0, 0]):
        sample = {"X": X, "l": np.array(lengths, np.int32)}
        with nullcontext() if any(lengths) else pytest.raises(SpecError, match="samples: no GRU runs a step"):
            onegru.quantize(source, sample, min_snr_db=200)


# ---- tolerances


def compared(source: Path, made: ModelProto, **options: Any) -> Any:
    """The check of a rewritten model."""
    check = Check(inputs=options.get("inputs"), tolerance=options.get("tolerance"))
    data, target = made.SerializeToString(), source.parent / "target.onnx"
    return check_result(
        lambda: read_onnx(open_model("source", source), keep_parsed=True),
        parse_onnx(data, Source(str(target))),
        target,
        check,
        options.get("tolerances", TOLERANCE_REWRITTEN),
        written=(data, made),
    )


def test_a_check_with_lengths_uses_every_weight(tmp_path: Path) -> None:
    """R changed is found, where lengths of 0 and 1 would not use it."""
    nodes = [node("Cast", ["l"], ["lens"], to=onnx.TensorProto.INT32), gru("X", ["Y"], lens="lens", name="g")]
    infos = [value("X", "float32", ["time", "batch", I]), value("l", "int64", ["batch"])]
    known = weights()
    one, other = (model(graph(nodes, infos, ["Y"], {**known, "R": known["R"] * c})) for c in (1, -7))
    with pytest.raises(FormatError, match="differs from the source"):
        compared(save(tmp_path, one), other)


def test_lists_of_arrays_are_compared_by_their_numbers(tmp_path: Path) -> None:
    split = [gru("X", ["Y"], bias="B", name="g"), node("SplitToSequence", ["Y"], ["Z"], axis=0)]
    Z = onnx.helper.make_tensor_sequence_value_info("Z", onnx.TensorProto.FLOAT, None)
    X = value("X", "float32", ["time", "batch", I])
    source = save(tmp_path, model(graph(split, [X], [Z], weights())))
    (report,) = onegru.rewrite(source, tmp_path / "target.onnx", decompose=True).outputs
    assert report.name == "Z" and report.max_abs < 1e-6 and report.compared > 50
    other = {**weights(), "B": weights()["B"] + np.float32(1e-4)}
    with pytest.raises(FormatError, match=r"item \d of output 'Z' in onegru differs from the source by"):
        compared(source, model(graph(split, [X], [Z], other)))
    never = [gru("X", ["y"], bias="B", name="g"), *never_finite("y", "Y"), split[1]]
    source = save(tmp_path, model(graph(never, [X], [Z], {**weights(), **ONE})))
    with pytest.raises(FormatError, match=r"only 0 of \d+ values of output 'Z' are finite.* inconclusive"):
        onegru.rewrite(source, tmp_path / "target.onnx", decompose=True)


def test_tiny_outputs_are_compared_by_their_size(tmp_path: Path) -> None:
    """A tolerance of 1e-6 would take zeros for numbers of 1e-8."""
    X = value("X", "float32", ["time", "batch", I])
    nodes = [gru("X", ["y"], bias="B", name="g"), node("Mul", ["y", "small"], ["Y"])]

    def scaled(**constants: Any) -> ModelProto:
        return model(
            graph(nodes, [X], ["Y"], {**weights(), "small": np.array(1e-8, np.float32), **constants})
        )

    source = save(tmp_path, scaled())
    (report,) = onegru.rewrite(source, tmp_path / "target.onnx", decompose=True).outputs
    assert report.max_abs < 1e-13 and report.tolerance < 1e-10
    fault = scaled(B=weights()["B"] * 2)
    with pytest.raises(FormatError, match="'Y' in onegru differs from the source by"):
        compared(source, fault)
    compared(source, fault, tolerance=1e-6)
    assert onegru.verify(source).agrees
    (tmp_path / "other").mkdir()
    against = onegru.verify(source, against=save(tmp_path / "other", fault), runtimes=["onnxruntime"]).against
    assert against is not None and not against.outputs[0].agrees


def test_each_of_many_words_is_compared(tmp_path: Path) -> None:
    words = [f"word {index}" for index in range(2000)]

    def spoken(words: list[str]) -> ModelProto:
        made = plain()
        made.graph.node.append(node("Constant", [], ["words"], value_strings=words))
        made.graph.output.append(value("words", "str", [len(words)]))
        return made

    source = save(tmp_path, spoken(words))
    compared(source, spoken(words))
    words[1000] = "another"
    with pytest.raises(FormatError, match="'words' in onegru differs from the source"):
        compared(source, spoken(words))


def test_mistakes_of_onegrus_own_are_no_refusals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from onegru.formats.onnx.whole.session import Session
    from onegru.rewriting.compare import in_runtime

    data = plain().SerializeToString()
    session = Session(data, Source("m.onnx"))
    with pytest.raises(FormatError, match="ONNX Runtime fails"):
        session.run({"X": np.zeros((1, 1), np.float32)})
    with pytest.raises(FormatError, match=r"m\.onnx: OpenVINO refuses it"):
        in_runtime("openvino", (b"no model", plain()), Source("m.onnx"), [])({})
    for wrong in (3, None):  # arguments that no runtime has seen
        with pytest.raises((TypeError, AttributeError)):
            session.run(wrong)  # type: ignore[arg-type]
        with pytest.raises((TypeError, AttributeError)):
            in_runtime("openvino", (data, plain()), Source("m.onnx"), ["Y"])(wrong)  # type: ignore[arg-type]


def trained(scale: float) -> dict[str, Array]:
    """Weights as large as training makes them: rounding is then more than 1e-6."""
    rng = np.random.default_rng(0)
    sizes = {"W": (1, 384, 64), "R": (1, 384, 128), "B": (1, 768)}
    return {name: (rng.standard_normal(shape) * scale).astype(np.float32) for name, shape in sizes.items()}


@pytest.mark.parametrize("scale", [0.1, 0.2, 0.3])
def test_rounding_is_allowed_and_faults_are_not(scale: float, tmp_path: Path) -> None:
    known = trained(scale)
    source = save(tmp_path, plain(I=64, H=128, **known))
    x = np.random.default_rng(1).standard_normal((30, 2, 64)).astype(np.float32)
    report = onegru.rewrite(
        source, tmp_path / "target.onnx", decompose=True, check=onegru.Check(inputs={"X": x})
    )
    (output, *_) = report.outputs
    assert output.max_abs < output.tolerance < 1e-4  # what is allowed does not depend on what was found
    faults = {
        "a weight": known["W"] * (1 + 1e-3 * (np.arange(64) == 5)),
        "a gate": known["W"][:, np.r_[128:256, :128, 256:384]],
    }
    for wrong in faults.values():
        for inputs in (None, {"X": x}):
            with pytest.raises(FormatError, match=r"differs from the source by"):
                compared(
                    source, plain(I=64, H=128, **{**known, "W": wrong.astype(np.float32)}), inputs=inputs
                )


# ---- integers


def classifier(known: dict[str, Array], outputs: list[str]) -> ModelProto:
    nodes = [gru("X", ["Y"], bias="B", name="g"), node("MatMul", ["Y", "O"], ["logits"])]
    nodes.append(node("ArgMax", ["logits"], ["classes"], axis=-1, keepdims=0, name="end"))
    infos = {"classes": value("classes", "int64"), "logits": value("logits")}
    X = value("X", "float32", ["time", "batch", I])
    O = np.random.default_rng(3).standard_normal((H, 9)).astype(np.float32)
    return model(graph(nodes, [X], [infos[name] for name in outputs], {**known, "O": O}), opset=13)


@pytest.mark.parametrize("outputs", [["logits", "classes"], ["classes"]])
def test_classes_are_judged_by_what_is_in_front(outputs: list[str], tmp_path: Path) -> None:
    known, x = weights(), np.random.default_rng(2).standard_normal((200, 8, I)).astype(np.float32)
    source, target = save(tmp_path, classifier(known, outputs)), tmp_path / "target.onnx"
    report = store_in_int8(source, target, check=onegru.Check(inputs={"X": x}))
    assert [item.name for item in report.outputs] == outputs
    assert report.outputs[-1].max_abs > 0  # classes did change
    kept: Any = onegru.quantize(source, {"X": x}, min_snr_db=15)
    assert 15 <= kept.chosen.snr < 100
    wrong = {**known, "R": (known["R"] * (1 + 1e-3)).astype(np.float32)}  # changes few classes, or none
    with pytest.raises(FormatError, match="output 'logits' in onegru differs"):
        compared(source, classifier(wrong, outputs))


def test_whole_numbers_of_any_type_are_judged_by_what_is_in_front(tmp_path: Path) -> None:
    known = weights()

    def rounded(known: dict[str, Array]) -> ModelProto:
        nodes = [gru("X", ["Y"], bias="B", name="g"), node("Floor", ["Y"], ["f"])]
        nodes.append(node("Cast", ["f"], ["Z"], to=onnx.TensorProto.INT32))
        X = value("X", "float32", ["time", "batch", I])
        return model(graph(nodes, [X], [value("Z", "int32")], known))

    source = save(tmp_path, rounded(known))
    with pytest.raises(FormatError, match="output 'Y' in onegru differs"):
        compared(source, rounded({**known, "R": (known["R"] * (1 + 1e-3)).astype(np.float32)}))


def test_an_input_that_no_node_reads(tmp_path: Path) -> None:
    """OpenVINO takes its name away; what is fed all the same is our failure, not its refusal."""
    pytest.importorskip("openvino")
    infos = [value("X", "float32", ["time", 1, I]), value("length", "int64", [1])]
    source = save(tmp_path, model(graph([gru("X", ["Y"], bias="B", name="g")], infos, ["Y"], weights())))
    report = onegru.rewrite(source, tmp_path / "target.onnx", runtime="openvino")
    assert {item.runtime for item in report.outputs} == {"onegru", "openvino"}


# ---- other comparisons


def test_times_of_a_model_whose_outputs_are_not_finite(tmp_path: Path) -> None:
    loaded = onegru.load(save(tmp_path, planted(plain(), never_finite)))
    timings = measure(loaded, {"raw": np.ones((3, 2, I), np.float32)}, 1)
    assert {item.runtime: item.difference for item in timings} == {"onegru": None, "onnxruntime": None}


def test_padding_of_a_model_of_logarithms(tmp_path: Path) -> None:
    nodes = [node("Log", ["X"], ["x"]), gru("x", ["", "h"], bias="B", lens="lens", name="g")]
    nodes.append(node("ReduceSum", ["h", "zero"], ["Z"], keepdims=0))
    infos = [value("X", "float32", ["time", "batch", I]), value("lens", "int32", ["batch"])]
    constants = {**weights(), "zero": np.array([0])}
    source = save(tmp_path, model(graph(nodes, infos, ["Z"], constants)))
    ModelProgram(onegru.load(source), {}, None, {}, True)
    never = save(tmp_path, planted(onnx.load(source), never_finite), "never.onnx")
    with pytest.raises(SpecError, match=r"^pad: .* are finite on random rows, so onegru cannot test"):
        ModelProgram(onegru.load(never), {}, None, {}, True)
