"""Changed models whose external data are too many for one file: they stay in files of their own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

import onegru
from onegru.formats.onnx import validate
from onegru.formats.onnx.validate import Source, external_tensors
from onegru.rewriting import external_data
from tests.support.files.onnx_models import I, graph, gru, model, node, numbers, value, weights
from tests.support.machine.systems import posix
from tests.support.models.rewrite_cases import assert_close, expected

IDS = {"ids": np.array([[1, 0], [2, 2], [0, 1]])}


def embedded(folder: Path, rows: int, location: str = "big.bin") -> Path:
    """A model of an embedding in a separate file, most of it without content, and a GRU."""
    folder.mkdir(exist_ok=True)
    place = folder / location
    place.parent.mkdir(exist_ok=True)
    with place.open("wb") as file:
        file.write(numbers(1, 3, I).tobytes())
        file.truncate(rows * I * 4)
    table = TensorProto(
        name="E", data_type=TensorProto.FLOAT, dims=[rows, I], data_location=TensorProto.EXTERNAL
    )
    table.external_data.add(key="location", value=location)
    nodes = [node("Gather", ["E", "ids"], ["X"], name="table"), gru("X", ["Y"], bias="B", name="gru")]
    inputs = [value("ids", "int64", ["T", "N"])]
    proto = graph(nodes, inputs, [value("Y", shape=[None] * 4)], weights())
    proto.initializer.append(table)
    onnx.save(model(proto, opset=17), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """So few bytes count as too many; returns how many rows of an embedding are more."""
    monkeypatch.setattr(external_data, "_LARGEST_FILE", 100_000)
    return 100_000 // (4 * I) + 1


def locations(path: Path) -> list[str]:
    proto: ModelProto = onnx.load(path, load_external_data=False)
    return [
        next(entry.value for entry in tensor.external_data if entry.key == "location")
        for tensor in external_tensors(proto)
    ]


def test_more_than_a_file_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of it is read, and none of it is written."""
    source = embedded(tmp_path, 2**31 // (4 * I) + 10)
    true = validate.external_bytes

    def small(source: Source, tensor: TensorProto) -> bytes:
        assert np.prod(tensor.dims) < 10**6
        return true(source, tensor)

    for module in (validate, external_data):
        monkeypatch.setattr(module, "external_bytes", small)
    made = onegru.rewrite(source, tmp_path / "new.onnx", layout=1)
    assert made.notes == ("external data of 1 tensor stay outside the file",)
    onegru.make_streaming(source, tmp_path / "streaming.onnx")
    onegru.rewrite(source, tmp_path / "decomposed.onnx", decompose=True)
    wanted = expected(source, IDS)
    for name in ("new", "decomposed"):
        assert locations(tmp_path / f"{name}.onnx") == ["big.bin"]
        assert_close(onegru.load(tmp_path / f"{name}.onnx").run(IDS), wanted, 1e-6)
    stream = onegru.load(tmp_path / "streaming.onnx").stream()
    parts = [stream.step({"ids": IDS["ids"][step : step + 1]})["Y"] for step in range(3)]
    np.testing.assert_allclose(np.concatenate(parts), wanted["Y"], atol=1e-6)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.onnx")) < 100_000


def test_in_another_folder(tmp_path: Path, few: int) -> None:
    """The file gets a second name, once; what has its name already stays."""
    source, folder = embedded(tmp_path / "source", few, "sub/big.bin"), tmp_path / "other"
    folder.mkdir()
    (folder / "big.bin").write_bytes(b"another's")
    wanted = expected(source, IDS)
    for _ in range(2):
        onegru.rewrite(source, folder / "new.onnx", layout=1)
        assert locations(folder / "new.onnx") == ["big.bin_2"]
        assert_close(onegru.load(folder / "new.onnx").run(IDS), wanted, 1e-6)
    assert (folder / "big.bin").read_bytes() == b"another's"
    assert (folder / "big.bin_2").samefile(source.parent / "sub" / "big.bin")
    assert len(list(folder.iterdir())) == 3


def test_in_a_folder_around_it(tmp_path: Path, few: int) -> None:
    source = embedded(tmp_path / "source", few)
    onegru.rewrite(source, tmp_path / "new.onnx", layout=1)
    assert locations(tmp_path / "new.onnx") == ["source/big.bin"]
    assert_close(onegru.load(tmp_path / "new.onnx").run(IDS), expected(source, IDS), 1e-6)


def test_without_links(tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(place: Path, _: object) -> None:
        raise (PermissionError if place.exists() else FileNotFoundError)("no links")

    monkeypatch.setattr(os, "link", no_link)
    source = embedded(tmp_path / "source", few)
    copy = tmp_path / "other" / "big.bin"
    copy.parent.mkdir()
    onegru.rewrite(source, copy.with_name("new.onnx"), layout=1)
    assert copy.read_bytes() == (source.parent / "big.bin").read_bytes()
    assert not copy.samefile(source.parent / "big.bin")
    assert len(list(copy.parent.iterdir())) == 2


def test_the_source_may_be_the_target(tmp_path: Path, few: int) -> None:
    source = embedded(tmp_path, few)
    wanted = expected(source, IDS)
    onegru.rewrite(source, source, layout=1)
    assert_close(onegru.load(source).run(IDS), wanted, 1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.bin", "model.onnx"]


def test_nothing_is_written_that_fails_the_check(tmp_path: Path, few: int) -> None:
    source = embedded(tmp_path / "source", few)
    with pytest.raises(onegru.FormatError, match="not written"):
        onegru.rewrite(source, tmp_path / "new.onnx", dtype="float16", check=onegru.Check(tolerance=0))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_file_that_holds_the_data_is_not_replaced(tmp_path: Path, few: int) -> None:
    source = embedded(tmp_path, few, "data.onnx")
    before = (tmp_path / "data.onnx").read_bytes()
    with pytest.raises(
        onegru.SpecError, match=r"^target: '.*data\.onnx' contains external data; must be anoth"
    ):
        onegru.rewrite(source, tmp_path / "data.onnx", layout=1)
    assert (tmp_path / "data.onnx").read_bytes() == before


@posix
def test_a_target_that_is_a_link(tmp_path: Path, few: int) -> None:
    source = embedded(tmp_path, few)
    (tmp_path / "real").mkdir()
    (tmp_path / "link.onnx").symlink_to(tmp_path / "real" / "new.onnx")
    with pytest.raises(
        onegru.SpecError, match="is a link; must be a regular file, because of its external data"
    ):
        onegru.rewrite(source, tmp_path / "link.onnx", layout=1)
    assert not list((tmp_path / "real").iterdir())


@posix
def test_from_the_cache_of_a_hub(tmp_path: Path, few: int) -> None:
    """What a link there leads to lies outside of the folder, which only links to models may."""
    blobs, revision = tmp_path / "blobs", tmp_path / "revision"
    embedded(blobs, few)
    revision.mkdir()
    for name in ("model.onnx", "big.bin"):
        (revision / name).symlink_to(blobs / name)
    onegru.rewrite(revision / "model.onnx", revision / "new.onnx", layout=1)
    assert locations(revision / "new.onnx") == ["big.bin_2"]
    assert_close(onegru.load(revision / "new.onnx").run(IDS), expected(blobs / "model.onnx", IDS), 1e-6)


def test_weights_that_are_changed_come_into_the_file(tmp_path: Path, few: int) -> None:
    """Of two large tensors, that of the GRU is another one now."""
    source = embedded(tmp_path, few)
    proto = onnx.load(source)
    onnx.save(
        proto,
        source,
        save_as_external_data=True,
        location="all.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    onegru.quantize(source, target=tmp_path / "new.onnx")
    tensors = external_tensors(onnx.load(tmp_path / "new.onnx", load_external_data=False))
    assert [tensor.name for tensor in tensors] == ["E"]


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_checked_in_a_runtime(tmp_path: Path, few: int, runtime: str) -> None:
    source = embedded(tmp_path / "source", few)
    made = onegru.rewrite(source, tmp_path / "new.onnx", runtime=runtime, opset=18)  # type: ignore[arg-type]
    runs = {report.runtime for report in made.outputs}
    assert runs == ({"onegru", "onnxruntime"} if runtime == "onnxruntime" else {"onegru"})
    unchecked = "not checked in openvino, which cannot read external data of a model in memory"
    assert (unchecked in made.notes) == (runtime == "openvino")


def test_fused(tmp_path: Path, few: int) -> None:
    source = embedded(tmp_path / "source", few)
    (tmp_path / "other").mkdir()
    onegru.rewrite(source, source.with_name("decomposed.onnx"), decompose=True)
    found = onegru.fuse(source.with_name("decomposed.onnx"), tmp_path / "other" / "fused.onnx")
    assert found.notes == ("external data of 1 tensor stay outside the file",)
    assert locations(tmp_path / "other" / "fused.onnx") == ["big.bin"]
    assert_close(onegru.load(tmp_path / "other" / "fused.onnx").run(IDS), expected(source, IDS), 1e-5)


def test_what_one_file_can_hold_comes_into_it(tmp_path: Path) -> None:
    source = embedded(tmp_path / "source", 10)
    made = onegru.rewrite(source, tmp_path / "new.onnx", layout=1)
    assert made.notes == ("external data of 1 tensors are now in the file",)
    assert not locations(tmp_path / "new.onnx")
