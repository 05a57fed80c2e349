"""ONNX files whose tensors lie in other files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, TensorProto

import onegru
from onegru import FormatError, Model
from onegru.formats.onnx.parse import parse_onnx
from onegru.formats.onnx.validate import Source
from tests.support.files.onnx_checks import all_external, external, plain, refused
from tests.support.files.onnx_models import (
    EXPECTED,
    PLAIN,
    WEIGHTS,
    X_INFO,
    H,
    X,
    graph,
    loaded,
    model,
    node,
    numbers,
    save,
    tensor,
)
from tests.support.machine.systems import posix


def is_right(ours: Model) -> bool:
    got = ours.run({"X": X})
    np.testing.assert_array_equal(got["Y"], EXPECTED["Y"])
    np.testing.assert_allclose(got["Z"], EXPECTED["Y_h"] + numbers(7, H), atol=1e-6)
    return True


@pytest.mark.parametrize("location", ["weights.bin", "sub/weights.bin", "./sub/../weights.bin", "ünï"])
def test_external_data_in_the_folder(tmp_path: Path, location: str) -> None:
    """The GRU's weights are read here, K by ONNX Runtime."""
    (tmp_path / "sub").mkdir()
    assert is_right(loaded(tmp_path, all_external(tmp_path, location)))


@posix
def test_external_data_wherever_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = save(folder, all_external(folder))
    monkeypatch.chdir(tmp_path)
    assert is_right(onegru.load("models/model.onnx"))
    monkeypatch.chdir(folder)
    assert is_right(onegru.load("model.onnx"))
    (tmp_path / "link").symlink_to(folder)
    assert is_right(onegru.load(tmp_path / "link" / path.name))


def cached(folder: Path, name: str, data: bytes, blob: str) -> Path:
    """A file as Hugging Face's hub keeps it: a link, named as in the repository, to a file that is not."""
    blobs, revision = folder / "blobs", folder / "snapshots" / "1234"
    for place in (blobs, (revision / name).parent):
        place.mkdir(parents=True, exist_ok=True)
    (blobs / blob).write_bytes(data)
    (revision / name).symlink_to(os.path.relpath(blobs / blob, (revision / name).parent))
    return revision / name


@posix
@pytest.mark.parametrize("renamed", (False, True), ids=["as it is", "with another name for a node"])
def test_external_data_in_the_cache_of_a_hub(renamed: bool, tmp_path: Path) -> None:
    """ONNX Runtime reads the file itself, or where something has to change, a model in memory."""
    proto = all_external(tmp_path)
    if renamed:
        next(item for item in proto.graph.node if item.op_type == "GRU").name = ""
    cached(tmp_path, "onnx/weights.bin", (tmp_path / "weights.bin").read_bytes(), "5678")
    (tmp_path / "weights.bin").unlink()
    path = cached(tmp_path, "onnx/model.onnx", proto.SerializeToString(), "90ab")
    assert is_right(onegru.load(path))
    assert "GRU" in str(onegru.inspect(path))
    onegru.load_layers(path)
    onegru.rewrite(path, tmp_path / "new.onnx", opset=18)
    assert is_right(onegru.load(tmp_path / "new.onnx"))
    session = onegru.InferenceSession(path)
    np.testing.assert_array_equal(session.run(["Y"], {"X": X})[0], EXPECTED["Y"])


@posix
@pytest.mark.parametrize(
    "location",
    ["../../blobs/5678", "../../../secret", "link_to_secret", "link_to_folder/secret", "{above}/blobs/5678"],
)
def test_a_hubs_cache_opens_no_other_folder(location: str, tmp_path: Path) -> None:
    data = b"".join(array.tobytes() for array in WEIGHTS.values())
    revision = cached(tmp_path, "weights.bin", data, "5678").parent
    (tmp_path / "secret").write_bytes(data)
    (revision / "link_to_secret").symlink_to(tmp_path / "secret")
    (revision / "link_to_folder").symlink_to(tmp_path)
    location = location.format(above=tmp_path)
    proto = plain(W=external("W", WEIGHTS["W"], location))
    path = cached(tmp_path, "model.onnx", proto.SerializeToString(), "90ab")
    with pytest.raises(FormatError, match="outside the model's folder"):
        onegru.load(path)


@posix
def test_a_link_to_data_needs_a_link_to_the_model(tmp_path: Path) -> None:
    revision = cached(tmp_path, "weights.bin", WEIGHTS["W"].tobytes(), "5678").parent
    path = save(revision, plain(W=external("W", WEIGHTS["W"])))
    with pytest.raises(FormatError, match=r"'weights\.bin', outside the model's folder"):
        onegru.load(path)


def test_external_data_followed_by_more(tmp_path: Path) -> None:
    """Without a length the shape says how much it is."""
    (tmp_path / "weights.bin").write_bytes(WEIGHTS["W"].tobytes() + bytes(1000))
    assert is_right(loaded(tmp_path, plain(W=external("W", WEIGHTS["W"]))))


def test_external_data_computed_with_at_load(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS["W"].swapaxes(1, 2).tobytes())
    nodes = [node("Transpose", ["V"], ["W"], perm=[0, 2, 1]), PLAIN]
    constants = [external("V", WEIGHTS["W"].swapaxes(1, 2)), *(tensor(name, WEIGHTS[name]) for name in "RB")]
    got = loaded(tmp_path, model(graph(nodes, [X_INFO], ["Y"], constants))).run({"X": X})
    np.testing.assert_array_equal(got["Y"], EXPECTED["Y"])


@posix
@pytest.mark.parametrize("name", ["W", "K"], ids=["of a GRU", "of another node"])
@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("../secret", {}, "external data in '../secret', outside the model's folder"),
        ("sub/../../secret", {}, "outside the model's folder"),
        ("{above}/secret", {}, "outside the model's folder"),
        (
            "{folder}/weights.bin",
            {},
            "outside the model's folder",
        ),  # an absolute path, even to the right place
        ("link_to_file", {}, "external data in 'link_to_file', outside the model's folder"),
        ("link_to_folder/secret", {}, "outside the model's folder"),
        ("nothing.bin", {}, "external data in 'nothing.bin', which is not a file"),
        ("sub", {}, "external data in 'sub', which is not a file"),
        (".", {}, "which is not a file"),
        ("loop", {}, "which is not a file"),
        ("n" * 5000, {}, "which cannot be read (File name too long)"),
        ("", {}, "external data without a location"),
        ("weights\0.bin", {}, "external data without a location"),
        (None, {}, "external data without a location"),
        ("*/_ORT_MEM_ADDR_/*", {}, "external data in '*/_ORT_MEM_ADDR_/*', which is not a file"),
        ("*/_ORT_NATIVE_ENDIAN_MEM_ADDR_/*", {"offset": 4096}, "which is not a file"),
        ("weights.bin", {"offset": 530}, "of 'weights.bin', which has 540"),
        ("weights.bin", {"offset": 2**70}, "of 'weights.bin', which has 540"),
        (
            "weights.bin",
            {"length": 2**40},
            "external data end at byte 1099511627776 of 'weights.bin', which has 540",
        ),
        ("weights.bin", {"length": 8}, "8 bytes; must be {bytes} for shape {shape}"),
        ("weights.bin", {"length": 0}, "0 bytes; must be {bytes} for shape {shape}"),
        ("weights.bin", {"offset": -1}, "offset -1, length {bytes}; must not be negative"),
        ("weights.bin", {"length": -1}, "offset 0, length -1; must not be negative"),
        ("weights.bin", {"offset": "x"}, "offset and length must be numbers"),
        ("weights.bin", {"length": "1e3"}, "offset and length must be numbers"),
        ("weights.bin", {"offset": "0_0"}, "offset and length must be numbers"),
        ("weights.bin", {"offset": "٠"}, "offset and length must be numbers"),
        ("weights.bin", {"length": "9" * 5000}, "offset and length must be numbers"),
    ],
)
def test_external_data_that_are_refused(
    tmp_path: Path, name: str, location: str | None, entries: Mapping[str, object], message: str
) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    array = {**WEIGHTS, "K": numbers(7, H)}[name]
    for path in (tmp_path / "secret", folder / "weights.bin", folder / "*" / "_ORT_MEM_ADDR_" / "*"):
        path.write_bytes(bytes(540))
    (folder / "link_to_file").symlink_to(tmp_path / "secret")
    (folder / "link_to_folder").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    if location is not None:
        location = location.replace("{above}", str(tmp_path)).replace("{folder}", str(folder))
    got = refused(folder, plain(**{name: external(name, array, location, **entries)}))
    assert got.startswith(f"tensor {name!r}: ")
    assert message.format(bytes=array.nbytes, shape=list(array.shape)) in got


def test_an_external_key_that_is_there_twice(tmp_path: Path) -> None:
    """Two readers might take two different ones."""
    (tmp_path / "weights.bin").write_bytes(WEIGHTS["W"].tobytes())
    twice = external("W", WEIGHTS["W"])
    twice.external_data.add(key="location", value="weights.bin")
    assert refused(tmp_path, plain(W=twice)) == "tensor 'W': external data with a key that appears twice"


def test_external_strings_and_unknown_types(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(12))
    for code, message in ((TensorProto.STRING, "external data of strings"), (0, "unknown element type 0")):
        odd = external("K", numbers(7, H))
        odd.data_type = code
        assert message in refused(tmp_path, plain(K=odd))


def test_external_data_of_a_model_without_a_folder() -> None:
    proto = plain(W=external("W", WEIGHTS["W"]))
    with pytest.raises(
        FormatError, match=r"^model: tensor 'W': external data in 'weights\.bin', but the model has no"
    ):
        parse_onnx(proto.SerializeToString(), Source("model"))


@pytest.mark.parametrize(
    "place", ["constant", "sparse constant", "sparse", "body", "function", "function default"]
)
def test_external_data_wherever_tensors_are(tmp_path: Path, place: str) -> None:
    bad = external("secret", np.ones(3, np.float32), "../secret")
    (tmp_path / "secret").write_bytes(bytes(12))
    folder = tmp_path / "folder"
    folder.mkdir()
    nodes, sparse = [PLAIN, node("Add", ["Y_h", "K"], ["Z"])], []
    functions: list[FunctionProto] = []
    constant = node("Constant", [], ["K"], value=bad)
    pair = onnx.helper.make_sparse_tensor(bad, tensor("", np.arange(3)), [3])
    if place == "constant":
        nodes.append(constant)
    elif place == "sparse constant":
        nodes.append(node("Constant", [], ["K"], sparse_value=pair))
    elif place == "sparse":
        sparse = [pair]
    elif place == "body":
        body = graph([constant], [], ["K"])
        nodes.append(node("If", ["yes"], ["K"], then_branch=body, else_branch=body))
    else:
        use = constant if place == "function" else node("Constant", [], ["K"])
        function = onnx.helper.make_function(
            "own",
            "F",
            [],
            ["K"],
            [use],
            [onnx.helper.make_opsetid("", 14)],
            attribute_protos=[onnx.helper.make_attribute("v", bad)],
        )
        functions.append(function)
        nodes.append(node("F", [], ["K"], domain="own"))
    proto = model(
        graph(nodes, [X_INFO], ["Z"], WEIGHTS, sparse=sparse), functions=functions, domains={"own": 1}
    )
    assert (
        refused(folder, proto) == "tensor 'secret': external data in '../secret', outside the model's folder"
    )


def test_external_data_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, all_external(tmp_path))
    true_open = Path.open

    def closed(self: Path, *args: Any, **options: Any) -> Any:
        if self.name == "weights.bin":
            raise PermissionError(13, "Permission denied")
        return true_open(self, *args, **options)

    monkeypatch.setattr(Path, "open", closed)
    with pytest.raises(
        FormatError, match=r"tensor '\w': 'weights\.bin' cannot be read \(Permission denied\)"
    ):
        [gru.layer for gru in onegru.load(path).gru_nodes]
