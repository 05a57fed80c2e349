"""Exported cases, as others read them: onnx's own runner, and loaders of a few lines."""

from __future__ import annotations

import json
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import SpecError
from onegru.conformance.cases import all_cases, quantized_cases
from onegru.conformance.export import export_cases
from onegru.core.dtypes import numpy_dtype
from tests.support.comparison import Arrays

pytestmark = pytest.mark.filterwarnings("ignore::onegru.SpecWarning")  # values left over
onnx: Any = pytest.importorskip("onnx")

CASES = [
    *(case for case in all_cases()[::23] if case.level("seq_length") != "1000"),
    *quantized_cases(),
]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "kit"
    steps: list[tuple[int, int]] = []
    export_cases(folder, CASES, lambda done, total: steps.append((done, total)))
    assert steps == [(done, len(CASES)) for done in range(1, len(CASES) + 1)]
    return folder


def entries(kit: Path, kind: str) -> list[Path]:
    index = json.loads((kit / "index.json").read_text())
    assert index["kit"] == "onegru" and index["version"] == onegru.__version__
    assert [entry["name"] for entry in index["cases"]] == [case.name for case in CASES]
    found = [kit / entry["folder"] for entry in index["cases"] if entry["folder"].startswith(f"{kind}/")]
    assert sorted(found) == sorted((kit / kind).iterdir()) and found
    return found


def check(folder: Path, got: Arrays) -> None:
    """By nothing but the files."""
    case = json.loads((folder / "case.json").read_text())
    with np.load(folder / "expected.npz") as expected, np.load(folder / "tolerance.npz") as tolerance:
        assert set(expected) == set(tolerance) == set(case["outputs"]) == set(got)
        for name, about in case["outputs"].items():
            assert (about["type"], about["shape"]) == (got[name].dtype.name, list(got[name].shape))
            assert expected[name].dtype == tolerance[name].dtype == np.float64
            assert about["largest_tolerance"] == tolerance[name].max(initial=0.0)
            apart = np.abs(got[name].astype(np.float64) - expected[name])
            finite = np.isfinite(expected[name])
            assert np.all(apart[finite] <= tolerance[name][finite]), folder.name
            np.testing.assert_array_equal(got[name][~finite].astype(np.float64), expected[name][~finite])


def tensor(path: Path) -> Any:
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def numbered(folder: Path, kind: str) -> list[Any]:
    files = sorted((folder / "test_data_set_0").glob(f"{kind}_*.pb"), key=lambda path: int(path.stem[-1]))
    return [tensor(path) for path in files]


def fed(folder: Path) -> Arrays:
    model = onnx.load(folder / "model.onnx")
    constants = {item.name for item in model.graph.initializer}
    names = [info.name for info in model.graph.input if info.name not in constants]
    return dict(zip(names, numbered(folder, "input"), strict=True))


def test_onnx_cases_in_onegru(kit: Path) -> None:
    for folder in entries(kit, "onnx"):
        check(folder, onegru.load(folder / "model.onnx").run(fed(folder)))


def test_onnx_cases_in_onnxruntime(kit: Path) -> None:
    runtime: Any = pytest.importorskip("onnxruntime")
    ran = 0
    for folder in entries(kit, "onnx"):
        case = json.loads((folder / "case.json").read_text())
        if case["operator"] != "GRU-14" or case["features"].get("type") or len(case["features"]) > 2:
            continue
        if {"layout", "hidden_size", "seq_length", "batch_size", "values", "parameters"} & case[
            "features"
        ].keys():
            continue  # what it refuses, or gets wrong
        session = runtime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        check(folder, dict(zip(names, session.run(None, fed(folder)), strict=True)))
        ran += 1
    assert ran


def test_rounded_outputs(kit: Path) -> None:
    for folder in entries(kit, "onnx"):
        model = onnx.load(folder / "model.onnx")
        with np.load(folder / "expected.npz") as expected:
            for info, output in zip(model.graph.output, numbered(folder, "output"), strict=True):
                with np.errstate(over="ignore"):
                    rounded = expected[info.name].astype(output.dtype)
                np.testing.assert_array_equal(rounded.view(np.uint8), output.view(np.uint8))


def test_in_the_runner_of_onnx(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one tolerance for all numbers of a case, which data.json states."""
    from onnx.backend.test import loader
    from onnx.backend.test.runner import Runner

    import onegru.backend

    found = loader.load_model_tests(data_dir=str(kit), kind="onnx")
    assert len(found) == len(entries(kit, "onnx"))
    monkeypatch.setattr("onnx.backend.test.runner.load_model_tests", lambda **_: [])  # those of onnx itself
    runner = Runner(onegru.backend.OneGRUBackend, __name__)
    for test in found:
        runner._add_model_test(test, "Kit")
    suite = unittest.TestSuite(
        case(name)
        for case in runner.test_cases.values()
        for name in dir(case)
        if name.startswith("test_") and name.endswith("_cpu")
    )
    assert suite.countTestCases() == len(found)
    result = unittest.TestResult()
    suite.run(result)
    assert not result.failures + result.errors + result.skipped, (result.failures + result.errors)[:3]


def test_ir_cases_in_onegru(kit: Path) -> None:
    for folder in entries(kit, "openvino"):
        case = json.loads((folder / "case.json").read_text())
        with np.load(folder / "inputs.npz") as inputs:
            assert set(inputs) == set(case["inputs"])
            given = {
                name: inputs[name].astype(numpy_dtype(about["type"]))
                for name, about in case["inputs"].items()
            }
        check(folder, onegru.load(folder / "model.xml").run(given))


def test_what_a_case_says(kit: Path) -> None:
    case = next(case for case in CASES if case.choices and str(case.operator) == "GRU-14")
    (folder,) = (path for path in entries(kit, "onnx") if path.name == f"test_{case.name}")
    description = json.loads((folder / "case.json").read_text())
    assert (description["checks"], description["source"], description["features"]) == (
        case.checks,
        case.source,
        dict(case.choices),
    )
    assert description["attributes"] == case.attributes and description["operator"] == "GRU-14"
    assert description["inputs"]["X"] == {"type": case.dtype, "shape": list(case.inputs["X"].shape)}
    assert {path.name for path in folder.iterdir()} == {
        *("model.onnx", "test_data_set_0", "case.json", "data.json", "expected.npz", "tolerance.npz")
    }


def test_the_same_bytes_again(kit: Path, tmp_path: Path) -> None:
    few = CASES[:: len(CASES) // 4]
    export_cases(tmp_path / "again", few)
    again = [path for path in (tmp_path / "again").rglob("*") if path.is_file() and path.name != "index.json"]
    assert Counter(path.name for path in again)["case.json"] == len(few)
    for path in again:
        assert (kit / path.relative_to(tmp_path / "again")).read_bytes() == path.read_bytes(), path


def test_folders_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="is not empty; must be a new or empty folder"):
        export_cases(tmp_path, CASES[:1])
    with pytest.raises(SpecError, match="file: not a folder; must be a new or empty folder"):
        export_cases(tmp_path / "file", CASES[:1])
    with pytest.raises(OSError, match="none"):
        export_cases(tmp_path / "none" / "kit", CASES[:1])
    (tmp_path / "empty").mkdir()
    export_cases(tmp_path / "empty", CASES[:1])
    assert (tmp_path / "empty" / "index.json").is_file()


@pytest.mark.parametrize("is_new", [True, False])
def test_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool) -> None:
    folder = tmp_path / "kit"
    if not is_new:
        folder.mkdir()

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_cases(folder, CASES[:3], stop)
    assert folder.exists() is not is_new and not list(tmp_path.rglob("*"))[0 if is_new else 1 :]
    real = Path.rename

    def no_index(self: Path, target: Path) -> Path:
        if target.name == "index.json":
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", no_index)
    with pytest.raises(OSError, match="No space left"):
        export_cases(folder, CASES[:1])
    assert not list(tmp_path.rglob("*"))[0 if is_new else 1 :]
    monkeypatch.undo()
    export_cases(folder, CASES[:1])
    assert {path.name for path in folder.iterdir()} == {"index.json", "onnx"}
