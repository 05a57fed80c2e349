"""onegru.js, made by `make test-web`: its bits, what it refuses, the example in Chromium's audio thread."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.dtypes import Array
from tests.support.comparison import assert_bits
from tests.support.layers import normal_gru
from tests.support.machine.browser import find_browser, opened
from tests.support.machine.repository import ROOT

WEB = ROOT / "build" / "web"
MODULE = WEB / "onegru.js"
pytestmark = pytest.mark.skipif(not MODULE.exists(), reason="onegru.js is not built")

#: Whether float32 has the bits of targets without FMA here.
WITHOUT_FMA = onegru.targets().chosen in ("sse4", "sse2", "scalar")


def node(tmp_path: Path, body: str, scalar: bool = False) -> Any:
    """What a program returns as JSON. It has `onegru` and `file(name)`."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("no Node")
    script = tmp_path / "script.mjs"
    without = "WebAssembly.validate = () => false;" if scalar else ""
    script.write_text(
        f"""
import fs from "node:fs";
import * as onegru from {json.dumps(MODULE.as_uri())};
{without}
const file = (name) => new Uint8Array(fs.readFileSync(name));
const numbers = (name) => new Float32Array(file(name).buffer);
const refused = (work) => {{
  try {{ work(); return "nothing"; }} catch (e) {{ return `${{e.name}}: ${{e.message}}`; }}
}};
const plain = (key, value) => value instanceof Float32Array ? [...value] : value;
console.log(JSON.stringify((() => {{ {body} }})(), plain));
""",
        encoding="utf-8",
    )
    done = subprocess.run([program, script], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def draw(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def compare(found: object, want: Array, exact: bool) -> None:
    array = np.array(found, np.float32).reshape(want.shape)
    if exact:
        assert_bits(array, want)
    else:
        assert np.abs(array - want).max() < 2e-6


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("storage", ["float32", "int8", "int8_g32"])
@pytest.mark.parametrize(("direction", "attention"), [("forward", "dien"), ("bidirectional", None)])
def test_layers_of_files(
    tmp_path: Path, storage: str, direction: Any, attention: str | None, scalar: bool
) -> None:
    layer = normal_gru(13, 37, direction=direction, attention=attention, linear_before_reset=True, clip=2.5)
    if storage != "float32":
        layer = layer.with_storage(storage)
    onegru.save_layers(layer, tmp_path / "layer.safetensors")
    D = layer.spec.num_directions
    X, h, a = draw(5, 3, 13), draw(D, 3, 37), None if attention is None else np.abs(draw(5, 3))
    for name, array in (("X", X), ("h", h), ("a", np.zeros(0) if a is None else a)):
        array.astype(np.float32).tofile(tmp_path / name)
    given = "null" if a is None else 'numbers("a")'
    found = node(
        tmp_path,
        f"""
        const layer = onegru.readLayer(file("layer.safetensors"));
        return layer.run(numbers("X"), {{ T: 5, B: 3, initial_h: numbers("h"), attention: {given},
                                          sequence_lens: Int32Array.of(5, 0, 3) }});
        """,
        scalar,
    )
    Y, Y_h = layer(X, h, sequence_lens=[5, 0, 3], attention=a)
    compare(found["Y"], Y, WITHOUT_FMA or storage != "float32")
    compare(found["Y_h"], Y_h, WITHOUT_FMA or storage != "float32")


def test_layers_of_weights_and_streams(tmp_path: Path) -> None:
    layer = normal_gru(4, 6, activations=["HardSigmoid", "Elu"], activation_alpha=[0.3, 0.5])
    for name in "WRB":
        getattr(layer.weights, name).tofile(tmp_path / name)
    X = draw(6, 2, 4)
    X.tofile(tmp_path / "X")
    found = node(
        tmp_path,
        """
        const activations = [{ name: "HardSigmoid", alpha: 0.3 }, { name: "Elu", alpha: 0.5 }];
        const spec = { input_size: 4, hidden_size: 6, activations };
        const layer = onegru.createLayer(spec, { W: numbers("W"), R: numbers("R"), B: numbers("B") });
        const stream = layer.stream(2), X = numbers("X"), Y = [];
        for (let t = 0; t < 6; ++t) {
          if (t === 3) layer.stream(50000);  // its memory moves
          Y.push([...stream.step(X.subarray(8 * t, 8 * t + 8))]);
        }
        const state = stream.state;
        stream.reset(0);
        const half = stream.state;
        stream.state = state;
        return { Y: Y.flat(), state, half, again: stream.state, spec: layer.spec };
        """,
    )
    Y = layer(X)[0][:, 0]
    compare(found["Y"], Y, WITHOUT_FMA)
    compare(found["state"], Y[-1], WITHOUT_FMA)
    compare(found["half"], np.concatenate([np.zeros((1, 6), np.float32), Y[-1, 1:]]), WITHOUT_FMA)
    assert found["again"] == found["state"] and found["spec"]["hidden_size"] == 6


#: What is refused, in JavaScript, and words of the message.
REFUSED = {
    "onegru.readLayer(bytes.subarray(0, 100))": "truncated",
    "onegru.readLayer(bytes, 1)": "index: 1; the file has 1",
    'onegru.readLayer("name")': "file: must be a Uint8Array",
    'onegru.readLayer(bytes, 0, { weight_storage: "int4" })': "weight_storage: int4",
    'make({ weight_storage: "bfloat16", activation_bits: 16 })': "weight_storage: bfloat16; must be float32",
    'make({ direction: "up" })': "direction: up",
    "make({ hidden_size: 0 })": "hidden_size: 0",
    "make({ hidden_size: 5 })": "W: 36 numbers; must be 45",
    "make({ clip: -1 })": "clip: -1",
    'make({ activations: ["Tanh"] })': "activations: 1 functions; must be 2",
    'make({ activations: ["ScaledTanh", "Tanh"] })': "alpha: NaN; must be given",
    'make({ weight_storage: "int8", group: 3 })': "group: 3",
    "layer.run(x, { T: 2 })": "X: 3 numbers; must be 6",
    "layer.run([1, 2, 3], { T: 1 })": "X: must be a Float32Array",
    "layer.run(x, {})": "T: undefined",
    "layer.run(x, { T: 1, attention: x })": "attention: the layer has none",
    "layer.run(x, { T: 1, layout: 2 })": "layout: 2",
    "layer.run(x, { T: 1, sequence_lens: Int32Array.of(2) })": "sequence_lens: 2; must be in 0…T = 0…1",
    "stream.step(new Float32Array(4))": "X: 4 numbers; must be 3",
    "stream.step(x, x)": "attention: the layer has none",
    "stream.reset(1)": "row: 1",
    "stream.state = x": "h: 3 numbers; must be 4",
    "layer.stream(0)": "rows: 0",
    "layer.stream(2 ** 31 - 1)": "out of memory",
    "new onegru.Layer()": "Layer: cannot be constructed",
    "onegru.createLayer()": "input_size: undefined",
    'make({ activations: [{ name: "Elu", alpha: "x" }, "Tanh"] })': "alpha: x; must be a number",
    "onegru.readLayer(bytes, 0, { activation_bits: 8 })": "activation_bits: 8; must be 0",
    "make({ group: 32 })": "group: 32; must be 0",
    "layer.run(x, { T: 2 ** 30 })": "must be below 2^29",
    "const gone = make({}); gone.destroy(); gone.destroy(); gone.run(x, { T: 1 })": "layer: was destroyed",
    "const other = onegru.readLayer(bytes); other.destroy(); other.stream()": "layer: was destroyed",
    "make({ flush_subnormals: 2 })": "flush_subnormals: 2",
    "const gone = layer.stream(); gone.destroy(); gone.destroy(); gone.step(x)": "stream: was destroyed",
}


def test_what_is_refused(tmp_path: Path) -> None:
    onegru.save_layers(normal_gru(3, 4), tmp_path / "layer.safetensors")
    attempts = ",".join(f"refused(() => {{ {line}; }})" for line in REFUSED)
    found = node(
        tmp_path,
        f"""
        const bytes = file("layer.safetensors"), layer = onegru.readLayer(bytes), stream = layer.stream();
        const weights = {{ W: new Float32Array(36), R: new Float32Array(48) }}, x = new Float32Array(3);
        const make = (spec) => onegru.createLayer({{ input_size: 3, hidden_size: 4, ...spec }}, weights);
        const texts = [{attempts}];
        return {{ texts, length: onegru.readLayers(bytes).length, after: stream.step(x) }};
        """,
    )
    for (line, words), text in zip(REFUSED.items(), found["texts"], strict=True):
        assert text.startswith("OnegruError: ") and words in text, line
    assert found["length"] == 1 and len(found["after"]) == 4


def test_memory_is_given_back(tmp_path: Path) -> None:
    """What is refused, and streams that are destroyed, leave nothing."""
    onegru.save_layers(normal_gru(1, 1), tmp_path / "small.safetensors")
    onegru.save_layers(normal_gru(4, 128), tmp_path / "layer.safetensors")
    found = node(
        tmp_path,
        """
        const small = onegru.readLayer(file("small.safetensors"));
        const layer = onegru.readLayer(file("layer.safetensors"));
        const X = new Float32Array(60000), sequence_lens = new Int32Array(60000).fill(2), texts = new Set();
        const run = () => small.run(X, { T: 1, B: 60000, sequence_lens });
        for (let i = 0; i < 9000; ++i) texts.add(refused(run));
        for (let i = 0; i < 10000; ++i) layer.stream(64).destroy();
        texts.add(refused(() => layer.stream(3e6)));
        const large = layer.stream(1e6);
        return [...texts];
        """,
    )
    assert found == [
        "OnegruError: sequence_lens: 2; must be in 0…T = 0…1",
        "OnegruError: out of memory",
    ]


def test_memory_is_used_again_after_a_burst(tmp_path: Path) -> None:
    found = node(
        tmp_path,
        """
        const numbers = (count) => Float32Array.from({ length: count }, (_, i) => Math.sin(i) / 10);
        const spec = { input_size: 4, hidden_size: 16 };
        const layer = onegru.createLayer(spec, { W: numbers(192), R: numbers(768) });
        const streams = [];
        for (let rows = 4e6; rows >= 1;) {
          try { streams.push(layer.stream(Math.trunc(rows))); } catch { rows /= 2; }
        }
        for (const stream of streams) stream.destroy();
        for (const T of [2, 100, 20000]) layer.run(new Float32Array(4 * T), { T });
        layer.stream(1).destroy();
        layer.stream(1e6).destroy();
        return streams.length;
        """,
    )
    assert found > 10


def test_layers_share_an_instance(tmp_path: Path) -> None:
    """A page has room for some 120."""
    onegru.save_layers(onegru.Stack([normal_gru(3, 4), normal_gru(4, 2)]), tmp_path / "stack.safetensors")
    found = node(
        tmp_path,
        """
        const Own = WebAssembly.Instance;
        let made = 0;
        WebAssembly.Instance = class extends Own { constructor(...given) { super(...given); ++made; } };
        const bytes = file("stack.safetensors"), layers = [];
        for (let i = 0; i < 200; ++i) layers.push(...onegru.readLayers(bytes));
        const X = new Float32Array(15).fill(0.5);
        const Y = layers.slice(-2).reduce((x, layer) => layer.run(x, { T: 5 }).Y, X);
        const stream = layers[0].stream();
        for (const layer of layers) layer.destroy();
        return { made, Y, y: stream.step(new Float32Array(3).fill(0.5)) };
        """,
    )
    X = np.full((5, 1, 3), 0.5, np.float32)
    first, second = normal_gru(3, 4), normal_gru(4, 2)
    Y = first(X)[0][:, 0]
    assert found["made"] == 1
    compare(found["y"], Y[0], WITHOUT_FMA)
    compare(found["Y"], second(Y)[0], WITHOUT_FMA)


def test_missing_memory_is_an_error_of_ours(tmp_path: Path) -> None:
    found = node(
        tmp_path,
        """
        const spec = { input_size: 1, hidden_size: 1 };
        const weights = { W: new Float32Array(3), R: new Float32Array(3) };
        WebAssembly.Instance = class {
          constructor() { throw new RangeError("Cannot allocate Wasm memory"); }
        };
        return refused(() => onegru.createLayer(spec, weights));
        """,
    )
    assert found == "OnegruError: out of memory: Cannot allocate Wasm memory"


def test_the_module_has_no_nul() -> None:
    """Tools that pass text on as C strings end it there."""
    assert b"\0" not in MODULE.read_bytes()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=os.fspath(WEB))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_the_page_in_chromium(address: str) -> None:
    find_browser()
    rng = np.random.default_rng(3)
    noisy = (0.5 * np.sin(0.05 * np.arange(3200)) + 0.2 * rng.standard_normal(3200)).astype(np.float32)
    with opened(address) as page:
        page.evaluate("(async () => { while (!window.ready) await new Promise(requestAnimationFrame); })()")
        found = page.evaluate(f"denoise(Float32Array.from({noisy.tolist()})).then(heard => [...heard])")
        facts = page.evaluate("document.getElementById('facts').textContent")
        assert page.console == []
    (stack,) = onegru.load_layers(WEB / "denoiser.safetensors").values()
    assert isinstance(stack, onegru.Stack)
    heard: Array = noisy.reshape(-1, 1, 16)
    for layer in stack.layers:
        heard = layer.with_storage("int8").stream().run(heard)
    assert_bits(np.array(found, np.float32), heard.ravel())
    assert "µs" in facts
    print(facts)
