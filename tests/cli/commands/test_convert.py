"""`onegru convert`: each kind of file to each other, checked; refusals; nothing is lost, no leftovers."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from onegru import GRU, FormatError, SpecError, Stack
from onegru.core.compare import Comparison
from onegru.layers.stack import layers_of
from onegru.models.layer_files import convert as checking
from onegru.models.layer_files.convert import convert_layers
from onegru.models.layer_files.select import layers_of_model, read_source
from onegru.runtimes.known_issues import MEASURED
from tests.support.files.keras_files import arrays, entry, write_h5
from tests.support.files.keras_files import model as keras_model
from tests.support.files.onnx_models import Shape, graph, gru, model, node, tensor, value, weights
from tests.support.files.onnx_models import save as save_model
from tests.support.files.torch_files import write_checkpoint
from tests.support.layers import I, call, draw, make_gru, make_stack, reference, same_layers
from tests.support.machine.cli import Cli
from tests.support.machine.systems import posix

safetensors_numpy = pytest.importorskip("safetensors.numpy")


@pytest.fixture
def convert(cli: Cli) -> Cli:
    return partial(cli, "convert")


def reads_whole_irs(folder: Path) -> bool:
    """Whether IRs with other layers than GRUs are read, as those of stacks are."""
    onegru.save_layers(make_stack(2), folder / "probe.xml")
    try:
        onegru.load(folder / "probe.xml")
    except FormatError:
        return False
    finally:
        for suffix in (".xml", ".bin"):
            (folder / "probe").with_suffix(suffix).unlink()
    return True


# ---- every pair

# The end of the file's name, and options of `onegru.save_layers`.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "onnx 1": (".onnx", {"opset": 1}),
    "onnx 3": (".onnx", {"opset": 3, "sequence_lens": True}),
    "onnx 7": (".onnx", {"opset": 7}),
    "onnx 14": (".onnx", {"opset": 14, "layout": 1}),
    "onnx 22": (".onnx", {"sequence_lens": True, "initial_h": False}),
    "sequences": (".xml", {}),
    "cells": (".xml", {"cell": True}),
    "safetensors": (".safetensors", {}),
}


def layers_for(kind: str, other: str) -> list[GRU | Stack]:
    """Layers that both kinds can express: one to three, in every direction, with both resets."""
    cells = "cells" in (kind, other)
    is_ir = cells or "sequences" in (kind, other)
    found: list[GRU | Stack] = []
    for after in (False,) if "onnx 1" in (kind, other) else (False, True):
        found.append(make_gru(linear_before_reset=after))
        found.append(make_stack(2, ("forward",) if cells else ("reverse",), linear_before_reset=after))
        directions = ("forward",) if cells else ("bidirectional", "forward", "bidirectional")
        found.append(make_stack(3, directions, linear_before_reset=after))
    names = ["Tanh", "Sigmoid"] if is_ir else ["HardSigmoid", "Affine"]
    alphas: dict[str, Any] = {} if is_ir else {"activation_alpha": [0.25, 0.5]}
    found.append(make_gru(activations=names, clip=0.5, **alphas))
    if not cells:
        alphas = {} if is_ir else {"activation_alpha": [0.25, 0.5, 0.2, 0.75]}
        found.append(make_gru(direction="bidirectional", activations=names * 2, clip=0.5, **alphas))
    return found


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_every_pair(tmp_path: Path, first: str, second: str) -> None:
    whole_irs = reads_whole_irs(tmp_path)
    for number, layers in enumerate(layers_for(first, second)):
        if isinstance(layers, Stack) and "sequences" in (first, second) and not whole_irs:
            continue
        source, target = (tmp_path / f"{number}.{kind}{KINDS[kind][0]}" for kind in (first, second))
        target = target.with_stem(f"{target.stem} again")
        onegru.save_layers(layers, source, **KINDS[first][1])
        checks, _ = convert_layers(read_source(source), target, KINDS[second][1])
        assert all(item.agrees for item in checks)
        found = read_source(target)
        assert [layer.spec for layer in layers_of(found)] == [layer.spec for layer in layers_of(layers)]
        X, states = draw(layers)
        Y, Y_h = call(found, X, states, [6, 1, 3])
        wanted, wanted_h = call(reference(layers), X, states, [6, 1, 3])
        for array, expected in zip((Y, *Y_h), (wanted, *wanted_h), strict=True):
            np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)
        if not {"sequences", "cells"} & {first, second}:  # which add biases
            assert same_layers(found, layers)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["m.onnx", "m.xml", "m.safetensors"])
def test_other_types(convert: Cli, dtype: str, name: str) -> None:
    layer = make_gru(dtype=dtype, direction="bidirectional", linear_before_reset=True)
    onegru.save_layers(layer, "start.safetensors")
    assert convert("start.safetensors", name).code == 0
    found = read_source(Path(name))
    assert isinstance(found, GRU) and found.spec == layer.spec
    assert np.array_equal(found.weights.R, layer.weights.R)


def test_attention(convert: Cli) -> None:
    layer = make_gru(attention=True)
    onegru.save_layers(layer, "start.safetensors")
    for source, target, options in (
        ("start.safetensors", "a.xml", ()),
        ("a.xml", "b.xml", ("--cell",)),
        ("b.xml", "c.safetensors", ()),
    ):
        result = convert(source, target, *options)
        assert result.code == 0, result.out + result.err
    X, states = draw(layer)
    A = np.random.default_rng(1).uniform(0, 1, X.shape[:2]).astype("f")
    found = read_source(Path("c.safetensors"))
    assert isinstance(found, GRU)
    for a, b in zip(found(X, states[0], attention=A), layer(X, states[0], attention=A), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    convert("c.safetensors", "d.onnx").refused("attention: 'openvino'; ONNX's GRU has none in any version")
    assert not Path("d.onnx").exists()


# ---- what is printed, and what a difference does


def test_what_is_printed(convert: Cli) -> None:
    onegru.save_layers(make_gru(), "a.onnx")
    result = convert("a.onnx", "b.xml")
    assert (result.code, result.err) == (0, "")
    lines = [line.split() for line in result.out.splitlines()]
    agreeing = [line for line in lines if line and line[-1] == "agrees"]
    assert [name for line in agreeing for name in ("Y", "Ho") if name in line] == ["Y", "Ho"]
    assert result.out.endswith("wrote b.xml\n")
    wrote, known = convert("a.onnx", "with.xml", "--lengths").out.splitlines()[-2:]
    assert wrote == "wrote with.xml"
    assert known.startswith(f"openvino {MEASURED['openvino']} miscomputes it: ignores lengths shorter than X")
    assert known.endswith("; add --no-lengths")
    assert convert("a.onnx", "without.xml", "--no-lengths").out.endswith("wrote without.xml\n")
    assert onegru.verify("without.xml", runtimes=["openvino"]).agrees
    fixed = convert("a.onnx", "fixed.xml", "--lengths", "--batch-size", 2, "--seq-length", 3)
    assert fixed.out.endswith("wrote fixed.xml\n")
    document = json.loads(convert("b.xml", "c.safetensors", "--json").out)
    assert (document["source"], document["target"], document["written"]) == ("b.xml", "c.safetensors", True)
    assert [item["name"] for item in document["outputs"]] == ["Y", "Y_h"]
    assert document["other_runtimes"] == []
    assert all(item["agrees"] and item["max_abs"] <= 1e-6 for item in document["outputs"])


def test_a_stack_in_float64_as_an_ir(convert: Cli) -> None:
    """OpenVINO computes what lies between its layers, in float32."""
    onegru.save_layers(make_stack(2, dtype="float64"), "a.onnx")
    result = convert("a.onnx", "b.xml")
    assert result.code == 0
    assert (
        "float64 models in float32 between the layers; the tolerance allows for that\nwrote b.xml\n"
        in result.out
    )
    document = json.loads(convert("a.onnx", "c.xml", "--json").out)
    assert [item["tolerance"] for item in document["outputs"]] == [1e-6] * 3
    onegru.save_layers(make_gru(dtype="float64"), "one.onnx")
    document = json.loads(convert("one.onnx", "one.xml", "--json").out)
    assert all(item["tolerance"] == 2e-15 and not item["reason"] for item in document["outputs"])


@pytest.mark.parametrize("name", ["b.onnx", "b.xml", "b.safetensors"])
@pytest.mark.parametrize("existed", [True, False])
def test_a_difference_leaves_nothing(
    convert: Cli, monkeypatch: pytest.MonkeyPatch, name: str, existed: bool
) -> None:
    """A writer with a fault: one weight is off by 1e-3."""
    onegru.save_layers(make_gru(), "a.onnx")
    if existed:
        onegru.save_layers(make_gru(7), name)
    before = {item.name: item.read_bytes() for item in Path().iterdir()}
    weights = make_gru().weights
    R = weights.R.copy()
    R[0, 1, 1] += 1e-3
    faulty = GRU(weights.W, R, weights.B)
    save = onegru.save_layers
    monkeypatch.setattr(
        "onegru.models.layer_files.convert.save_layers",
        lambda _, path, **options: save(faulty, path, **options),
    )
    as_layers = ["--initial-h"] if name == "b.onnx" else []  # else the model would be rewritten as a whole
    result = convert("a.onnx", name, "--overwrite", *as_layers)
    assert (result.code, result.err) == (1, "")
    assert "differs at [" in result.out and f"not written: {name}\n" in result.out
    assert {item.name: item.read_bytes() for item in Path().iterdir()} == before
    document = json.loads(convert("a.onnx", name, "--overwrite", "--json", *as_layers).out)
    assert document["written"] is False and not document["outputs"][0]["agrees"]


def test_the_check_sees_lengths_and_states(tmp_path: Path) -> None:
    """A target that ignores what it is given differs from a source that does not."""
    layer = make_gru(direction="reverse")
    path = tmp_path / "m.onnx"
    onegru.save_layers(layer, path, sequence_lens=True)
    proto = onnx.load(path)
    assert all(item.agrees and item.max_abs == 0 for item in checking._check(layer, checking.read(path)))
    for index in (4, 5):  # sequence_lens, initial_h
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        name = changed.graph.node[0].input[index]
        changed.graph.node[0].input[index] = ""
        kept = [info for info in changed.graph.input if info.name != name]
        del changed.graph.input[:]
        changed.graph.input.extend(kept)
        path.write_bytes(changed.SerializeToString())
        assert all(
            item.agrees for item in checking._check(layer, checking.read(path))
        )  # without the input it is another model
        changed.graph.input.extend(info for info in proto.graph.input if info.name == name)
        path.write_bytes(changed.SerializeToString())
        with pytest.raises(FormatError, match="is not an input or output of a GRU node"):
            checking._check(layer, checking.read(path))
    wrong = make_gru(direction="forward")
    onegru.save_layers(wrong, path)
    assert not any(item.agrees for item in checking._check(layer, checking.read(path)))


def test_the_tolerance_grows_with_the_numbers(tmp_path: Path) -> None:
    layer = make_gru(activations=["Sigmoid", "Affine"], activation_alpha=[100.0])
    path = tmp_path / "m.safetensors"
    onegru.save_layers(layer, path)
    assert all(item.tolerance > 1e-5 for item in checking._check(layer, checking.read(path)))
    assert all(item.tolerance == 1e-6 for item in [*check_of(make_gru(), tmp_path)])


def check_of(layer: GRU, folder: Path) -> list[Comparison]:
    onegru.save_layers(layer, folder / "x.safetensors")
    return checking._check(layer, checking.read(folder / "x.safetensors"))


# ---- models: which GRU


def test_a_model_as_torch_exports_it(convert: Cli) -> None:
    """Batch first by Transpose, states of zeros made on the way, outputs squeezed: still nothing but GRUs."""
    constants = {**weights(0, "0", H=4), **weights(1, "1", I=4, H=4), "shape": np.array([1, -1, 4])}
    nodes = [
        node("Transpose", ["X"], ["x"], perm=[1, 0, 2]),
        node("Shape", ["x"], ["sizes"]),
        node("Gather", ["sizes", "one"], ["batch"], axis=0),
        node("Concat", ["first", "batch", "last"], ["state"], axis=0),
        node("ConstantOfShape", ["state"], ["zeros"], value=tensor("", np.zeros(1, np.float32))),
        gru("x", ["y0", "h0"], W="W0", R="R0", bias="B0", initial_h="zeros", hidden_size=4, name="below"),
        node("Squeeze", ["y0", "one"], ["y1"]),
        gru("y1", ["y2", "h1"], W="W1", R="R1", bias="B1", initial_h="zeros", hidden_size=4, name="above"),
        node("Squeeze", ["y2", "one"], ["y3"]),
        node("Transpose", ["y3"], ["Y"], perm=[1, 0, 2]),
        node("Concat", ["h0", "h1"], ["H"], axis=0),
    ]
    constants |= {"one": np.array([1]), "first": np.array([1]), "last": np.array([4])}
    del constants["shape"]
    proto = model(graph(nodes, [value("X", shape=["b", "t", I])], ["Y", "H"], constants))
    save_model(Path(), proto, "torch.onnx")
    result = convert("torch.onnx", "stack.safetensors")
    assert result.code == 0, result.out + result.err
    stack = read_source(Path("stack.safetensors"))
    assert isinstance(stack, Stack) and len(stack) == 2
    X, _ = draw(stack)
    Y, Y_h = stack(X.swapaxes(0, 1), layout=1)
    results = onegru.load("torch.onnx").run({"X": X.swapaxes(0, 1)})
    np.testing.assert_array_equal(results["Y"], Y[:, :, 0])
    np.testing.assert_array_equal(results["H"], np.concatenate([h.swapaxes(0, 1) for h in Y_h]))


def two_grus(between: list[onnx.NodeProto], constants: dict[str, Any], shape: Shape = ("t", "b", 4)) -> None:
    """model.onnx in the current folder: two GRUs with nodes between them, from y to x1."""
    nodes = [
        node("Squeeze", ["y0", "one"], ["y"]),
        *between,
        gru("x1", ["Y", "Y_h"], W="W1", R="R1", bias="B1", hidden_size=4, name="above"),
    ]
    first = gru("X", ["y0"], W="W0", R="R0", bias="B0", hidden_size=4, name="below")
    held = {**weights(0, "0", I=4, H=4), **weights(1, "1", I=4, H=4), "one": np.array([1]), **constants}
    save_model(Path(), model(graph([first, *nodes], [value("X", shape=shape)], ["Y", "Y_h"], held)))


def test_what_lies_between_counts(convert: Cli) -> None:
    two_grus([node("Identity", ["y"], ["x1"])], {})
    assert convert("model.onnx", "0.safetensors").code == 0
    between = {
        "Relu": [node("Relu", ["y"], ["x1"])],
        "transposed": [node("Transpose", ["y"], ["x1"], perm=[1, 0, 2])],
        "scaled": [node("Mul", ["y", "scale"], ["x1"])],
        "reversed": [node("Gather", ["y", "backwards"], ["x1"], axis=2)],
    }
    for number, (name, nodes) in enumerate(between.items(), start=1):
        constants: dict[str, Any] = {"scaled": {"scale": np.array([1, 1, 2, 1], np.float32)}}.get(name, {})
        if name == "reversed":
            constants = {"backwards": np.array([3, 2, 1, 0])}
        two_grus(nodes, constants)
        convert("model.onnx", f"{number}.safetensors").refused(
            "model.onnx: its GRUs are not a chain; select GRUs with nodes (--node NAME): 'below', 'above'"
        )
        assert not Path(f"{number}.safetensors").exists()


def test_nodes_by_name(convert: Cli) -> None:
    two_grus([node("Relu", ["y"], ["x1"])], {})
    loaded = {gru.name: gru.layer for gru in onegru.load("model.onnx").gru_nodes}
    assert convert("model.onnx", "a.safetensors", "--node", "above").code == 0
    above = loaded["above"]
    assert above is not None and same_layers(read_source(Path("a.safetensors")), above)
    assert convert("model.onnx", "b.safetensors", "--node", "above", "--node", "below").code == 0
    stack = read_source(Path("b.safetensors"))
    assert isinstance(stack, Stack) and same_layers(stack.layers[0], above)
    convert("model.onnx", "c.safetensors", "--node", "between").refused(
        "--node: 'between'; no such GRU node in model.onnx; must be one of 'below', 'above'"
    )


NOT_ONLY_GRUS: dict[str, tuple[list[onnx.NodeProto], str]] = {
    "before": (
        [node("Tanh", ["X"], ["x"]), gru("x", ["Y", "Y_h"], name="g")],
        "changes its input before the first GRU",
    ),
    "after": (
        [gru("X", ["y", "Y_h"], name="g"), node("Neg", ["y"], ["Y"])],
        "computes its outputs from its GRUs' outputs",
    ),
    "own state": (
        [gru("X", ["Y", "Y_h"], initial_h="h", name="g")],
        "has its own initial state",
    ),
    "side by side": (
        [gru("X", ["Y"], name="g"), gru("X", ["Y_h"], name="g2")],
        "its GRUs are not a chain",
    ),
}


@pytest.mark.parametrize("case", NOT_ONLY_GRUS.values(), ids=NOT_ONLY_GRUS)
def test_a_model_that_does_more(convert: Cli, case: tuple[list[onnx.NodeProto], str]) -> None:
    nodes, reason = case
    constants = {**weights(), "h": np.full((1, 2, 3), 0.5, np.float32)}
    save_model(Path(), model(graph(nodes, [value("X", shape=[4, 2, I])], ["Y", "Y_h"], constants)))
    convert("model.onnx", "m.xml").refused(f"model.onnx: {reason}; select GRUs with nodes (--node NAME)")
    result = convert("model.onnx", "m.xml", "--node", "g")
    assert result.code == 0, result.err
    says = "the initial state of 'g' is ignored, because a layer has none" in " ".join(result.err.split())
    assert says == (reason == "has its own initial state")


def test_other_lengths_for_each_layer(convert: Cli) -> None:
    constants = {**weights(0, "0", I=4, H=4), **weights(1, "1", I=4, H=4), "one": np.array([1])}
    nodes = [
        gru("X", ["y0"], W="W0", R="R0", bias="B0", hidden_size=4, name="below", lens="short"),
        node("Squeeze", ["y0", "one"], ["x1"]),
        gru("x1", ["Y", "Y_h"], W="W1", R="R1", bias="B1", hidden_size=4, name="above"),
    ]
    constants["short"] = np.array([1, 2], np.int32)
    save_model(Path(), model(graph(nodes, [value("X", shape=[4, 2, 4])], ["Y"], constants)))
    convert("model.onnx", "m.safetensors").refused("its GRUs have different lengths")


def test_models_without_layers(convert: Cli) -> None:
    proto = graph([node("Relu", ["X"], ["Y"])], [value("X", shape=[2])], ["Y"])
    save_model(Path(), model(proto))
    convert("model.onnx", "m.xml").refused("model.onnx: has no GRU node")
    names = {name: array for name, array in weights().items() if name != "W"}
    infos = [value("X", shape=[4, 2, I]), value("W", shape=[1, 9, I])]
    save_model(Path(), model(graph([gru("X", ["Y"], name="g")], infos, ["Y"], names)))
    convert("model.onnx", "m.xml").refused("the weights of 'g' are computed; must be constants")
    # Too large to be computed, so nothing may run the model.
    shapes = [node("ConstantOfShape", ["w"], ["W"]), node("ConstantOfShape", ["r"], ["R"])]
    large = {"w": np.array([1, 3 * 2**21, I]), "r": np.array([1, 3 * 2**21, 2**21])}
    nodes = [*shapes, gru("X", ["Y"], bias="", name="g", hidden_size=2**21)]
    save_model(Path(), model(graph(nodes, infos[:1], [value("Y", shape=[4, 1, 2, None])], large)))
    convert("model.onnx", "m.xml").refused("the weights of 'g' are computed; must be constants")


# ---- arguments


def test_the_report_counts_every_run(convert: Cli) -> None:
    """One of 7 steps and 4 rows, one of a single step and row; the larger one says how many steps."""
    onegru.save_layers(make_gru(), "a.safetensors")
    outputs = convert("a.safetensors", "b.onnx", "--json").document()["outputs"]
    hidden = make_gru().spec.hidden_size
    assert [(item["steps"], item["compared"]) for item in outputs] == [(7, 29 * hidden), (7, 5 * hidden)]


def test_tiny_numbers_are_many_apart(convert: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Comparison("Y", max_abs=3e-8, max_ulp=8262945430, tolerance=1e-6, compared=9, steps=7)]
    monkeypatch.setattr("onegru.cli.commands.convert.convert_layers", lambda *_: (checks, None))
    onegru.save_layers(make_gru(), "a.safetensors")
    onegru.save_layers(make_gru(), "b.onnx")
    out = convert("a.safetensors", "b.onnx", "--overwrite").out
    assert re.search(r"onegru +Y +3e-08 +many +1e-06 +agrees", out)


def test_a_run_that_disagrees_counts_whatever_another_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run has its own tolerance: the larger difference may be the one that is allowed."""
    runs = {
        1: Comparison("Y", agrees=False, max_abs=2e-6, tolerance=1e-6, compared=1, steps=1),
        7: Comparison("Y", max_abs=5e-6, tolerance=1e-5, compared=9, steps=7),
    }
    monkeypatch.setattr(checking, "_run_both", lambda source, target, T, B: [runs[T]])
    (found,) = checking._check(make_gru(), make_gru())
    assert (found.agrees, found.compared, found.steps) == (False, 10, 7)


def test_arguments(convert: Cli) -> None:
    onegru.save_layers(make_gru(), "a.onnx")
    onegru.save_layers(make_gru(), "a.safetensors")
    convert("a.onnx", "b.pb").refused("TARGET b.pb: must end in .onnx or .xml or .safetensors")
    convert("a.pb", "b.onnx").refused("a.pb: No such file or directory")
    np.save("a.npy", np.zeros(3))
    convert("a.npy", "b.onnx").refused("a.npy: a NumPy .npy array; must be one of these: ONNX model, ")
    Path("a.npy").unlink()
    convert("none.onnx", "b.xml").refused("none.onnx: No such file or directory")
    convert("none.safetensors", "b.xml").refused("none.safetensors: No such file or directory")
    convert("a.onnx", "none/b.xml").refused("TARGET none/b.xml: folder 'none' does not exist")
    convert("a.onnx", "b.xml", "--opset", 14).refused("--opset: 14; remove it for .xml")
    convert("a.onnx", "b.onnx", "--cell").refused("--cell: True; remove it for .onnx")
    convert("a.safetensors", "b.onnx", "--node", "g").refused("--node: 'g'; no such GRU in a.safetensors")
    Path("folder.onnx").mkdir()
    convert("a.onnx", "folder.onnx", "--overwrite").refused("TARGET folder.onnx: is a folder")
    assert sorted(item.name for item in Path().iterdir()) == ["a.onnx", "a.safetensors", "folder.onnx"]


@posix
def test_nothing_is_lost(convert: Cli) -> None:
    onegru.save_layers(make_gru(), "a.xml")
    Path("b.bin").write_bytes(b"something else")
    convert("a.xml", "b.xml").refused("TARGET b.bin: exists; replace it with --overwrite")
    assert Path("b.bin").read_bytes() == b"something else" and not Path("b.xml").exists()
    convert("a.xml", "a.xml", "--overwrite").refused("is the source, or a part of it; must be another file")
    Path("link.xml").symlink_to("a.xml")
    convert("a.xml", "link.xml", "--overwrite").refused("is the source, or a part of it")
    assert convert("a.xml", "b.xml", "--overwrite").code == 0
    assert Path("b.bin").read_bytes() == Path("a.bin").read_bytes()
    Path("other.xml").symlink_to("b.xml")
    onegru.save_layers(make_gru(seed=1), "c.onnx")
    words = "a link to one file of an IR would leave its other file unchanged"
    convert("c.onnx", "other.xml", "--overwrite").refused(words)
    assert Path("b.xml").read_bytes() == Path("a.xml").read_bytes() and not Path("other.bin").exists()


def test_sizes_and_inputs(convert: Cli) -> None:
    onegru.save_layers(make_gru(), "a.onnx")
    result = convert("a.onnx", "b.onnx", "--batch-size", 2, "--seq-length", 5, "--no-initial-h", "--lengths")
    assert result.code == 0, result.err
    found = onegru.load("b.onnx")
    assert {info.name: info.shape for info in found.inputs} == {"X": (5, 2, I), "sequence_lens": (2,)}


def test_a_writer_without_options(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"must end in"):
        convert_layers(make_gru(), tmp_path / "m.pb", {})
    with pytest.raises(SpecError, match=r"opset: 14; must be None for \.pt, because only \.onnx has it"):
        convert_layers(make_gru(), tmp_path / "m.pt", {"opset": 14})


def test_models_from_python(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no GRU node"):
        proto = graph([node("Relu", ["X"], ["Y"])], [value("X", shape=[2])], ["Y"])
        layers_of_model(onegru.load(save_model(tmp_path, model(proto))))
    # A single GRU need not be run to be known, and so may leave its input's shape open.
    proto = graph([gru("X", ["Y"], bias="B")], [value("X")], ["Y"], weights())
    found = layers_of_model(onegru.load(save_model(tmp_path, model(proto))))
    assert isinstance(found, GRU) and np.array_equal(found.weights.W, weights()["W"])


@pytest.mark.parametrize("name", ["time flipped", "output flipped", "lengths", "joined", "output cut"])
def test_what_a_layer_would_lose_is_refused(convert: Cli, name: str) -> None:
    """Numbers that are only moved, but to other places: a layer by itself is not that model."""
    x = value("X", shape=["t", "b", I])
    half = value("X2", shape=["t", "b", 1])
    constants = weights()
    flip = {
        "start": np.array([-1]),
        "stop": np.array([-(2**31)]),
        "axis": np.array([0]),
        "step": np.array([-1]),
    }
    cut = {"start": np.array([1]), "stop": np.array([2]), "axis": np.array([3]), "step": np.array([1])}
    cases: dict[str, tuple[list[Any], list[Any], dict[str, Any]]] = {
        "time flipped": (
            [node("Slice", ["X", *flip], ["x"]), gru("x", ["Y"], name="g")],
            [x],
            flip,
        ),
        "output flipped": ([gru("X", ["y"], name="g"), node("Slice", ["y", *flip], ["Y"])], [x], flip),
        "lengths": ([gru("X", ["Y"], lens="n", name="g")], [value("X", shape=["t", 3, I])], {}),
        "joined": (
            [node("Concat", ["X1", "X2"], ["x"], axis=2), gru("x", ["Y"], name="g")],
            [value("X1", shape=["t", "b", I - 1]), half],
            {},
        ),
        "output cut": ([gru("X", ["y"], name="g"), node("Slice", ["y", *cut], ["Y"])], [x], cut),
    }
    nodes, inputs, more = cases[name]
    if name == "lengths":
        more = {"n": np.array([1, 2, 3], np.int32)}
    save_model(Path(), model(graph(nodes, inputs, ["Y"], {**constants, **more})))
    result = convert("model.onnx", "m.xml")
    assert result.code == 2 and "select GRUs with nodes (--node NAME)" in result.err
    assert not Path("m.xml").exists()


def test_external_data_are_not_overwritten(convert: Cli) -> None:
    save_model(Path(), model(graph([gru("X", ["Y"])], [value("X", shape=["t", "b", I])], ["Y"], weights())))
    onnx.save(
        onnx.load("model.onnx"), "e.onnx", save_as_external_data=True, location="e.bin", size_threshold=0
    )
    before = Path("e.bin").read_bytes()
    convert("e.onnx", "e.xml", "--overwrite").refused("is the source, or a part of it")
    assert Path("e.bin").read_bytes() == before


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_other_content_of_a_checkpoint_is_named(cli: Cli, suffix: str) -> None:
    rng = np.random.default_rng(0)
    shapes = {"weight_ih_l0": (9, 4), "weight_hh_l0": (9, 3), "bias_ih_l0": (9,), "bias_hh_l0": (9,)}
    lstm = {"weight_ih_l0": (12, 4), "weight_hh_l0": (12, 3)}
    named = {f"rnn.{name}": shape for name, shape in shapes.items()}
    named |= {f"lstm.{name}": shape for name, shape in lstm.items()} | {"out.weight": (2, 3)}
    arrays = {name: rng.random(shape, np.float32) for name, shape in named.items()}
    source = f"tagger{suffix}"
    if suffix == ".pt":
        write_checkpoint(Path(source), arrays)
    else:
        safetensors_numpy.save_file(arrays, source)
    others = {"lstm.weight_ih_l0", "lstm.weight_hh_l0", "out.weight"}
    for arguments in (["inspect", source], ["convert", source, "rnn.onnx", "--overwrite"]):
        said = cli(*arguments)
        line = next(line for line in said.out.splitlines() if line.startswith("not part of a GRU: "))
        assert set(line.partition(": ")[2].split(", ")) == others
        assert set(cli(*arguments, "--json").document()["left_out"]) == others
    assert cli("inspect", "rnn.onnx").code == 0
    assert set(onegru.inspect(source).left_out) == others
    onegru.save_layers(onegru.load_layers(source)["rnn"], "own.safetensors")
    assert onegru.inspect("own.safetensors").left_out == ()


def test_other_content_of_a_keras_model_is_named(cli: Cli) -> None:
    gru = entry("rnn", reset_after=True, recurrent_activation="sigmoid")
    names = ("kernel", "recurrent_kernel", "bias")
    tensors = {"rnn": [(f"rnn/{name}", array) for name, array in zip(names, arrays(), strict=True)]}
    write_h5(
        Path("m.h5"), keras_model(entry("in", "InputLayer"), gru, entry("out", "Dense")), tensors, "3.9.0"
    )
    cli("convert", "m.h5", "m.onnx").refused("'out' is a Dense; select GRUs with nodes (--node NAME)")
    assert not Path("m.onnx").exists()
    assert "not part of a GRU: out\n" in cli("convert", "m.h5", "m.onnx", "--node", "rnn").out
    asked = cli("convert", "m.h5", "m.onnx", "--node", "rnn", "--overwrite", "--json").document()
    assert asked["written"] and asked["left_out"] == ["out"]
    said = cli("inspect", "m.h5").out
    assert "not part of a GRU: out\n" in said
    assert "model.export('x.onnx', format='onnx') in Keras" in said and "`onegru fuse`" in said
    write_h5(Path("m.h5"), keras_model(entry("in", "InputLayer"), gru), tensors, "3.9.0")
    result = cli("convert", "m.h5", "m.onnx", "--overwrite")
    assert result.code == 0 and "not part of a GRU" not in result.out


def test_quantized_weights_of_one_node(convert: Cli) -> None:
    layer = make_gru(hidden=20)
    onegru.save_layers(layer.with_storage("int8"), "small.onnx")
    onegru.save_layers(layer, "plain.onnx")
    words = "quantized weights were dequantized to float32, without loss"
    assert words in convert("small.onnx", "m.xml").out
    assert words not in convert("plain.onnx", "n.xml").out
