"""PyTorch's checkpoints, read without PyTorch: what is right comes out right, and nothing else does harm."""

from __future__ import annotations

import io
import pickle
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError
from onegru.core.dtypes import Array, numpy_dtype
from tests.support.files.torch_files import PROTO, STOP, Call, Global, Raw, Writer, write_checkpoint

H, I = 4, 3


def state(seed: int = 0, dtype: str = "float32", prefix: str = "") -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"weight_ih": (3 * H, I), "weight_hh": (3 * H, H), "bias_ih": (3 * H,), "bias_hh": (3 * H,)}
    return {
        f"{prefix}{name}_l0": rng.standard_normal(shape).astype(numpy_dtype(dtype))
        for name, shape in shapes.items()
    }


def expect(path: Path, arrays: dict[str, Array], name: str = "") -> None:
    layer, expected = onegru.load_layers(path)[name], onegru.from_torch(arrays)
    assert isinstance(layer, onegru.GRU) and isinstance(expected, onegru.GRU)
    assert layer.spec == expected.spec
    for field in ("W", "R", "B"):
        np.testing.assert_array_equal(getattr(layer.weights, field), getattr(expected.weights, field))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_state_dicts(tmp_path: Path, dtype: str, byteorder: str, legacy: bool) -> None:
    arrays = state(dtype=dtype, prefix="gru.")
    others = {"count": np.arange(3), "epoch": 3, "loss": 0.5, "names": ["a", None, (True, {})]}
    expect(
        write_checkpoint(tmp_path / "x.pt", {**others, **arrays}, legacy=legacy, byteorder=byteorder),
        arrays,
        "gru",
    )


def test_what_surrounds_a_state_dict(tmp_path: Path) -> None:
    """Objects of other classes are not made, whatever they are."""
    arrays = state()
    ordered = Call(Global("collections", "OrderedDict"), ())
    writer = Writer()
    data = writer.part(ordered) + writer.part(arrays)[1:] + writer.part({"_metadata": ordered}) + b"b"
    namespace = Raw(writer.part(Call(Global("argparse", "Namespace"), ())) + writer.part({"lr": 0.1}) + b"b")
    content = {"state_dict": Raw(data), "hyper_parameters": namespace, "device": Global("torch", "float32")}
    expect(writer.write(tmp_path / "x.ckpt", content), arrays, "state_dict")


@pytest.mark.parametrize("extra", ["bias", "bias_n", "norm_i.weight", "weight_ih_l0_mask"])
@pytest.mark.parametrize("prefix", ["", "encoder.cell."])
def test_tensors_that_no_gru_has(tmp_path: Path, prefix: str, extra: str) -> None:
    """Cells of others, with PyTorch's names: Equinox', those with layer norm."""
    arrays = {**state(prefix=prefix), f"{prefix}{extra}": np.zeros((3 * H, I), np.float32)}
    words = f"'{prefix}{extra}' next to the tensors of a GRU, which no PyTorch GRU has"
    with pytest.raises(onegru.SpecError, match=words):
        onegru.from_torch(arrays)
    with pytest.raises(onegru.SpecError, match=words):
        onegru.from_torch(arrays, prefix=prefix)
    for content in (arrays, {"model": arrays}, [arrays]):
        with pytest.raises(FormatError, match=f"no GRU with its own weights: .*{extra}' next to"):
            onegru.load_layers(write_checkpoint(tmp_path / "x.pt", content))
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file(arrays, tmp_path / "x.safetensors")
    with pytest.raises(FormatError, match=f"no GRU with its own weights: .*{words}"):
        onegru.load_layers(tmp_path / "x.safetensors")
    within = {**state(prefix=prefix), **state(prefix=f"{prefix}inner.")}
    with pytest.raises(onegru.SpecError, match=r"inner\.weight_ih_l0' next to the tensors"):
        onegru.from_torch(within, prefix=prefix)
    arrays = {f"a.{name}": array for name, array in arrays.items()}
    arrays |= state(prefix="decoder.")  # which is one, and the other is left out as an LSTM is
    expect(write_checkpoint(tmp_path / "x.pt", {"net": arrays}), state(prefix="decoder."), "net.decoder")


def test_lists_and_what_is_no_state_dict(tmp_path: Path) -> None:
    first, second = state(1, prefix="gru."), state(2, prefix="gru.")
    path = write_checkpoint(tmp_path / "x.pt", {"ensemble": [first, (second, {"epoch": 3})]})
    expect(path, first, "ensemble.0.gru")
    expect(path, second, "ensemble.1.0.gru")
    expect(write_checkpoint(tmp_path / "x.pt", [first, ["a", "b"]]), first, "0.gru")
    module = Call(Global("a.net", "Net"), ())
    with pytest.raises(FormatError, match=r"no GRU .*: 'model' is an a\.net\.Net, not tensors"):
        onegru.load_layers(write_checkpoint(tmp_path / "x.pt", {"model": module, "epoch": 3}))
    lstm = {
        "weight_ih_l0": np.zeros((4 * H, I), np.float32),
        "weight_hh_l0": np.zeros((4 * H, H), np.float32),
    }
    with pytest.raises(
        FormatError, match=r"no GRU .*: '' has weight_hh_l0 with 4.hidden_size rows, as an LSTM"
    ):
        onegru.load_layers(write_checkpoint(tmp_path / "x.pt", lstm))


def test_parameters_and_views(tmp_path: Path) -> None:
    """As cuDNN lays weights into one storage, and as transposed ones are saved."""
    arrays, writer = state(), Writer()
    flat = writer.storage(np.concatenate([array.ravel() for array in arrays.values()]))
    places = np.cumsum([0, *(array.size for array in arrays.values())])
    content: dict[str, Any] = {}
    for place, (name, array) in zip(places, arrays.items(), strict=False):
        steps = (array.shape[1], 1) if array.ndim == 2 else (1,)
        content[name] = writer.view(flat, int(place), array.shape, steps)
    content["bias_hh_l0"] = Call(
        Global("torch._utils", "_rebuild_parameter"), (content["bias_hh_l0"], True, None)
    )
    turned = writer.storage(np.ascontiguousarray(arrays["weight_ih_l0"].T))
    content["weight_ih_l0"] = writer.view(turned, 0, (3 * H, I), (1, 3 * H))
    rebuilt = content["bias_ih_l0"]
    kinds = (rebuilt.function, Global("torch.nn.parameter", "Parameter"))
    content["bias_ih_l0"] = Call(
        Global("torch._tensor", "_rebuild_from_type_v2"), (*kinds, rebuilt.arguments, {"note": 1})
    )
    expect(writer.write(tmp_path / "x.pt", content), arrays)


def test_nothing_is_run(tmp_path: Path) -> None:
    touch = Call(Global("pathlib", "Path.touch"), (str(tmp_path / "harm"),))
    system = Call(Global("os", "system"), (f"touch {tmp_path / 'harm'}",))
    for harm in (touch, system, Raw(b"cos\nsystem\n(X\x04\x00\x00\x00truetR")):
        for content in (harm, {"weight_ih_l0": harm}, {"x": harm}):
            with pytest.raises(FormatError, match=r"x\.pt: "):
                onegru.load_layers(write_checkpoint(tmp_path / "x.pt", content))
    assert not (tmp_path / "harm").exists()
    with pytest.raises(FormatError, match=r"weight_ih_l0: an os\.system, not tensors and plain data"):
        onegru.load_layers(write_checkpoint(tmp_path / "x.pt", {"weight_ih_l0": system}))
    module = Call(Global("torch.nn.modules.rnn", "GRU"), ())
    with pytest.raises(
        FormatError,
        match=r"a torch\.nn\.modules\.rnn\.GRU, .*; must be a state dict: save model.state_dict\(\)",
    ):
        onegru.load_layers(write_checkpoint(tmp_path / "x.pt", module))


def deep(count: int) -> bytes:
    return b")" + b"\x85" * count


LOOP = b"}q\x00X\x01\x00\x00\x00ah\x00sX\x01\x00\x00\x00bh\x00s"

HOSTILE: dict[str, bytes] = {
    "an index of the memo": PROTO + b"}r\xff\xff\xff\x7f" + STOP,
    "bytes of 2^62": b"\x80\x04\x8e" + (1 << 62).to_bytes(8, "little") + STOP,
    "text of 2^31": PROTO + b"X\xff\xff\xff\x7f" + STOP,
    "a deep tuple as a key": PROTO + b"}" + deep(1_000_000) + b"Ns" + STOP,
    "deep mappings": PROTO + b"}X\x01\x00\x00\x00a" * 200_000 + b"N" + b"s" * 200_000 + STOP,
    "itself within itself": PROTO + LOOP + STOP,
    "no end": PROTO + b"}",
    "an empty stack": PROTO + STOP,
    "items of a number": PROTO + b"K\x01(K\x01K\x02u" + STOP,
    "no mark": PROTO + b"}u" + STOP,
    "a storage of nothing": PROTO + b")Q" + STOP,
    "instructions without end": PROTO + b"N0" * 7_000_000 + STOP,
    "an unknown instruction": PROTO + b"\xff" + STOP,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_pickles(tmp_path: Path, what: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("archive/data.pkl", HOSTILE[what])
    began = time.monotonic()
    with pytest.raises(FormatError, match=r"x\.pt: "):
        onegru.load_layers(tmp_path / "x.pt")
    assert time.monotonic() - began < 30


def test_more_numbers_than_the_file_has(tmp_path: Path) -> None:
    writer = Writer()
    one = writer.storage(np.zeros(1, np.float32))
    wide = writer.view(one, 0, (3 << 20, 1 << 20), (0, 0))
    path = writer.write(tmp_path / "x.pt", {"weight_ih_l0": wide, "weight_hh_l0": wide})
    with pytest.raises(FormatError, match="tensors exceed four times the file's"):
        onegru.load_layers(path)
    for offset, shape, steps in ((0, (2,), (1,)), (1, (1,), (1,)), (0, (1,), (-1,)), (0, (1 << 61,), (0,))):
        beyond = {"weight_ih_l0": writer.view(one, offset, shape, steps)}
        with pytest.raises(FormatError, match=r"weight_ih_l0: |exceed four times"):
            onegru.load_layers(writer.write(tmp_path / "x.pt", beyond))
    big = writer.storage(np.zeros(100_000, np.float32))
    views = {f"x{n}.weight_ih_l0": writer.view(big, 0, (100_000,), (1,)) for n in range(700)}
    with pytest.raises(FormatError, match="exceed four times"):
        onegru.load_layers(writer.write(tmp_path / "x.pt", views))


def test_more_letters_than_the_file_has(tmp_path: Path) -> None:
    """Long names around short ones, which would each be kept."""
    writer = Writer()
    one = Raw(writer.part(writer.tensor(np.zeros(1, np.float32))) + b"q\x01")
    many = {f"x{number}": Raw(b"h\x01") for number in range(5_000)}
    content = {"weight_ih_l0": one, "a" * 900: many}
    with pytest.raises(FormatError, match="names exceed four times the file's"):
        onegru.load_layers(writer.write(tmp_path / "x.pt", content))


def test_storages_that_are_not_as_said(tmp_path: Path) -> None:
    writer = Writer()
    content = {name: writer.tensor(array) for name, array in state().items()}
    key, data, count = writer.storages[0]
    for changed in (data[:-4], data + bytes(4), b""):
        writer.storages[0] = (key, changed, count)
        with pytest.raises(FormatError, match="a different size than the file states"):
            onegru.load_layers(writer.write(tmp_path / "x.pt", content))
        legacy = Writer(legacy=True, storages=writer.storages)
        with pytest.raises(FormatError, match=r"x\.pt: "):
            onegru.load_layers(legacy.write(tmp_path / "x.pt", content))
    with pytest.raises(FormatError, match="a LongStorage; must have a floating-point type"):
        onegru.load_layers(write_checkpoint(tmp_path / "x.pt", {"weight_ih_l0": np.zeros(3, np.int64)}))


@pytest.mark.parametrize("legacy", [False, True])
def test_truncated(tmp_path: Path, legacy: bool) -> None:
    path = write_checkpoint(tmp_path / "x.pt", state(), legacy=legacy)
    whole = path.read_bytes()
    for length in (0, 1, 8, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"x\.pt"):
            onegru.load_layers(path)


def test_a_directory_that_begins_before_the_file(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "x.pt", state())
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\5\6") + 16
    data[place : place + 4] = (int.from_bytes(data[place : place + 4], "little") + 10**6).to_bytes(
        4, "little"
    )
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"x\.pt: "):
        onegru.load_layers(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions(tmp_path: Path, method: int) -> None:
    """Broken data raise errors of their own kinds there."""
    source = write_checkpoint(tmp_path / "x.pt", state())
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(tmp_path / "y.pt", "w", method) as other:
        for name in archive.namelist():
            other.writestr(name, archive.read(name))
    data = (tmp_path / "y.pt").read_bytes()
    for place in (60, 90, len(data) // 2):
        (tmp_path / "y.pt").write_bytes(data[:place] + b"\xff" * 8 + data[place + 8 :])
        with pytest.raises(FormatError, match=r"y\.pt: "):
            onegru.load_layers(tmp_path / "y.pt")


def test_a_program_and_other_archives(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({}))
        archive.writestr("model/constants.pkl", pickle.dumps(()))
    with pytest.raises(FormatError, match="a TorchScript program"):
        onegru.load_layers(tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 28))
    assert (tmp_path / "x.pt").stat().st_size < 1 << 20
    with pytest.raises(FormatError, match=r"archive/data\.pkl is too large; must have at most \d+ bytes"):
        onegru.load_layers(tmp_path / "x.pt")


def test_a_zip_whose_directory_is_all_of_it(tmp_path: Path) -> None:
    entry = io.BytesIO()
    with zipfile.ZipFile(entry, "w") as archive:
        archive.writestr("a/data.pkl", b"N.")
    start = entry.getvalue().index(b"PK\1\2")
    one = entry.getvalue()[start : entry.getvalue().index(b"PK\5\6")]
    count = (34 << 20) // len(one)
    size = (count * len(one)).to_bytes(4, "little")
    end = b"PK\5\6" + bytes(4) + b"\xff\xff\xff\xff" + size + bytes(4) + bytes(2)
    (tmp_path / "x.pt").write_bytes(one * count + end)
    with pytest.raises(FormatError, match="the directory is too large"):
        onegru.load_layers(tmp_path / "x.pt")
