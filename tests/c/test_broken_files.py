"""Broken .safetensors files: libonegru refuses what Python refuses, and reads the rest with its bits."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from tests.c import library
from tests.c.library import Layer, StatusError, needs_library
from tests.c.test_install import build_folder, run
from tests.support.comparison import assert_bits
from tests.support.layers import normal_gru
from tests.support.machine.repository import ROOT

pytestmark = needs_library

Header = dict[str, Any]


def parts(content: bytes) -> tuple[Header, bytes]:
    """The header of a file, and the bytes of its tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def joined(header: Header | str, data: bytes) -> bytes:
    """A file of such parts."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + data


def files(folder: Path) -> list[bytes]:
    """Files of every kind: a layer, a stack, integers with scales of rows and of groups."""
    odd: dict[str, Any] = {
        "activations": ["HardSigmoid", "Elu"],
        "activation_alpha": [0.3, 0.9],
        "activation_beta": [0.4],
    }
    layers: list[onegru.GRU | onegru.Stack] = [
        normal_gru(3, 4, **odd),
        onegru.Stack([normal_gru(3, 4, direction="bidirectional"), normal_gru(8, 3)]),
        normal_gru(5, 6, weight_storage="int8"),
        normal_gru(70, 33, weight_storage="int8_g32", attention=True),
        normal_gru(3, 4, np.float16, clip=2.5),
    ]
    contents = []
    for layer in layers:
        onegru.save_layers(layer, folder / "layer.safetensors")
        contents.append((folder / "layer.safetensors").read_bytes())
    return contents


def tensor_of(rng: random.Random, header: Header) -> Header:
    found: Header = header[rng.choice([name for name in header if name != "__metadata__"])]
    return found


def move_a_tensor(rng: random.Random, header: Header, data: bytes) -> bytes:
    places = tensor_of(rng, header)["data_offsets"]
    step = rng.choice([-8, -4, -1, 1, 4, 8])
    for index in rng.choice([(0,), (1,), (0, 1)]):
        places[index] += step
    return joined(header, data)


def resize_the_data(rng: random.Random, header: Header, data: bytes) -> bytes:
    return joined(
        header, data[: -rng.randint(1, 9)] if rng.random() < 0.5 else data + bytes(rng.randint(1, 9))
    )


def name_a_tensor_again(rng: random.Random, header: Header, data: bytes) -> bytes:
    header[rng.choice(["layers.0.X", "layers.9.W", "é", "layers.0.B_scale"])] = tensor_of(rng, header)
    return joined(header, data)


def add_a_tensor(rng: random.Random, header: Header, data: bytes) -> bytes:
    size = rng.choice([0, 4])
    header["more"] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [len(data), len(data) + size]}
    return joined(header, data + bytes(size))


def leave_a_hole(rng: random.Random, header: Header, data: bytes) -> bytes:
    at = tensor_of(rng, header)["data_offsets"][0]
    for name in header.keys() - {"__metadata__"}:
        if header[name]["data_offsets"][0] >= at:
            header[name]["data_offsets"] = [place + 4 for place in header[name]["data_offsets"]]
    return joined(header, data[:at] + bytes(4) + data[at:])


def change_the_length(rng: random.Random, header: Header, data: bytes) -> bytes:
    content = joined(header, data)
    size = int.from_bytes(content[:8], "little") + rng.choice([-8, -2, -1, 1, 2, 8])
    return size.to_bytes(8, "little") + content[8:]


def change_the_layers(rng: random.Random, header: Header, data: bytes) -> bytes:
    document = json.loads(header["__metadata__"]["onegru"])
    layer = rng.choice(document["layers"])
    function = rng.choice(rng.choice(layer["activations"]))
    change = rng.randrange(7)
    if change == 0:
        function[rng.randint(1, 2)] = rng.choice([None, 0.5, 1, True, "1", 1e300])
    elif change == 1:
        function[0] = rng.choice(["tanh", "Tanh", "Elu", "Affine", "Softplus", 3, "Sigmoid\n"])
    elif change == 2:
        name = rng.choice(list(layer))
        layer[name] = rng.choice([0, 1, -1, 3.0, True, None, "x", 2**31 + 1, [], "bidirectional", "float64"])
    elif change == 3:
        del layer[rng.choice(list(layer))]
    elif change == 4:
        document[rng.choice(["format", "stack", "more"])] = rng.choice([1, 2, 3, 1.0, True, False, None])
    elif change == 5:
        document["layers"] = document["layers"] * rng.choice([0, 2])
    else:
        layer["attention"] = rng.choice([True, False, "dien"])
    header["__metadata__"]["onegru"] = json.dumps(document)
    return joined(header, data)


def change_the_text(rng: random.Random, header: Header, data: bytes) -> bytes:
    """Forms that JSON does not have, and others that it has."""
    text = json.dumps(header)
    old, new = rng.choice(
        [
            ("layers.0.W", "layers.0\\u002eW"),
            ("layers.0.W", "layers.0\\u+02eW"),
            ("layers.0.W", "layers.0\\u 2eW"),
            ("layers.0.W", "layers.0\\u-02eW"),
            ("layers.0.W", "layers.0.W\x01"),
            ("onegru", "\\u006fnegru"),
            ('"__metadata__": {', '"__metadata__": {"x": "\n", '),
            ('"__metadata__": {', '"__metadata__": {"x": "\\n", '),
            ('"__metadata__": {', '"__metadata__": {"x": 3, '),
            ('"__metadata__": {', '"__metadata__": {"\\ud800": "", '),
            ('"__metadata__": {', '"__metadata__": {"\\ud83d\\ude00": "", "\\ud83d\\ude01": "", '),
            ('"__metadata__": {', '"__metadata__": {"é": "", "è": "", '),
            ('"__metadata__": {', '"__metadata__": {"x": "", "x": "", '),
            ('"shape": [1', '"shape": [01'),
            ('"shape": [1', '"shape": [1.0'),
            ('"data_offsets": [0', '"data_offsets": [-0'),
            ("{", " {"),
            ("{", "{ \t\r\n"),
            ("{", "{\v"),
        ]
    )
    return joined(text.replace(old, new, 1), data)


def change_bytes(rng: random.Random, header: Header, data: bytes) -> bytes:
    content = bytearray(joined(header, data))
    for _ in range(rng.randint(1, 3)):
        content[rng.randrange(len(content) - len(data))] = rng.randrange(256)
    return bytes(content)


CHANGES: list[Callable[[random.Random, Header, bytes], bytes]] = [
    move_a_tensor,
    resize_the_data,
    name_a_tensor_again,
    add_a_tensor,
    leave_a_hole,
    change_the_length,
    change_the_layers,
    change_the_text,
    change_bytes,
]


def python_layers(path: Path) -> list[onegru.GRU] | None:
    """The layers that Python reads, or None."""
    try:
        layers = onegru.load_layers(path)
    except (onegru.FormatError, onegru.SpecError):
        return None
    (found,) = layers.values()
    return list(found.layers) if isinstance(found, onegru.Stack) else [found]


def c_layers(content: bytes) -> list[Layer] | None:
    """The layers that libonegru reads, or None; each one refuses or reads the whole file."""
    try:
        layers = Layer.read_all(content)
    except StatusError as error:
        assert error.status == library.BAD_FILE and "\n" not in str(error)
        with pytest.raises(StatusError):
            Layer.read(content)
        return None
    return layers


@pytest.mark.parametrize("seed", range(60))
def test_broken_files_are_read_or_refused_as_in_python(tmp_path: Path, seed: int) -> None:
    rng, path, read = random.Random(seed), tmp_path / "changed.safetensors", 0
    whole = files(tmp_path)
    for index in range(90):
        content = CHANGES[index % len(CHANGES)](rng, *parts(rng.choice(whole)))
        path.write_bytes(content)
        python, mine = python_layers(path), c_layers(content)
        assert (python is None) == (mine is None), (CHANGES[index % len(CHANGES)].__name__, content[:2000])
        if python is None or mine is None:
            continue
        read += 1
        assert len(python) == len(mine)
        for layer, same in zip(python, mine, strict=True):
            if same.spec.storage.weight_storage == 4:
                group = same.spec.storage.group
                layer = layer.with_storage(f"int8_g{group}" if group else "int8")
            X = np.random.default_rng(1).standard_normal((3, 2, layer.spec.input_size))
            X = X.astype(layer.weights.W.dtype)
            scores = None if layer.spec.attention is None else X[..., 0] * 0 + X.dtype.type(0.25)
            assert_bits(same.run(X, attention=scores)[0], layer(X, attention=scores)[0])
    assert read > 0


def test_parts_of_a_file_are_no_file(tmp_path: Path) -> None:
    whole = files(tmp_path)[0]
    cut = [whole[:size] for size in (*range(60), *range(60, len(whole), 37), len(whole) - 1)]
    others = [joined(text, b"1234") for text in ("[0]", '[{"dtype": "F32"}]', "[]", "0", "null", '"x"')]
    for content in (*cut, *others, b"{}" * 20, b"\xff" * 8, whole[8:]):
        assert c_layers(content) is None


REPLACED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include "onegru.h"

static const char* g_other;

/* libonegru's fopen: another file gets the name as soon as the first one is open. */
FILE* fopen(const char* path, const char* mode) {
  FILE* (*next)(const char*, const char*);
  FILE* file;
  *(void**)&next = dlsym(RTLD_NEXT, "fopen");
  file = next(path, mode);
  rename(g_other, path);
  return file;
}

int main(int count_of_words, char** words) {
  onegru_layer* layers[ONEGRU_MAX_LAYERS];
  size_t count = 0;
  onegru_status status;
  if (count_of_words != 3) return 1;
  g_other = words[2];
  status = onegru_layers_open(words[1], NULL, ONEGRU_MAX_LAYERS, layers, &count);
  printf("%s%d", status == ONEGRU_OK ? "" : onegru_error_message(), (int)count);
  return 0;
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux")
def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    path, other = tmp_path / "layers.safetensors", tmp_path / "other.safetensors"
    onegru.save_layers(onegru.Stack([normal_gru(3, 4), normal_gru(4, 5)]), path)
    onegru.save_layers(normal_gru(3, 7), other)
    (tmp_path / "program.c").write_text(REPLACED, encoding="utf-8")
    shared = build_folder() / "libonegru.so"
    flags = ["-std=c99", f"-I{ROOT / 'native' / 'c'}", f"-Wl,-rpath,{shared.parent}", "-rdynamic"]
    run(["cc", *flags, tmp_path / "program.c", shared, "-ldl", "-o", tmp_path / "program"])
    assert run([tmp_path / "program", path, other]) == "2"
    assert not other.exists()
