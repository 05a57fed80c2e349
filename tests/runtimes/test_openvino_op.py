# ruff: noqa: E501 - messages and changes stand whole, on one line
"""onegru's operators within OpenVINO: files that it reads and networks that it runs with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

import onegru
from onegru.core.dtypes import Array
from onegru.operators import lowering
from tests.support.cases import DTYPES
from tests.support.files.ir_files import IrWriter, write_case
from tests.support.machine.processes import run_python, run_threads

T, B, I, H = 6, 3, 4, 5


def draw(*shape: int, seed: int = 1, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def core() -> Any:
    made = openvino.Core()
    for operator in onegru.openvino.extensions():
        made.add_extension(operator)
    return made


def inputs_of(function: str, *, D: int = 1, after: bool = False, dtype: Any = np.float32) -> dict[str, Any]:
    """Inputs of one of the four functions, in their order."""
    lead, N = (D,) if function.endswith("sequence") else (), (4 if after else 3) * H
    is_augru = function.startswith("augru")
    arrays: dict[str, Any] = {
        "X": draw(B, *(T,) * len(lead), I, dtype=dtype),
        "H_t" if is_augru else "initial_hidden_state": draw(B, *lead, H, dtype=dtype, seed=2),
    }
    if lead:
        arrays["sequence_lengths"] = np.array([T, 0, 3], np.int32)
    arrays["W"] = draw(*lead, 3 * H, I, dtype=dtype, seed=3)
    arrays["R"] = draw(*lead, 3 * H, H, dtype=dtype, seed=4)
    arrays["B"] = draw(*lead, N, dtype=dtype, seed=5)
    if is_augru:
        arrays["A"] = draw(B, *(T,) * len(lead), 1, dtype=dtype, seed=6)
    return arrays


def write(
    folder: Path, function: str, arrays: dict[str, Any], change: Callable[[str], str] = str, **attributes: Any
) -> Path:
    path = write_case(folder / "x.xml", function, arrays, {"hidden_size": H, **attributes})
    text = path.read_text()
    for version in ("opset3", "opset5", "ie_internal_opset"):
        text = text.replace(f'version="{version}"', 'version="extension"')
    path.write_text(change(text))
    return path


def feeds(arrays: dict[str, Any]) -> dict[str, Array]:
    return {name: array for name, array in arrays.items() if name not in ("W", "R", "B")}


def run(compiled: Any, given: dict[str, Array]) -> list[Array]:
    results = compiled(given)
    if lost := onegru.openvino.errors():  # on one CPU
        raise RuntimeError(lost[0])
    return [np.array(results[port]) for port in compiled.outputs]


CASES: list[tuple[str, dict[str, Any]]] = [
    ("augru_cell", {}),
    ("augru_sequence", {}),
    ("augru_sequence", {"activations": ["tanh", "sigmoid"]}),
    ("gru_cell", {"clip": 0.3, "activations": ["relu", "tanh"]}),
    ("gru_cell", {"linear_before_reset": True}),
    ("gru_sequence", {"direction": "bidirectional", "linear_before_reset": True}),
    ("gru_sequence", {"direction": "reverse", "clip": 0.5}),
]


@pytest.mark.parametrize(("function", "attributes"), CASES)
def test_files_read_and_run_by_openvino(tmp_path: Path, function: str, attributes: dict[str, Any]) -> None:
    """The same numbers as onegru's functions, its own reader and its reference."""
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    arrays = inputs_of(function, D=D, after=attributes.get("linear_before_reset", False))
    path = write(tmp_path, function, arrays, **attributes)
    found = run(core().compile_model(path, "CPU"), feeds(arrays))
    call = getattr(onegru, function)
    expected = call(**arrays, hidden_size=H, **attributes)
    exact = call(**arrays, hidden_size=H, **attributes, engine="reference")
    if isinstance(expected, np.ndarray):
        expected, exact = (expected,), (exact,)
    for ours, by_call, by_reference in zip(found, expected, exact, strict=True):
        np.testing.assert_array_equal(ours, by_call)
        np.testing.assert_allclose(ours, by_reference, rtol=0, atol=1e-6)
    by_name = onegru.load(path).run(feeds(arrays))
    for ours, by_load in zip(found, by_name.values(), strict=True):
        np.testing.assert_array_equal(ours, by_load)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_element_types(tmp_path: Path, dtype: str) -> None:
    numpy_type = np.dtype(DTYPES[dtype])
    arrays = inputs_of("augru_sequence", dtype=numpy_type)
    compiled = core().compile_model(write(tmp_path, "augru_sequence", arrays), "CPU")
    request = compiled.create_infer_request()
    for name, array in feeds(arrays).items():
        if array.dtype == numpy_type and dtype == "bfloat16":
            tensor = openvino.Tensor(array.view(np.uint16), list(array.shape), openvino.Type.bf16)
        else:
            tensor = openvino.Tensor(array)
        request.set_tensor(name, tensor)
    request.infer()
    expected = onegru.augru_sequence(**arrays, hidden_size=H)
    for name, wanted in zip(("gru.Y", "gru.Ho"), expected, strict=True):
        found = request.get_tensor(name).data
        found = found.view(numpy_type) if dtype == "bfloat16" else found
        # OpenVINO's CPU turns float64 into float32 around every operator.
        tolerance = 1e-6 if dtype == "float64" else 0
        # On a CPU without bfloat16 it computes in float32, and truncates results: by one spacing at most.
        has_none = dtype == "bfloat16" and "BF16" not in core().get_property(
            "CPU", "OPTIMIZATION_CAPABILITIES"
        )
        np.testing.assert_allclose(
            found.astype(np.float64),
            wanted.astype(np.float64),
            rtol=2**-7 if has_none else 0,
            atol=tolerance,
        )


def test_batch_and_time_may_be_open(tmp_path: Path) -> None:
    arrays = inputs_of("augru_sequence")

    def open_up(text: str) -> str:
        for shape, wanted in (("3,6,4", "?,?,4"), ("3,1,5", "?,1,5"), ("3,6,1", "?,?,1")):
            text = text.replace(f'shape="{shape}"', f'shape="{wanted}"')
        return text.replace('shape="3" element_type="i32"', 'shape="?" element_type="i32"')

    path = write(tmp_path, "augru_sequence", arrays, open_up)
    network = core().read_model(path)
    assert [str(port.partial_shape) for port in network.outputs] == ["[?,1,?,5]", "[?,1,5]"]
    compiled = core().compile_model(network, "CPU")
    for batch, steps in ((1, 1), (4, 9), (B, T), (2, 0), (0, 3)):
        given = {
            **arrays,
            "X": draw(batch, steps, I, seed=batch),
            "H_t": draw(batch, 1, H),
            "sequence_lengths": np.array([steps] * batch, np.int32),
            "A": draw(batch, steps, 1),
        }
        expected = onegru.augru_sequence(**given, hidden_size=H)
        for ours, wanted in zip(run(compiled, feeds(given)), expected, strict=True):
            np.testing.assert_array_equal(ours, wanted)


def test_layers_between_others_with_compressed_weights(tmp_path: Path) -> None:
    ir = IrWriter()
    arrays = inputs_of("augru_cell")
    half = {name: arrays[name].astype(np.float16) for name in ("W", "R", "B")}
    x, h, score = (
        ir.parameter(name, "float32", shape) for name, shape in (("X", "?,4"), ("H_t", "?,5"), ("A", "?,1"))
    )
    x = ir.layer("Tanh", "tanh", {}, [x])[0]
    weights = [ir.convert(f"{name}/wide", ir.const(name, array), "float32") for name, array in half.items()]
    ho = ir.gru("augru_cell", "cell", {"hidden_size": H}, [x, h, *weights, score])[0]
    ir.result("out", ir.layer("Relu", "relu", {}, [ho], names=["out"])[0])
    path = ir.write(tmp_path / "x.xml")
    path.write_text(path.read_text().replace("ie_internal_opset", "extension"))
    given = {name: arrays[name] for name in ("X", "H_t", "A")}
    found = run(core().compile_model(path, "CPU"), given)[0]
    np.testing.assert_allclose(found, onegru.load(path).run(given)["out"], rtol=0, atol=1e-6)
    wide = {name: array.astype(np.float32) for name, array in half.items()}
    expected = onegru.augru_cell(**{**arrays, **wide, "X": np.tanh(arrays["X"])}, hidden_size=H)
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=0, atol=1e-6)


def node_class(name: str) -> Any:
    return next(item for item in onegru.openvino.extensions() if item.__name__ == name)


def parameters(arrays: dict[str, Any]) -> dict[str, Any]:
    return {
        name: ops.parameter(list(array.shape), array.dtype.type, name=name) for name, array in arrays.items()
    }


@pytest.mark.parametrize("function", ["augru_cell", "augru_sequence"])
def test_layers_of_the_internal_opset_once_the_text_says_extension(tmp_path: Path, function: str) -> None:
    """And at float32 on processors whose default is bfloat16, as the documents have it."""
    arrays = inputs_of(function)
    path = write_case(tmp_path / "x.xml", function, arrays, {"hidden_size": H})
    with pytest.raises(RuntimeError, match="unsupported opset: ie_internal_opset"):
        core().read_model(path)
    text = path.read_text().replace('version="ie_internal_opset"', 'version="extension"')
    weights = openvino.Tensor(np.fromfile(path.with_suffix(".bin"), np.uint8))
    compiled = core().compile_model(
        core().read_model(text.encode(), weights), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    expected = onegru.load(path).run(feeds(arrays))  # which takes any version
    for got, want in zip(run(compiled, feeds(arrays)), expected.values(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_nodes_made_in_python_are_saved_and_read_again(tmp_path: Path) -> None:
    arrays = inputs_of("gru_sequence", after=True)
    inputs = parameters(feeds(arrays))
    values = [inputs[name] if name in inputs else ops.constant(arrays[name]) for name in arrays]
    attributes: dict[str, Any] = {"linear_before_reset": True, "clip": 0.25, "activations": ["relu", "tanh"]}
    node = node_class("GRUSequence")(values, hidden_size=H, **attributes)
    assert node.get_attributes()["activations"] == ["relu", "tanh"]
    network = openvino.Model([ops.result(node.output(0))], list(inputs.values()), "made")
    expected = onegru.gru_sequence(**arrays, hidden_size=H, **attributes)[0]
    np.testing.assert_array_equal(run(core().compile_model(network, "CPU"), feeds(arrays))[0], expected)
    path = tmp_path / "made.xml"
    openvino.save_model(network, path, compress_to_fp16=False)
    text = path.read_text()
    assert 'type="GRUSequence" version="extension"' in text
    assert 'hidden_size="5"' in text and 'linear_before_reset="true"' in text and 'clip="0.25"' in text
    np.testing.assert_array_equal(run(core().compile_model(path, "CPU"), feeds(arrays))[0], expected)
    found = onegru.load(path).run(feeds(arrays))
    np.testing.assert_array_equal(next(iter(found.values())), expected)


def test_the_layer_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    lower = lowering.lower

    def counting(*arguments: Any, **options: Any) -> Any:
        made.append(arguments)
        return lower(*arguments, **options)

    monkeypatch.setattr("onegru.layers.layer_cache.lower", counting)
    arrays = inputs_of("augru_sequence")
    arrays["W"] = draw(1, 3 * H, I, seed=77)  # weights that no other test has
    path = write(tmp_path, "augru_sequence", arrays)
    first, second = (core().compile_model(path, "CPU") for _ in range(2))
    for _ in range(3):
        run(first, feeds(arrays))
        run(second, feeds(arrays))
    assert len(made) == 1


@pytest.mark.filterwarnings("ignore:GRU layer .*are not the same in each run:onegru.SpecWarning")
def test_weights_that_change_from_run_to_run() -> None:
    arrays = inputs_of("augru_cell")
    inputs = parameters(arrays)
    node = node_class("AUGRUCell")(list(inputs.values()), hidden_size=H)
    compiled = core().compile_model(openvino.Model([ops.result(node)], list(inputs.values()), "m"), "CPU")
    for seed in (11, 11, 12, 11):
        given = {**arrays, "W": draw(3 * H, I, seed=seed)}
        np.testing.assert_array_equal(run(compiled, given)[0], onegru.augru_cell(**given, hidden_size=H))


def test_several_requests_at_once(tmp_path: Path) -> None:
    arrays = inputs_of("augru_sequence")
    compiled = core().compile_model(write(tmp_path, "augru_sequence", arrays), "CPU", {"NUM_STREAMS": 2})
    wrong: list[int] = []

    def work(seed: int) -> None:
        given = {**arrays, "X": draw(B, T, I, seed=seed)}
        expected = onegru.augru_sequence(**given, hidden_size=H)[0]
        request = compiled.create_infer_request()
        for _ in range(20):
            request.infer(feeds(given))
            if not np.array_equal(request.get_tensor("gru.Y").data, expected):
                wrong.append(seed)

    run_threads(work, range(3))
    assert not wrong


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('hidden_size="5"', 'hidden_size="4"'), "hidden_size: 4; must be 5, because R has shape [1, 15, 5]"),
        (('hidden_size="5"', ""), "hidden_size: 0; must be at least 1"),
        (('hidden_size="5"', 'hidden_size="5" activations="relu, tanh"'), "activations: unknown function 'relu'"),
        (('hidden_size="5"', 'hidden_size="5" activations=""'), "activations: 0 names; must be 2"),
        (('hidden_size="5"', 'hidden_size="5" activations_alpha="1"'), "activations_alpha: (1.0,); must be empty"),
        (('hidden_size="5"', 'hidden_size="5" activations_beta="x"'), "activations_beta: 'x'; must be numbers"),
        (('hidden_size="5"', 'hidden_size="5" direction="reverse"'), "direction: 'reverse'; must be 'forward'"),
        (('hidden_size="5"', 'hidden_size="5" clip="2"'), "clip: 2.0; must be 0.0"),
        (('"i32"', '"u8"'), "sequence_lengths: type uint8; must be int32 or int64"),
        (('"3,6,1"', '"3,5,1"'), "A: shape [3, 5, 1]; must be [batch_size, seq_length, 1] = [3, 6, 1]"),
        (('"3,6,4"', '"3,6,5"'), "X: shape [3, 6, 5]; must be [batch_size, seq_length, input_size] = [any, any, 4]"),
    ],
)  # fmt: skip
def test_illegal_layers(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = write(tmp_path, "augru_sequence", inputs_of("augru_sequence"), lambda text: text.replace(*change))
    with pytest.raises(RuntimeError) as caught:
        core().read_model(path)
    assert f"SpecError: AUGRUSequence node of 'X': {message}" in str(caught.value)


def test_faults_that_only_the_run_shows(tmp_path: Path) -> None:
    arrays = inputs_of("augru_sequence")
    compiled = core().compile_model(write(tmp_path, "augru_sequence", arrays), "CPU")
    with pytest.raises(RuntimeError, match=r"AUGRUSequence node 'gru': sequence_lengths: 9; must be in 0…"):
        run(compiled, {**feeds(arrays), "sequence_lengths": np.array([1, 9, 2], np.int32)})


def test_nodes_refuse_what_their_texts_do_not_have() -> None:
    with pytest.raises(
        onegru.SpecError, match="layout: not an attribute of AUGRUCell; must be one of hidden_size"
    ):
        node_class("AUGRUCell")(hidden_size=H, layout=1)
    arrays = inputs_of("augru_cell")
    few = list(parameters(arrays).values())[:3]
    with pytest.raises(onegru.SpecError, match=r"AUGRUCell node .*: 3 inputs; must be X, H_t, W, R, B, A"):
        node_class("AUGRUCell")(few, hidden_size=H)
    arrays["R"] = arrays["R"].astype(np.float64)
    with pytest.raises(onegru.SpecError, match="R: type float64; must be float32, like W"):
        node_class("AUGRUCell")(list(parameters(arrays).values()), hidden_size=H)


def test_without_openvino() -> None:
    result = run_python("""
        import sys
        sys.modules["openvino"] = None
        import onegru
        try:
            onegru.openvino.extensions()
        except onegru.MissingExtraError as error:
            print(error)
    """)
    assert result.stdout == "onegru.openvino.extensions needs openvino: pip install 'onegru[openvino]'\n", (
        result.stderr
    )


def test_an_older_openvino_is_refused() -> None:
    result = run_python("""
        import openvino
        openvino.__version__ = "2024.6.0-17404"
        import onegru
        try:
            onegru.openvino.extensions()
        except onegru.MissingExtraError as error:
            print(error)
    """)
    assert result.stdout == (
        "onegru.openvino (openvino 2024.6.0-17404 is installed) needs openvino>=2025.0: "
        "pip install 'onegru[openvino]'\n"
    ), result.stderr


def test_openvino_finds_numpy_while_one_thread_imports() -> None:
    """Threads whose first tensors come at once would wait for each other in it, for ever."""
    result = run_python("""
        import sys
        import numpy as np
        import openvino
        import onegru.runtimes.openvino_op
        sys.modules["numpy._core.multiarray"] = sys.modules["numpy.core.multiarray"] = None
        print(openvino.Tensor(np.ones(1)).data)
    """)
    assert result.stdout == "[1.]\n", result.stderr


def test_nothing_is_said_when_the_interpreter_ends(tmp_path: Path) -> None:
    """OpenVINO keeps nodes past the interpreter's end, where the native module would report what is left."""
    arrays = inputs_of("augru_sequence")
    np.savez(tmp_path / "x.npz", **dict[str, Any](feeds(arrays)))
    result = run_python(
        """
        import sys
        import numpy, openvino, onegru
        core = openvino.Core()
        for operator in onegru.openvino.extensions():
            core.add_extension(operator)
        compiled = core.compile_model(sys.argv[1], "CPU")
        print([array.shape for array in compiled(dict(numpy.load(sys.argv[2]))).values()])
        """,
        write(tmp_path, "augru_sequence", arrays),
        tmp_path / "x.npz",
    )
    assert result.stdout == "[(3, 1, 6, 5), (3, 1, 5)]\n", result.stderr
    assert result.stderr == "" and result.returncode == 0
