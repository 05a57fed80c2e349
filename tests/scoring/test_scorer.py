"""`Scorer`: rows in, the same rows out, with the same bits as each separately; what cannot run is named."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.dtypes import Array
from tests.support.layers import make_gru, make_stack

pa = pytest.importorskip("pyarrow")

from onegru.scoring import Scorer  # noqa: E402
from tests.support.tables import column, sequences, table, values  # noqa: E402

FORMS = ("list<fixed>", "list<list>", "large", "list")
FIXED = ("fixed<list>", "fixed", "tensor")


def run_row(layers: onegru.GRU | onegru.Stack, row: Array) -> dict[str, Array]:
    """What a row gives without any other."""
    Y, Y_h = layers(row[:, None])
    states: list[Array] = [*Y_h] if isinstance(Y_h, tuple) else [Y_h]
    flat = [state.ravel() for state in states]
    return {"Y": Y.reshape(len(row), -1), "Y_h": flat[-1], "states": np.concatenate(flat)}


@pytest.mark.parametrize("form", [*FORMS, *FIXED])
@pytest.mark.parametrize("directions", [("forward",), ("bidirectional", "reverse")])
def test_each_row_gets_its_own_bits(form: str, directions: tuple[str, ...]) -> None:
    layers = make_stack(2, directions, linear_before_reset=True)
    rows = sequences(lengths=(6, 6, 6)) if form in FIXED else sequences()
    scorer = Scorer(layers, keep=["id"], outputs=["Y", "states", "Y_h"], batch=9)
    found = scorer(table(rows, form))
    assert found.column_names == ["id", "Y", "states", "Y_h"]
    assert found["id"].to_pylist() == [*range(len(rows))]
    for name in ("Y", "states", "Y_h"):
        for row, got in zip(rows, values(found[name]), strict=True):
            assert np.array_equal(got, run_row(layers, row)[name])


@pytest.mark.parametrize("form", FORMS)
def test_slices_and_chunks(form: str) -> None:
    layer, rows = make_gru(), sequences(lengths=range(1, 40))
    whole = table(rows, form)
    expected = Scorer(layer)(whole)["Y_h"].to_pylist()
    chunked = pa.concat_tables([whole.slice(2, 0), whole.slice(3, 5), whole.slice(8, 1), whole.slice(20)])
    for part, wanted in (
        (whole.slice(7, 11), expected[7:18]),
        (whole.slice(39), []),
        (chunked, expected[3:9] + expected[20:]),
        (whole.slice(5, 20).to_batches()[0], expected[5:25]),
    ):
        assert Scorer(layer)(part)["Y_h"].to_pylist() == wanted
    cut = pa.table({"X": column(rows, form).slice(4, 9)})
    assert Scorer(layer)(cut)["Y_h"].to_pylist() == expected[4:13]


def test_lists_within_fixed_lists_and_slices_of_both() -> None:
    layer, rows = make_gru(), sequences(lengths=(4,) * 9)
    expected = Scorer(layer)(table(rows))["Y_h"].to_pylist()
    for form in FIXED:
        cut = pa.table({"X": column(rows, form).slice(2, 5)})
        assert Scorer(layer)(cut)["Y_h"].to_pylist() == expected[2:7]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("float64", "float32"),
        ("float16", "float32"),
        ("int8", "float32"),
        ("int64", "float64"),
        ("float32", "float16"),
    ],
)
def test_other_types_are_converted(kind: str, dtype: str) -> None:
    layer = make_gru(dtype=dtype)
    rows = [np.round(row * 4).astype(kind) for row in sequences()]
    found = Scorer(layer)(pa.table({"X": column(rows)}))
    for row, got in zip(rows, values(found["Y_h"]), strict=True):
        assert np.array_equal(got.astype(dtype), run_row(layer, row.astype(dtype))["Y_h"])


@pytest.mark.parametrize("name", ["m.safetensors", "m.onnx"])
@pytest.mark.parametrize("storage", ["int8", "bfloat16"])
def test_storage(name: str, storage: str, tmp_path: Path) -> None:
    layer, rows = make_gru(hidden=16), sequences()
    onegru.save_layers(layer, tmp_path / name)
    given: dict[str, Any] = {"inputs": {"X": "X"}} if name == "m.onnx" else {}
    scorer = Scorer(
        tmp_path / name, outputs=["Y_h"], weight_storage=storage, activation_storage=storage, **given
    )
    for used in (scorer, pickle.loads(pickle.dumps(scorer))):
        for row, got in zip(rows, values(used(table(rows))["Y_h"]), strict=True):
            assert np.array_equal(got.ravel(), run_row(layer.with_storage(storage, storage), row)["Y_h"])
    with pytest.raises(
        onegru.SpecError, match=r"^weight_storage: 'int8'; must be None if model is not a file"
    ):
        Scorer(layer, weight_storage="int8")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_no_bit_and_are_put_back(threads: int) -> None:
    layers, rows = make_stack(2), sequences(lengths=[*range(1, 60)] * 3)
    expected = Scorer(layers, batch=100)(table(rows))
    before = onegru.get_num_threads()
    try:
        onegru.set_num_threads(threads)
        assert Scorer(layers, batch=30)(table(rows)).equals(expected)
        assert onegru.get_num_threads() == threads
    finally:
        onegru.set_num_threads(before)
    with pytest.raises(onegru.SpecError):  # in a separate thread
        scorer = Scorer(layers, batch=30)
        scorer.program._layers = (*layers, make_gru())  # type: ignore[attr-defined]
        scorer(table(rows))
    assert onegru.get_num_threads() == before


def test_bfloat16_layers_give_float32() -> None:
    pytest.importorskip("ml_dtypes")
    layer, rows = make_gru(dtype="bfloat16"), sequences()
    found = Scorer(layer)(table(rows))
    assert found.schema.field("Y_h").type == pa.list_(pa.float32(), 4)
    expected = run_row(layer, rows[2].astype(layer.weights.W.dtype))["Y_h"]
    assert np.array_equal(values(found["Y_h"])[2], expected.astype(np.float32))


def test_attention_and_initial_states_have_columns() -> None:
    layer, rows = make_gru(attention=True, direction="bidirectional"), sequences()
    scores = [np.linspace(0, 1, len(row), dtype=np.float32) for row in rows]
    states = np.random.default_rng(3).standard_normal((len(rows), 8)).astype(np.float32)
    given = table(rows).append_column("score", pa.array(scores)).append_column("h", pa.array(states.tolist()))
    found = Scorer(layer, inputs={"A": "score", "initial_h": "h"}, batch=8)(given)
    for row, score, state, got in zip(rows, scores, states, values(found["Y_h"]), strict=True):
        expected = layer(row[:, None], state.reshape(2, 1, 4), attention=score[:, None])[1]
        assert np.array_equal(got, expected.ravel())


def test_what_is_carried_over_and_renamed() -> None:
    given = table(sequences()).rename_columns(["id", "day", "events"])
    found = Scorer(make_gru(), inputs={"X": "events"}, outputs={"Y_h": "state"}, keep=["day", "id"])(given)
    assert found.column_names == ["day", "id", "state"]
    assert found.select(["id", "day"]).equals(given.select(["id", "day"]))
    assert found.schema == Scorer(
        make_gru(), inputs={"X": "events"}, outputs={"Y_h": "state"}, keep=["day", "id"]
    ).schema(given.schema)


def test_a_scorer_travels_and_takes_batches() -> None:
    rows = sequences()
    scorer = Scorer(make_gru(), keep=["id"])
    expected = scorer(table(rows))
    sent: Scorer = pickle.loads(pickle.dumps(scorer))
    assert sent._program is None
    batches = table(rows).to_batches(max_chunksize=3)
    found = pa.Table.from_batches(sent.batches(iter(batches)))
    assert found["Y_h"].type == pa.list_(pa.float32())  # for Spark, not of a fixed size
    assert found.cast(expected.schema).equals(expected)


# ---- rows that cannot be run


def with_row(bad: Any, kind: Any = None) -> Any:
    """A table whose row 2 is `bad`."""
    rows: list[Any] = [row.tolist() for row in sequences()]
    rows[2] = bad
    return pa.table({"id": range(len(rows)), "X": pa.array(rows, kind or pa.list_(pa.list_(pa.float32())))})


STEP = [1.0, 2.0, 3.0, 4.0, 5.0]
BAD: dict[str, tuple[Any, str]] = {
    "null": (None, "null"),
    "empty": ([], "empty; must have at least one step"),
    "null step": ([STEP, None], "step 1 is null"),
    "narrow": ([STEP, STEP, STEP[:4]], "step 2 has 4 numbers; must have 5"),
    "wide": ([[*STEP, 6.0]], "step 0 has 6 numbers; must have 5"),
    "null number": ([STEP, [1.0, None, 3.0, 4.0, 5.0]], "contains a null"),
    "NaN": ([STEP, [1.0, 2.0, 3.0, float("nan"), 5.0]], "NaN"),
}


@pytest.mark.parametrize(
    ("name", "fixed"), [*((name, False) for name in BAD), ("null step", True), ("null number", True)]
)
def test_bad_rows(name: str, fixed: bool) -> None:
    layer, (bad, reason) = make_gru(), BAD[name]
    given = with_row(bad, pa.list_(pa.list_(pa.float32(), 5)) if fixed else None)
    with pytest.raises(onegru.FormatError, match=r"^row 2: 'X': ") as caught:
        Scorer(layer)(given)
    assert str(caught.value) == f"row 2: 'X': {reason}; on_error (--on-error) can skip such rows"
    good = Scorer(layer, keep=["id"])(table(sequences()))
    for shift in (0, 1):  # the row's place in a slice
        scored = Scorer(layer, keep=["id"], on_error="skip").run(given.slice(shift))
        assert [(item.row, item.column, item.reason, item.kept) for item in scored.skipped] == [
            (2 - shift, "X", reason, {"id": 2})
        ]
        assert scored.table.equals(
            pa.concat_tables([good.slice(shift, 2 - shift), good.slice(3)]).combine_chunks()
        )
    kept = Scorer(layer, keep=["id"], on_error="null")(given)
    assert kept["id"].to_pylist() == good["id"].to_pylist()
    wanted = good["Y_h"].to_pylist()
    wanted[2] = None
    assert kept["Y_h"].to_pylist() == wanted


def test_bad_rows_of_other_forms() -> None:
    rows = [row.ravel().tolist() for row in sequences()]
    rows[4] = rows[4][:-1]
    given = pa.table({"X": pa.array(rows, pa.list_(pa.float32()))})
    with pytest.raises(
        onegru.FormatError, match=r"^row 4: 'X': 59 numbers; must be a multiple of 5; on_error"
    ):
        Scorer(make_gru())(given)
    fixed = column(sequences(lengths=(2, 2, 2)), "fixed").to_pylist()
    given = pa.table({"X": pa.array([fixed[0], None, fixed[2]], pa.list_(pa.float32(), 10))})
    with pytest.raises(onegru.FormatError, match=r"^row 1: 'X': null; on_error"):
        Scorer(make_gru())(given)
    for kind, number in (("int64", 2**24 + 1), ("float64", 1e300)):
        wide = pa.table(
            {"X": pa.array([[[1] * 5], [[1, 1, number, 1, 1]]], pa.list_(pa.list_(getattr(pa, kind)())))}
        )
        with pytest.raises(
            onegru.FormatError, match=r"^row 1: 'X': .*, which float32 cannot represent; on_error"
        ):
            Scorer(make_gru())(wide)


def test_null_lists_that_cover_numbers() -> None:
    """A null row of a list may hide numbers of any kind."""
    offsets, numbers = (
        pa.array([0, 10, 13, 23], pa.int32()),
        pa.array([0.5] * 10 + [np.nan] * 3 + [0.25] * 10, pa.float32()),
    )
    lists = pa.ListArray.from_arrays(offsets, numbers, mask=pa.array([False, True, False]))
    found = Scorer(make_gru(), on_error="null").run(pa.table({"X": lists}))
    assert [(item.row, item.reason) for item in found.skipped] == [(1, "null")]
    assert np.array_equal(
        values(found.table["Y_h"])[2], run_row(make_gru(), np.full((2, 5), 0.25, np.float32))["Y_h"]
    )


def test_sequences_of_one_row_that_differ_in_length() -> None:
    layer, rows = make_gru(attention=True), sequences()
    scores: list[Any] = [[0.5] * len(row) for row in rows]
    scores[0], scores[5] = None, [0.5]
    given = table(rows).append_column("A", pa.array(scores, pa.list_(pa.float32())))
    skipped = Scorer(layer, on_error="skip").run(given).skipped
    assert [(item.row, item.column, item.reason) for item in skipped] == [
        (0, "A", "null"),
        (5, "A", "1 step; must be 2, as 'X'"),
    ]


def test_no_rows_and_only_bad_rows() -> None:
    empty = table(sequences()).slice(0, 0)
    found = Scorer(make_gru(), keep=["id"])(empty)
    assert len(found) == 0 and found.schema == Scorer(make_gru(), keep=["id"]).schema(empty.schema)
    bad = pa.table({"X": pa.array([None, None], pa.list_(pa.list_(pa.float32())))})
    assert Scorer(make_gru(), on_error="null")(bad)["Y_h"].to_pylist() == [None, None]
    assert len(Scorer(make_gru(), on_error="skip")(bad)) == 0


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": {"Z": "X"}}, "inputs: 'Z'; must be one of 'X', 'initial_h'"),
        (
            {"inputs": {"X": "events"}},
            "'events': no such column; input 'X' needs one; columns: 'id', 'day', 'X'",
        ),
        ({"inputs": {"X": "day"}}, "'day': string; must be lists of lists of 5 numbers"),
        ({"inputs": {"X": "id"}}, "'id': int64; must be lists of lists of 5 numbers"),
        ({"outputs": ["Z"]}, "outputs: 'Z'; must be one of 'Y_h', 'states', 'Y'"),
        (
            {"outputs": {"Y_h": "id"}, "keep": ["id"]},
            "'id': two columns would have this name; rename an output",
        ),
        ({"keep": ["x"]}, "keep: 'x': no such column; must be exactly one column"),
        ({"keep": "id"}, "keep: 'id'; must be a list of names"),
        ({"keep": ["id", "id"]}, "keep: 'id'; must be names without duplicates"),
        ({"on_error": "stop"}, "on_error: 'stop'; must be one of raise, skip, null"),
        ({"batch": 0}, "batch: 0; must be an integer, 1…131072"),
        ({"num_threads": 0}, "num_threads: 0; must be an integer, 1…64"),
        ({"nodes": ["g"]}, "nodes: has no effect with layers"),
        ({"axes": {"X": ["batch", "time", "i"]}}, "axes: has no effect with layers"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(onegru.SpecError) as caught:
        Scorer(make_gru(), **arguments)(table(sequences()))
    assert str(caught.value).startswith(message)


def test_what_is_no_model_and_no_table() -> None:
    with pytest.raises(onegru.SpecError, match=r"^model: 5; must be"):
        Scorer(5)  # type: ignore[arg-type]
    with pytest.raises(onegru.SpecError, match=r"^rows: \[\]; must be a table"):
        Scorer(make_gru())([])
    twice = pa.table([[1], [2]], names=["X", "X"])
    with pytest.raises(onegru.SpecError, match=r"^'X': 2 columns of that name; input 'X' needs one"):
        Scorer(make_gru())(twice)
    coded = pa.table({"X": pa.array(["a"]).dictionary_encode()})
    with pytest.raises(onegru.SpecError, match=r"^'X': dictionary.*; must be lists"):
        Scorer(make_gru())(coded)
