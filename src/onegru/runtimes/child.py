"""What runs in the process of its own: one model in one runtime; see `onegru.runtimes.apart`."""

from __future__ import annotations

import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]


def main(folder: Path) -> None:
    """Do what lies in the folder, and leave the answer there."""
    _leave_no_core_dump()
    outputs: dict[str, Any] = {}
    reason = ""
    try:
        runtime, subject, inputs = pickle.loads((folder / "request").read_bytes())
        outputs = runtime.run(subject, inputs)
    except Exception as error:  # whatever another runtime raises is its refusal
        reason = " ".join(str(error).split()) or type(error).__name__
    tensors = [(name, value) for name, value in outputs.items() if isinstance(value, np.ndarray | np.generic)]
    head = {"ran": not reason, "reason": reason, "outputs": [(name, _type(value)) for name, value in tensors]}
    with zipfile.ZipFile(folder / "unfinished", "w") as archive:
        archive.writestr("head", json.dumps(head))
        for number, (_, value) in enumerate(tensors):
            with archive.open(str(number), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, _storable(np.asarray(value)), allow_pickle=False)
    (folder / "unfinished").rename(folder / "answer")


def _leave_no_core_dump() -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _type(value: Any) -> str:
    return "str" if value.dtype.kind in "OUST" else str(value.dtype.name)


def _storable(array: Any) -> Any:
    """What a .npy holds of it: text as NumPy's own, bfloat16 as bare bytes."""
    if _type(array) == "str":
        return array.astype(np.str_)
    return array.view("V2") if array.dtype.name == "bfloat16" else array


if __name__ == "__main__":
    main(Path(sys.argv[1]))
