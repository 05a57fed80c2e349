"""Whole models: their axes, what may be padded, and rows that give what they give separately."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.dtypes import Array
from tests.support.files.onnx_models import H, I, Shape, graph, gru, model, node, save, value, weights

pa = pytest.importorskip("pyarrow")
pytest.importorskip("onnxruntime")

from onegru.scoring import Scorer  # noqa: E402
from tests.support.tables import sequences, table, values  # noqa: E402

X, LENS = value("X", "float32", ["time", "batch", I]), value("lens", "int32", ["batch"])
PLAIN = gru("X", ["Y", "Y_h"], bias="B")
WITH_LENS = gru("X", ["Y", "Y_h"], bias="B", lens="lens")
MAX = node("ReduceMax", ["Y"], ["Z"], axes=[0], keepdims=0)
MEAN = node("ReduceMean", ["Y"], ["Z"], axes=[0], keepdims=0)
FIRST = node("Transpose", ["X"], ["XT"], perm=[1, 0, 2])
AFTER_TRANSPOSE = gru("XT", ["Y", "Y_h"], bias="B")


def saved(folder: Path, nodes: Any, inputs: Any, outputs: Any, name: str = "model.onnx") -> Path:
    return save(folder, model(graph(nodes, inputs, outputs, weights())), name)


def run_row(path: Path, row: Array, *, batch_first: bool = False) -> dict[str, Array]:
    """What a row gives by itself."""
    loaded = onegru.load(path)
    given: dict[str, Any] = {"X": row[None] if batch_first else row[:, None]}
    if any(info.name == "lens" for info in loaded.inputs):
        given["lens"] = np.array([len(row)], np.int32)
    return loaded.run(given)


@pytest.mark.parametrize(
    ("nodes", "inputs", "pad"),
    [
        ([PLAIN], [X], False),
        ([WITH_LENS], [X, LENS], False),
        ([WITH_LENS], [X, LENS], True),
        ([WITH_LENS, node("Neg", ["Y"], ["Z"])], [X, LENS], True),
        ([WITH_LENS, MEAN], [X, LENS], False),  # which sees padding
        ([WITH_LENS, MAX], [X, LENS], False),  # which sees it where a state is below 0
        ([PLAIN, MEAN], [X], False),
    ],
)
def test_rows_give_what_they_give_separately(tmp_path: Path, nodes: Any, inputs: Any, pad: bool) -> None:
    outputs = ["Y", "Y_h"] if len(nodes) == 1 else ["Z", "Y", "Y_h"]
    path = saved(tmp_path, nodes, inputs, outputs)
    scorer = Scorer(path, keep=["id"], pad=pad)
    assert scorer.program.equal_lengths != pad
    rows = sequences(lengths=(3, 1, 7, 3, 12, 2, 1, 5, 3, 3))
    found = scorer(table(rows))
    assert found.column_names == ["id", *outputs]
    for index, row in enumerate(rows):
        expected = run_row(path, row)
        for name in outputs:
            got = np.array(found[name][index].as_py(), np.float32)
            if name in ("Y", "Y_h"):
                assert np.array_equal(got, expected[name].reshape(got.shape))
            else:
                np.testing.assert_allclose(got, expected[name].reshape(got.shape), rtol=1e-6, atol=1e-6)


def test_models_that_see_padding_are_not_padded(tmp_path: Path) -> None:
    for nodes, inputs, message in (
        (
            [WITH_LENS, MEAN],
            [X, LENS],
            r"^pad: .*: output 'Z' of a row depends on its padding; remove it",
        ),
        ([PLAIN], [X], r"^pad: .* has no input for the lengths, or a column supplies it; remove it$"),
    ):
        path = saved(tmp_path, nodes, inputs, ["Y", "Y_h", "Z"][: 2 + (len(nodes) > 1)])
        with pytest.raises(onegru.SpecError, match=message):
            Scorer(path, pad=True)(table(sequences()))


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ReduceMean", ["Y_h"], ["m"], axes=[1]), node("Sub", ["Y_h", "m"], ["Z"])],
        [node("CumSum", ["Y_h", "rows"], ["Z"])],
        [node("Slice", ["Y_h", "zero", "one", "one"], ["m"]), node("Add", ["Y_h", "m"], ["Z"])],
    ],
)
def test_rows_that_influence_each_other_are_not_batched(tmp_path: Path, nodes: Any) -> None:
    constants = {**weights(), "rows": np.array(1), "zero": np.array([0]), "one": np.array([1])}
    path = save(tmp_path, model(graph([PLAIN, *nodes], [X], ["Z"], constants)))
    given, rows = table(sequences()), sequences()
    with pytest.raises(onegru.SpecError, match=r"output 'Z' of a row depends on the other rows of its batch"):
        Scorer(path)(given)
    for row, got in zip(rows, values(Scorer(path, batch=1)(given)["Z"]), strict=True):
        np.testing.assert_allclose(got, run_row(path, row)["Z"].ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["RandomNormalLike", "RandomUniformLike"])
def test_random_operators_are_named(kind: str, tmp_path: Path) -> None:
    nodes = [PLAIN, node("Sigmoid", ["Y_h"], ["p"]), node(kind, ["p"], ["r"], name="noise")]
    path = save(tmp_path, model(graph([*nodes, node("Add", ["p", "r"], ["Z"])], [X], ["Z"], weights())))
    with pytest.raises(onegru.SpecError, match=rf"has random operators \({kind} 'noise'\), so onegru"):
        Scorer(path)(table(sequences()))
    assert Scorer(path, batch=1)(table(sequences())).num_rows == len(sequences())


def test_lengths_that_a_cast_converts(tmp_path: Path) -> None:
    nodes = [node("Cast", ["n"], ["lens"], to=6), WITH_LENS]
    path = saved(tmp_path, nodes, [X, value("n", "int64", ["batch"])], ["Y_h"])
    plain, rows = saved(tmp_path, [PLAIN], [X], ["Y_h"], "plain.onnx"), sequences()
    for row, got in zip(rows, values(Scorer(path, pad=True)(table(rows))["Y_h"]), strict=True):
        assert np.array_equal(np.float32(got), run_row(plain, row)["Y_h"].ravel())


def test_an_input_that_is_only_called_lengths_has_a_column(tmp_path: Path) -> None:
    nodes = [PLAIN, node("Cast", ["lengths"], ["f"], to=1), node("Unsqueeze", ["f", "one"], ["g"])]
    nodes.append(node("Mul", ["Y_h", "g"], ["Z"]))
    inputs = [X, value("lengths", "int64", ["batch"])]
    path = save(tmp_path, model(graph(nodes, inputs, ["Z"], {**weights(), "one": np.array([1])})))
    rows = sequences()
    with pytest.raises(onegru.SpecError, match=r"'lengths': no such column"):
        Scorer(path)(table(rows))
    given = table(rows).append_column("lengths", pa.array(range(100, 100 + len(rows))))
    plain = saved(tmp_path, [PLAIN], [X], ["Y_h"], "plain.onnx")
    for index, (row, got) in enumerate(zip(rows, values(Scorer(path)(given)["Z"]), strict=True)):
        expected = run_row(plain, row)["Y_h"].ravel() * (100 + index)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


def test_a_column_with_the_name_of_the_lengths_is_named_or_refused(tmp_path: Path) -> None:
    """The column has fewer steps than each row."""
    path = saved(tmp_path, [WITH_LENS], [X, LENS], ["Y_h"])
    rows = [row[:7] for row in sequences(lengths=(7, 8, 9))]
    given = table(rows).append_column("lens", pa.array([1, 5, 7], pa.int32()))
    with pytest.raises(onegru.SpecError, match=r"^'lens': .*; to use it, name it .*--column lens=lens\)$"):
        Scorer(path)(given)
    plain = saved(tmp_path, [PLAIN], [X], ["Y_h"], "plain.onnx")
    for use, lengths in (({"inputs": {"lens": "lens"}}, (1, 5, 7)), ({"pad": True}, (7, 7, 7))):
        found = values(Scorer(path, **use)(given)["Y_h"])
        for row, length, got in zip(rows, lengths, found, strict=True):
            assert np.array_equal(np.float32(got), run_row(plain, row[:length])["Y_h"].ravel())


def test_columns_without_a_name_and_columns_of_other_inputs(tmp_path: Path) -> None:
    rows = sequences()
    given = table(rows).append_column("", pa.array(range(len(rows))))
    path = saved(tmp_path, [PLAIN], [X], ["Y_h"])
    expected = Scorer(path)(given)["Y_h"]
    renamed = table(rows).rename_columns({"X": "lens"})
    path = saved(tmp_path, [WITH_LENS], [X, LENS], ["Y_h"], "lens.onnx")
    assert Scorer(path, inputs={"X": "lens"})(renamed)["Y_h"].equals(expected)


def test_a_model_for_a_few_rows_only(tmp_path: Path) -> None:
    """A table of 16 rows is added, so that 33 rows cannot run."""
    nodes = [
        PLAIN,
        node("Shape", ["Y_h"], ["s"], start=1, end=2),
        node("Slice", ["t", "zero", "s", "one"], ["u"]),
    ]
    nodes.append(node("Add", ["Y_h", "u"], ["Z"]))
    constants = {
        **weights(),
        "t": np.zeros((1, 16, H), np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
    }
    path = save(tmp_path, model(graph(nodes, [X], ["Z"], constants), opset=15))
    with pytest.raises(onegru.SpecError, match=r"cannot be run on 33 rows of 7 steps .*; pass batch=1"):
        Scorer(path)(table(sequences()))
    found = values(Scorer(path, batch=16)(table(sequences()))["Z"])
    for row, got in zip(sequences(), found, strict=True):
        assert np.array_equal(np.float32(got), run_row(path, row)["Z"].ravel())


def test_outputs_without_rows_are_named(tmp_path: Path) -> None:
    nodes = [PLAIN, node("Reshape", ["Y", "sizes"], ["logits"])]
    constants = {**weights(), "sizes": np.array([-1, H])}
    path = save(tmp_path, model(graph(nodes, [X], ["Y_h", "logits"], constants)))
    with pytest.warns(onegru.SpecWarning, match=r"output 'logits': .* so the results do not contain it"):
        found = Scorer(path)(table(sequences()))
    assert found.column_names == ["Y_h"]


def test_batch_first_by_names_and_by_option(tmp_path: Path) -> None:
    rows = sequences()
    shapes: list[Shape] = [["N", "T", I], ["batch_size", None, I], ["p", "q", I]]
    for dims in shapes:
        path = saved(tmp_path, [FIRST, AFTER_TRANSPOSE], [value("X", "float32", dims)], ["Y_h"])
        if dims[0] == "p":
            with pytest.raises(
                onegru.SpecError, match=r"its axes of rows and steps.*\(--axes X=batch,time,feature\)$"
            ):
                Scorer(path)(table(rows))
        axes = {"X": ("batch", "time", "feature")} if dims[0] == "p" else None
        found = Scorer(path, axes=axes)(table(rows))
        for row, got in zip(rows, values(found["Y_h"]), strict=True):
            assert np.array_equal(np.float32(got), run_row(path, row, batch_first=True)["Y_h"].ravel())


def test_numbers_with_the_sequences(tmp_path: Path) -> None:
    """An input of one number, and one of two, for each row."""
    nodes = [PLAIN, node("Mul", ["Y_h", "scale"], ["S"]), node("ReduceSum", ["pair"], ["P"], keepdims=0)]
    inputs = [X, value("scale", "float32", ["batch", 1]), value("pair", "float32", ["batch", 2])]
    nodes[2] = node("Neg", ["pair"], ["P"])
    path = saved(tmp_path, nodes, inputs, ["S", "P"])
    rows = sequences()
    scale, pair = np.arange(8, dtype=np.float32), np.arange(16, dtype=np.float32).reshape(8, 2)
    given = table(rows).append_column("scale", pa.array(scale)).append_column("p", pa.array(pair.tolist()))
    found = Scorer(path, inputs={"pair": "p"}, outputs={"S": "scaled", "P": "P"})(given)
    assert found.schema.field("P").type == pa.list_(pa.float32(), 2)
    assert np.array_equal(np.array(values(found["P"])), -pair)
    plain = saved(tmp_path, [PLAIN], [X], ["Y_h"])
    expected = run_row(plain, rows[3])["Y_h"].ravel()
    np.testing.assert_allclose(values(found["scaled"])[3], expected * 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "arguments", "message"),
    [
        ([PLAIN], [value("X", "float32", ["T", 4, I])], ["Y"], {}, "no dynamic axis for rows"),
        ([PLAIN], [X], ["Y"], {"axes": {"X": ("batch", "time")}}, "axes['X']: batch, time; must be 3 names"),
        ([PLAIN], [X], ["Y"], {"axes": {"Z": ("batch",)}}, "axes: 'Z'; must be one of 'X'"),
        ([PLAIN], [X], ["Y"], {"inputs": {"Z": "X"}}, "inputs: 'Z'; must be one of 'X'"),
        ([PLAIN], [X], ["Y"], {"outputs": ["Z"]}, "outputs: 'Z'; must be one of 'Y'"),
        (
            [PLAIN, node("Shape", ["Y"], ["Z"])],
            [X],
            ["Y", value("Z", "int64", [4])],
            {"outputs": ["Z"]},
            "output 'Z'",
        ),
        (
            [PLAIN],
            [X],
            ["Y"],
            {"axes": {"X": ("batch", "feature", "time")}},
            "X': [time, batch, 5]; all axes but",
        ),
    ],
)
def test_refusals(
    tmp_path: Path, nodes: Any, inputs: Any, outputs: Any, arguments: dict[str, Any], message: str
) -> None:
    path = saved(tmp_path, nodes, inputs, outputs)
    with pytest.raises(onegru.SpecError) as caught:
        Scorer(path, **arguments)(table(sequences()))
    assert message in str(caught.value)


def test_a_node_of_a_model_is_run_as_a_layer(tmp_path: Path) -> None:
    nodes = [gru("X", ["Y", "Y_h"], bias="B", name="g"), node("Neg", ["Y_h"], ["Z"])]
    path = saved(tmp_path, nodes, [X], ["Z"])
    found = Scorer(path, nodes=["g"])(table(sequences()))
    assert np.array_equal(-np.float32(values(found["Y_h"])[1]), run_row(path, sequences()[1])["Z"].ravel())
