"""Write the cases as folders that test programs of any runtime can read.

    DIR/index.json                            every case: its folder, operator, type, unusual features
    DIR/onnx/test_NAME/model.onnx             as in onnx's own backend tests
                      /test_data_set_0/…      input_0.pb …, output_0.pb …: in the model's order
                      /data.json              one tolerance for all numbers, for onnx's own runner
    DIR/openvino/NAME/model.xml, model.bin
                     /inputs.npz              by the model's names; bfloat16 as float32
    and in each folder
      case.json                               the checked requirement, its source, types, shapes
      expected.npz                            the outputs in float64
      tolerance.npz                           the largest allowed error of each value

The .pb files contain the outputs rounded once to the case's type.
"""

from __future__ import annotations

import io
import json
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onegru._native import version
from onegru.conformance.case import Case
from onegru.conformance.files import IR, ONNX, case_files, fed_inputs, kind_of_case
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.system.atomic_write import naming

_INDEX = "index.json"


def export_cases(
    folder: Path, cases: Sequence[Case], progress: Callable[[int, int], None] | None = None
) -> None:
    """Write cases to a folder, all or none. The index is written last."""
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder}: not a folder; must be a new or empty folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise SpecError(f"{folder}: is not empty; must be a new or empty folder")
    is_new = not folder.exists()
    unfinished = folder / f".{secrets.token_hex(8)}.tmp"
    made: list[Path] = []
    with naming(folder):
        folder.mkdir(exist_ok=True)
        try:
            unfinished.mkdir()
            entries = []
            for done, case in enumerate(cases, 1):
                case_folder = _folder_of(case)
                _write_case(unfinished / case_folder, case)
                entries.append({"folder": case_folder, **summary(case)})
                if progress is not None:
                    progress(done, len(cases))
            index = {"kit": "onegru", "version": version(), "cases": entries}
            (unfinished / _INDEX).write_bytes(_json(index))
            for name in (ONNX, IR, _INDEX):
                if (unfinished / name).exists():
                    (unfinished / name).rename(folder / name)
                    made.append(folder / name)
        except BaseException:
            for path in made:
                shutil.rmtree(path, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            if is_new and not any(folder.iterdir()):
                folder.rmdir()


def _folder_of(case: Case) -> str:
    """Return the folder of a case; onnx's runner requires names that begin with "test_"."""
    kind = kind_of_case(case)
    return f"{kind}/{'test_' if kind == ONNX else ''}{case.name}"


def _write_case(folder: Path, case: Case) -> None:
    files = dict(case_files(case))
    files["case.json"] = _json(summary(case) | _details(case))
    files["expected.npz"] = _npz(case.expected)
    files["tolerance.npz"] = _npz(case.tolerance)
    if kind_of_case(case) == ONNX:
        rounded = rounded_outputs(case)
        for kind, arrays in (("input", fed_inputs(case)), ("output", rounded)):
            for number, (name, array) in enumerate(arrays.items()):
                files[f"test_data_set_0/{kind}_{number}.pb"] = _tensor(name, array)
        files["data.json"] = _json({"rtol": 0.0, "atol": _one_tolerance(case, rounded)})
    else:
        files["inputs.npz"] = _npz(fed_inputs(case))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def rounded_outputs(case: Case) -> dict[str, Array]:
    """Return the expected outputs, rounded once to the case's type."""
    with np.errstate(over="ignore", under="ignore"):
        return {name: array.astype(case.output_dtype()) for name, array in case.expected.items()}


def _one_tolerance(case: Case, rounded: Mapping[str, Array]) -> float:
    """Return one tolerance for all values: the largest."""
    most = 0.0
    for name, expected in case.expected.items():
        with np.errstate(invalid="ignore"):
            allowed = case.tolerance[name] + np.abs(rounded[name].astype(np.float64) - expected)
        most = float(np.max(allowed, initial=most, where=np.isfinite(allowed)))
    return most


def summary(case: Case) -> dict[str, Any]:
    """Return the properties of a case, for lists of cases."""
    return {
        "name": case.name,
        "operator": str(case.operator),
        "type": case.dtype,
        "features": dict(case.choices),
    }


def _details(case: Case) -> dict[str, Any]:
    dtype = case.dtype
    return {
        "checks": case.checks,
        "source": case.source,
        "attributes": case.attributes,
        "constant_weights": case.has_constant_weights,
        "fixed_shapes": case.has_fixed_shapes,
        "inputs": {
            name: {"type": array.dtype.name, "shape": list(array.shape)}
            for name, array in fed_inputs(case).items()
        },
        "outputs": {
            name: {
                "type": dtype,
                "shape": list(array.shape),
                "largest_tolerance": float(case.tolerance[name].max(initial=0.0)),
            }
            for name, array in case.expected.items()
        },
    }


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _npz(arrays: Mapping[str, Array]) -> bytes:
    """Write an .npz; bfloat16 becomes float32, because NumPy's files do not have it."""
    file = io.BytesIO()
    plain: dict[str, Any] = {
        name: array.astype(np.float32) if array.dtype.name == "bfloat16" else array
        for name, array in arrays.items()
    }
    np.savez(file, **plain)
    return file.getvalue()


def _tensor(name: str, array: Array) -> bytes:
    from onnx import numpy_helper  # `case_files` has checked that onnx is installed

    return bytes(numpy_helper.from_array(array, name).SerializeToString(deterministic=True))
