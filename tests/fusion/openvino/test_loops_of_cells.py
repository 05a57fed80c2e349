"""Loops of cells in IRs and in models in memory: sequences that give the cell's own bits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset8 as ops

import onegru
from onegru.core.dtypes import Array
from tests.support.comparison import same_bits
from tests.support.files.cell_loops import (
    FAULTS,
    B,
    I,
    Looped,
    expected,
    feeds,
    inputs,
    loop,
    model_of,
)
from tests.support.files.ir_files import edit

# Of OpenVINO's own results, whose largest is 1: 3e-7 in 400 models.
BOUND = 2e-6
SETTINGS = {"INFERENCE_PRECISION_HINT": "f32"}
FORMS = ("TensorIterator", "Loop", "gathers")


def core() -> Any:
    found = openvino.Core()
    for extension in onegru.openvino.extensions():
        found.add_extension(extension)
    return found


def run(model: Any, given: Mapping[str, Array]) -> dict[str, Array]:
    compiled = core().compile_model(model, "CPU", SETTINGS)
    results = compiled(dict(given))
    return {name: np.array(results[output]) for output in compiled.outputs for name in output.get_names()}


def written(path: Path, how: Looped) -> Path:
    given = inputs(how)
    openvino.save_model(model_of(loop(how, given), given), path, compress_to_fp16=False)
    return path


def replaced(path: Path) -> tuple[Any, list[str]]:
    """The model in memory, and the types of its layers, those of bodies included."""
    model = core().read_model(path)
    onegru.openvino.replace_grus(model)
    found = []
    waiting = [model]
    while waiting:
        for node in waiting.pop().get_ops():
            found.append(node.get_type_name())
            if hasattr(node, "get_function"):
                waiting.append(node.get_function())
    return model, found


def check(path: Path, given: Mapping[str, Array], wanted: Mapping[str, Array], grus: int = 1) -> None:
    """Every way makes sequences of it, with the bits wanted."""
    for fuse in (False, True):
        model = onegru.load(path, fuse=fuse)
        assert len(model.gru_nodes) == grus
        assert not model.nested_grus
        for _ in range(2):
            found = model.run(given)
            assert all(same_bits(found[name], array) for name, array in wanted.items())
    in_memory, kinds = replaced(path)
    assert {"TensorIterator", "Loop"}.isdisjoint(kinds)
    found = run(in_memory, given)
    assert all(same_bits(found[name], array) for name, array in wanted.items())


@pytest.mark.parametrize(
    ("form", "axis", "reverse", "outputs", "is_open", "moves", "after"),
    [
        case
        for case in itertools.product(
            FORMS,
            (0, 1),
            (False, True),
            ("last", "all", "both"),
            (False, True),
            ("Squeeze", "Reshape"),
            (False, True),
        )
        # Going backwards by numbers, a Loop has its number of steps in the file.
        if not (case[0] == "gathers" and case[2] and case[4])
    ],
)
def test_a_loop_of_a_cell_is_a_sequence(
    form: str, axis: int, reverse: bool, outputs: str, is_open: bool, moves: str, after: bool, tmp_path: Path
) -> None:
    state = "input" if is_open != after else "zero"
    how = Looped(form, axis, reverse, outputs, is_open, moves, after, state)
    path = written(tmp_path / "m.xml", how)
    given = feeds(how)
    wanted = expected(how, given)
    check(path, given, wanted)
    by_openvino = run(core().read_model(path), given)
    for name, array in wanted.items():
        np.testing.assert_allclose(by_openvino[name], array, rtol=0, atol=BOUND)


def test_fuse_writes_a_sequence(tmp_path: Path) -> None:
    how = Looped()
    path, target = written(tmp_path / "m.xml", how), tmp_path / "fused.xml"
    found = onegru.fuse(path, target)
    assert [(item.form, item.operator) for item in found.fused] == [("loop", "GRU")]
    given = feeds(how)
    by_openvino = run(core().read_model(target), given)
    for name, array in expected(how, given).items():
        np.testing.assert_allclose(by_openvino[name], array, rtol=0, atol=BOUND)


@pytest.mark.parametrize(
    "how",
    [
        Looped(state="deep"),
        Looped(state="deep", open=False, reverse=True),
        Looped(outside=True),
        Looped("Loop", outside=True, open=False),
        Looped(steps=1, open=False),
        Looped(steps=1),
    ],
)
def test_other_forms(how: Looped, tmp_path: Path) -> None:
    given = feeds(how)
    check(written(tmp_path / "m.xml", how), given, expected(how, given))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_open", [False, True])
def test_attention(form: str, is_open: bool, tmp_path: Path) -> None:
    """Scores of as many steps as x has; with open sizes only a TensorIterator says so."""
    how = Looped(form, attention=True, open=is_open)
    given = feeds(how)
    path = written(tmp_path / "m.xml", how)
    if is_open and form != "TensorIterator":
        found = onegru.load(path).run(given)
        assert all(same_bits(found[name], array) for name, array in expected(how, given).items())
    else:
        check(path, given, expected(how, given))


@pytest.mark.parametrize("is_open", [False, True])
def test_two_directions_become_one_layer(is_open: bool, tmp_path: Path) -> None:
    ways = {"f": Looped(open=is_open), "b": Looped(reverse=True, open=is_open, state="zero", seed=9)}
    ways["f"] = replace(ways["f"], state="zero")
    given, arrays = inputs(ways["f"]), feeds(ways["f"])
    outputs: dict[str, Any] = {}
    wanted: dict[str, Array] = {}
    for side, how in ways.items():
        outputs |= {side + name: value for name, value in loop(how, given).items()}
        wanted |= {side + name: array for name, array in expected(how, arrays).items()}
    path = tmp_path / "m.xml"
    openvino.save_model(model_of(outputs, given), path, compress_to_fp16=False)
    check(path, arrays, wanted, grus=2)
    both = ops.concat([outputs["fall"], outputs["ball"]], 2).output(0)
    openvino.save_model(model_of({"both": both}, given), path, compress_to_fp16=False)
    check(path, arrays, {"both": np.concatenate([wanted["fall"], wanted["ball"]], 2)})


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_more_than_a_sequence_stays(fault: str, tmp_path: Path) -> None:
    """And `fuse`, which may compute before the loop what needs no state, changes no numbers."""
    for form in FAULTS[fault]:
        for outputs in ("last", "both"):
            how = Looped(form, outputs=outputs, steps=6, fault=fault)
            path = written(tmp_path / "m.xml", how)
            model = onegru.load(path)
            (gru,) = model.gru_nodes
            assert gru.operator == "GRUCell-3" and model.nested_grus
            _, kinds = replaced(path)
            assert form.replace("gathers", "Loop") in kinds
            if fault == "stride":  # which OpenVINO itself cannot run
                continue
            given = feeds(how)
            before, after = model.run(given), onegru.load(path, fuse=True).run(given)
            for name, array in before.items():
                np.testing.assert_allclose(after[name], array, rtol=0, atol=BOUND)


@pytest.mark.parametrize("form", ["TensorIterator", "Loop"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r'(<input [^>]*)axis="1"', r'\1axis="4"'),
        (r'(<input [^>]*)axis="1"', r'\1axis="-2"'),
        (r'(<output [^>]*)axis="1"', r'\1axis="7"'),
        (r'(<input [^>]*)start="0"', r'\1start="1"'),
        (r'(<input [^>]*)end="-1"', r'\1end="3"'),
        (r'(<output [^>]*)end="-1"', r'\1end="2"'),
        (r'(<input [^>]*)stride="1"', r'\1stride="-1"'),
        (r'(<output [^>]*)stride="1"', r'\1stride="2"'),
        (r'part_size="1"', 'part_size="0"'),
        (r"<back_edges>.*?</back_edges>", ""),
        (r'(<back_edges>\s*<edge from-layer=")[0-9]+', r"\g<1>99"),
        (r'<output [^>]*axis="1"[^>]*/>', ""),
        (r'<input [^>]*axis="1"[^>]*/>', ""),
        (r'(<input [^>]*)internal_layer_id="[0-9]+"', r'\1internal_layer_id="77"'),
        (r'external_port_id="[0-9]"', 'external_port_id="55"'),
        (r'hidden_size="4"', 'hidden_size="5"'),
        (r'activations="sigmoid,', 'activations="tanh,'),
    ],
)
def test_broken_loops_are_refused_in_one_line_or_stay(form: str, old: str, new: str, tmp_path: Path) -> None:
    path = written(tmp_path / "m.xml", Looped(form, open=False))
    edit(path, lambda text: re.sub(old, new, text, count=1, flags=re.DOTALL))
    try:
        model = onegru.load(path)
    except onegru.OneGRUError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
    else:
        assert model.nested_grus or "tanh," in new


@pytest.mark.parametrize("is_port_changed", [False, True])
def test_sizes_of_ports_that_are_no_longer_true(is_port_changed: bool, tmp_path: Path) -> None:
    """OpenVINO infers them anew; the loop stays, and runs as many steps as there are."""
    how = Looped(open=False, axis=0, state="zero")
    x, arrays = ops.parameter([B, how.steps, I], np.float32, name="x"), feeds(how)
    outputs = loop(how, [ops.transpose(x, ops.constant(np.array([1, 0, 2])))])
    path = tmp_path / "m.xml"
    openvino.save_model(model_of(outputs, [x]), path, compress_to_fp16=False)
    assert onegru.load(path).nested_grus == ()
    longer = replace(how, steps=how.steps + 2)

    def change(text: str) -> str:
        text = text.replace(f'shape="{B},{how.steps},{I}"', f'shape="{B},{longer.steps},{I}"')
        return text.replace(
            f"<dim>{how.steps}</dim>", f"<dim>{longer.steps}</dim>", 1 if is_port_changed else 0
        )

    model = onegru.load(edit(path, change))
    assert model.nested_grus
    arrays = feeds(longer)
    found = model.run({"x": arrays["x"].swapaxes(0, 1)})
    assert all(same_bits(found[name], array) for name, array in expected(longer, arrays).items())


def test_a_sequence_has_the_name_of_its_cell(tmp_path: Path) -> None:
    """By which options are given."""
    how = Looped()
    path, given, options = written(tmp_path / "m.xml", how), feeds(how), {"decoder": "float16"}
    (node,) = onegru.load(path, weight_storage=options).gru_nodes
    assert node.name == "decoder"
    model = core().read_model(path)
    assert onegru.openvino.replace_grus(model, weight_storage=options) == 1
    found, whole = run(model, given), expected(how, given)
    by_file = onegru.load(path, weight_storage=options).run(given)
    for name, array in whole.items():
        assert same_bits(found[name], by_file[name]) and not same_bits(found[name], array)
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-3)
