"""What `onegru run` and `onegru inspect` print."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import onegru
from tests.support.files.onnx_models import WEIGHTS, H, I, graph, gru, model, node, save, tensor, value
from tests.support.layers import make_gru, make_stack
from tests.support.machine.cli import Cli, X, expected, same, write_gru

# ---- run: what it prints


def test_summary(cli: Cli) -> None:
    np.save("x.npy", np.ones_like(X))
    lines = [line.split() for line in cli("run", write_gru(), "-i", "x.npy").out.splitlines()]
    assert ["name", "type", "shape", "min", "max", "mean"] in lines
    assert ["in", "X", "float32", "[4,", "2,", "5]", "1", "1", "1"] in lines
    assert [line[:2] for line in lines if line[:1] == ["out"]] == [["out", "Y"], ["out", "Y_h"]]
    assert lines[-1][:8] == ["1", "GRU", "node", "and", "0", "other", "nodes", "ran"]


@pytest.mark.parametrize("width", [80, 40])
def test_every_width(cli: Cli, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    name = write_gru(lens="lens", activations=["LeakyRelu", "HardSigmoid"], activation_alpha=[0.3])
    shown = cli("inspect", name).out
    shown += cli("run", name, "--random", 0, "--dim", "seq=30", "--dim", "batch=50").out
    lines = [line for line in shown.splitlines() if "  onegru " not in line]  # commands are to be copied
    assert max(map(len, lines)) <= width
    for words in ("float32 [seq, batch, 5]", "LeakyRelu(0.3)", "HardSigmoid(0.2, 0.5)"):
        assert words in shown
    assert "…\n" not in shown.replace("0…", "")  # nothing is cut off


def test_json(cli: Cli) -> None:
    np.save("x.npy", X)
    document = cli("run", write_gru(), "-i", "x.npy", "--json").document()
    assert document.keys() == {"model", "seconds", "inputs", "outputs"}
    assert document["model"] == "gru.onnx"
    assert document["seconds"] >= 0
    assert document["inputs"] == {"X": {"dtype": "float32", "shape": [4, 2, I]}}
    for name, array in expected().items():
        item = document["outputs"][name]
        assert (item["dtype"], item["shape"]) == ("float32", list(array.shape))
        np.testing.assert_array_equal(np.array(item["data"], np.float32), array)  # every digit is there


def test_json_has_words_for_nan_and_infinity(cli: Cli) -> None:
    x = np.array([[[np.inf], [-np.inf], [np.nan]]], np.float32)
    constants = {"W": np.ones((1, 3, 1), np.float32), "R": np.zeros((1, 3, 1), np.float32)}
    nodes = [gru("X", ["Y"], hidden_size=1, activations=["Affine", "Affine"], activation_alpha=[1.0])]
    proto = model(graph(nodes, [value("X", shape=[1, 3, 1])], ["Y"], constants))
    proto.graph.node[0].attribute[1].strings[0] = b"Sigmoid"
    save(Path(), proto)
    np.save("x.npy", x)
    # z is 1, 0 and NaN; so h = (1 - z)·n + z·h is 0·inf = NaN, then -inf, then NaN.
    result = cli("run", "model.onnx", "-i", "x.npy", "--json").document()
    assert result["outputs"]["Y"]["data"] == [[[["NaN"], ["-Infinity"], ["NaN"]]]]


def test_json_to_stdout_and_arrays_to_a_file(cli: Cli) -> None:
    np.save("x.npy", X)
    cli("run", write_gru(), "-i", "x.npy", "--json", "-o", "out.npz").document()
    same("out.npz", expected())


# ---- inspect


def test_inspect(cli: Cli) -> None:
    name = write_gru(
        direction="bidirectional", clip=2.5, linear_before_reset=1, lens="lens",
        W="W2", R="R2", opset=14,
    )  # fmt: skip
    proto = onnx.load(name)
    for key in ("W", "R", "B"):
        array = np.concatenate([WEIGHTS[key]] * 2)
        proto.graph.initializer.append(tensor(key + "2", array))
    proto.graph.node[0].input[3] = "B2"
    onnx.save(proto, name)
    words = dict(re.findall(r"^(\S.*?)  +(.*?) *$", cli("inspect", name).out, re.MULTILINE))
    assert words["input → hidden"] == "5 → 3, float32"
    assert words["direction"] == "bidirectional"
    assert words["reset gate"] == "after the recurrent product"
    assert words["activations"] == "Sigmoid, Tanh | Sigmoid, Tanh"
    assert words["clip"] == "2.5"
    assert words["lengths"] == "yes"
    assert words["parameters"] == "180 (720 bytes)"  # 2 · (9·5 + 9·3 + 18) numbers
    assert words["FLOPs per step"] == "288 for each row"  # 2 · 2 · 9 · (5 + 3)
    assert words["the GRU"] == "GRU-14"
    assert "other runtimes" in words


def test_inspect_json(cli: Cli) -> None:
    name = write_gru(layout=1, clip=0.5)
    document = cli("inspect", name, "--json").document()
    assert document.keys() == {
        "model",
        "kind",
        "inputs",
        "outputs",
        "other_nodes",
        "nested_grus",
        "decomposed",
        "streaming",
        "near_misses",
        "fused_nodes",
        "gru_nodes",
    }
    assert document["inputs"] == [
        {"name": "X", "dtype": "float32", "shape": ["seq", "batch", I], "optional": False}
    ]
    (item,) = document["gru_nodes"]
    others = item.pop("others")
    assert item.pop("bodies") == []
    assert item == {
        "name": "the GRU",
        "operator": "GRU-22",
        "dtype": "float32",
        "input_size": I,
        "hidden_size": H,
        "direction": "forward",
        "reset": "before",
        "activations": [["Sigmoid", "Tanh"]],
        "clip": 0.5,
        "attention": None,
        "lengths": False,
        "parameters": 90,
        "bytes": 360,
        "flops_per_step": 144,
        "lossless_storage": None,
    }
    assert {"runtime": "onnxruntime", "effect": "refuses"}.items() <= {
        key: others[0][key] for key in ("runtime", "effect")
    }.items()
    assert all(verdict["reason"] and verdict["version"] for verdict in others)


def test_inspect_of_layers(cli: Cli) -> None:
    onegru.save_layers(make_stack(2), "layers.safetensors")
    Path("layers.safetensors").rename("layers.onnx")
    shown = cli("inspect", "layers.onnx").out
    assert shown.startswith("layers.onnx: a safetensors file with 2 GRU layers\n\nGRU, layer 0\n")
    assert "other runtimes" not in shown and "lengths" not in shown
    document = cli("inspect", "layers.onnx", "--json").document()
    assert document.keys() == {"model", "kind", "left_out", "gru_layers"}
    assert [item["name"] for item in document["gru_layers"]] == ["GRU, layer 0", "GRU, layer 1"]
    for command in ("run", "bench"):
        cli(command, "layers.onnx").refused(
            "layers.onnx: a safetensors file, which contains layers, not a runnable model"
        )


def test_inspect_of_computed_weights(cli: Cli) -> None:
    """What attributes say is known before a run, even where the weights are not."""
    nodes = [gru("X", ["Y"], clip=3.0, direction="reverse", activations=["HardSigmoid", "Tanh"], name="g")]
    inputs = [value("X", shape=[1, 1, I]), value("W", shape=[1, 3 * H, I])]
    save(Path(), model(graph(nodes, inputs, ["Y"], {"R": WEIGHTS["R"]})))
    (item,) = cli("inspect", "model.onnx", "--json").document()["gru_nodes"]
    assert (item["clip"], item["direction"]) == (3.0, "reverse")
    assert item["activations"] == [["HardSigmoid(0.2, 0.5)", "Tanh"]]
    assert (item["hidden_size"], item["input_size"], item["parameters"]) == (H, None, None)
    shown = cli("inspect", "model.onnx").out
    assert re.search(r"input → hidden +\? → 3, float32", shown)
    assert "computed" in shown


def test_inspect_lists_every_gru(cli: Cli) -> None:
    nodes = [gru("X", ["a"], name="first"), node("Squeeze", ["a"], ["b"]), gru("Z", ["c"])]
    inputs = [value(name, shape=[2, 1, I]) for name in ("X", "Z")]
    save(Path(), model(graph(nodes, inputs, ["b", "c"], WEIGHTS)))
    shown = cli("inspect", "model.onnx").out
    assert shown.startswith("model.onnx: 2 GRU nodes and 1 other node\n")
    assert re.search(r"^first +GRU-14", shown, re.MULTILINE)
    assert re.search(r"^c +GRU-14", shown, re.MULTILINE)  # a node without a name goes by its output


def test_names_from_files_cannot_command_the_terminal(cli: Cli) -> None:
    name = write_gru(activation_alpha=[1.0])
    proto = onnx.load(name)
    proto.graph.node[0].name = "evil\x1b[2J\x07\r\nline \u202e[bold]"
    onnx.save(proto, name)
    result = cli("inspect", name)
    assert r"evil\x1b[2J\x07\r\nline \u202e[bold]" in result.out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", result.out + result.err)
    assert result.err.count("\n") == 1


def test_times_on_a_number_of_threads(cli: Cli) -> None:
    command = ("bench", write_gru(), "--random", 0, "--dims", 2, "--rounds", 1, "--threads")
    try:
        assert cli(*command, 1).out.endswith("each runtime can use 1 thread\n")
        cli(*command, 65).refused("--threads: 65; must be an integer, 1…64")
    finally:
        onegru.set_num_threads(None)


def test_times_have_units_that_suit_them(cli: Cli) -> None:
    out = cli("bench", write_gru(), "--random", 0, "--dim", "seq=2000", "--dim", "batch=1").out
    times = re.findall(r"([0-9.]+) (µs|ms|s) ", out)
    assert times and all(0.9 <= float(number) < 1000 for number, _ in times)


@pytest.mark.parametrize("attention", [False, True])
def test_an_ir_is_timed_in_openvino(cli: Cli, attention: bool) -> None:
    """Compared with onegru, on the same inputs; OpenVINO reads no AUGRU."""
    pytest.importorskip("openvino")
    onegru.save_layers(make_gru(attention=attention), "m.xml")
    found = cli("bench", "m.xml", "--random", 0, "--dims", 3, "--rounds", 1, "--json").document()
    ours, theirs = found["runtimes"]
    assert (ours["runtime"], theirs["runtime"]) == ("onegru", "openvino")
    if attention:
        assert "OpenVINO cannot load it" in theirs["refuses"]
    else:
        assert theirs["median"] > 0 and theirs["difference"] < 1e-5
