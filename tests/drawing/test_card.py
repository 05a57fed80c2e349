"""Cards for notebooks: what they say, and that no name becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.compare import Comparison
from onegru.drawing.card import card
from onegru.verification.results import Fault, RuntimeResult, Verification
from tests.support.files.onnx_models import WEIGHTS, graph, gru, model, save, value
from tests.support.layers import make_gru, make_stack
from tests.support.machine.processes import run_python_without
from tests.support.machine.repository import DIGITS

HOSTILE = "</td><script>alert(1)</script><img src=x onerror='alert(1)'>\" onload=\"x\u202e\x00"


class Reader(HTMLParser):
    """The elements of a text, its attributes and what it says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def harmless(text: str) -> Reader:
    found = Reader(text)
    assert set(found.tags) <= {"div", "table", "tr", "td", "th", "img"}
    assert found.attributes <= {"style", "alt", "src"}
    assert all(word.isprintable() for word in found.words)
    return found


def test_a_layer() -> None:
    layer = make_gru(direction="bidirectional", clip=0.5, weight_storage="bfloat16", layout=1)
    words = harmless(layer._repr_html_()).words
    facts = dict(zip(words[1::2], words[2::2], strict=True))
    assert words[0] == "GRU 5 → 4"
    assert facts["input → hidden"] == "5 → 4, float32"
    assert facts["direction"] == "bidirectional" and facts["clip"] == "0.5"
    assert facts["reset gate"] == "before the recurrent product"
    assert facts["activations"] == "Sigmoid, Tanh | Sigmoid, Tanh"
    assert facts["parameters"] == "264"  # 2·(12·5 + 12·4 + 24)
    assert facts["memory"] == "624 bytes, W and R in bfloat16"  # 216 of two bytes, 48 of four
    assert facts["layout"] == "1, batch first"
    words = harmless(make_gru(weight_storage="int8", activation_storage="int8")._repr_html_()).words
    facts = dict(zip(words[1::2], words[2::2], strict=True))
    assert facts["memory"] == "204 bytes, W and R in int8"
    assert "GRU with attention" in make_gru(attention=True)._repr_html_()


def test_a_stack() -> None:
    words = harmless(make_stack(2, ("bidirectional", "forward"))._repr_html_()).words
    assert words[0] == "Stack of 2 layers"
    assert words[-6:] == ["1", "8 → 3", "forward", "before", "Sigmoid, Tanh", "117"]


def test_a_model() -> None:
    words = harmless(onegru.load(DIGITS)._repr_html_()).words
    assert words[0] == "Model digits.onnx" and "rows float32 [batch, 8, 8]" in words
    assert "node_GRU_82" in words and "8,064 (32,256 bytes)" in words and "none known" in words


def test_an_inspection_and_a_node() -> None:
    found = onegru.inspect(DIGITS)
    assert (
        repr(found).startswith("Inspection(")
        and repr(found).endswith("an ONNX model, 2 GRUs)")
        and len(repr(found)) < 200
    )
    words = harmless(found._repr_html_()).words
    assert words[0].startswith("Inspection · ") and "node_GRU_82" in words and "8 → 32" in words
    assert [line for line in str(found).splitlines() if line.startswith("node_GRU_82   GRU-14    8 → 32 ")]
    words = harmless(onegru.load(DIGITS).gru_nodes[0]._repr_html_()).words
    assert words[0] == "GRU node · node_GRU_82" and "GRU 8 → 32" in words


def test_a_verification() -> None:
    fault = Fault(HOSTILE, "GRU-14", "Y")
    runtimes = (
        RuntimeResult("onegru", "0.1", "agrees", outputs=(Comparison("Y", max_abs=2.5e-7, compared=8),)),
        RuntimeResult("other", "2", "differs", HOSTILE, fault=fault),
    )
    found = Verification("gru.onnx", runtimes, absent=("third",))
    assert repr(found) == "Verification('gru.onnx', onegru agrees, other differs)"
    words = harmless(found._repr_html_()).words
    assert words[0] == "Verification · gru.onnx" and {"no", "third", "differs", "2.5e-07"} <= set(words)
    assert "\nonegru   0.1      agrees   2.5e-07" in str(found) and "\x00" not in str(found)


def test_an_inspection_of_a_decomposed_gru(tmp_path: Path) -> None:
    file = tmp_path / "decomposed.onnx"
    onegru.rewrite(DIGITS, file, decompose=True, check=False)
    found = onegru.inspect(file)
    words = harmless(found._repr_html_()).words
    assert "GRU, decomposed" in words and f"onegru fuse {file} TARGET" in words
    assert str(found).count("GRU, decomposed  8 → 32") == 2


def test_printed_changes_have_their_outputs() -> None:
    changed = onegru.rewrite(DIGITS, layout=1)
    assert "logits by onegru" in str(changed) and "layout 0 became 1" in str(changed)
    assert repr(changed).startswith("Rewriting(")


@pytest.mark.parametrize("clip", [None, 0.25])
def test_hostile_names(clip: float | None, tmp_path: Path) -> None:
    options: dict[str, Any] = {} if clip is None else {"clip": clip}
    node = gru(HOSTILE.replace("\x00", ""), ["Y"], bias="B", name=HOSTILE.replace("\x00", ""), **options)
    proto = graph([node], [value(node.input[0], shape=["<b>T", 2, 5])], ["Y"], WEIGHTS)
    path = save(tmp_path, model(proto), "<img src=x>&.onnx")
    loaded = onegru.load(path)
    words = harmless(loaded._repr_html_()).words
    assert words[0] == "Model <img src=x>&.onnx"
    assert any(word.startswith("</td><script>alert(1)</script>") for word in words)
    assert any("ignores clip" in word for word in words) == (clip is not None)
    trace = loaded.trace({node.input[0]: np.ones((3, 2, 5), np.float32)}, 0)
    assert harmless(trace._repr_html_()).words[0].startswith("Gates · <img src=x>&.onnx · </td><script>")


def test_long_texts_and_tables_are_cut() -> None:
    found = harmless(card("x" * 10_000, [("a", ""), ("b", "c")], ["n"], [[str(n)] for n in range(1000)]))
    assert found.words[0] == "x" * 200 + "…"
    assert found.words[1:3] == ["b", "c"] and found.words[-1] == "… and 950 more"


def test_cards_need_only_numpy() -> None:
    code = """
        import numpy as np
        import onegru
        layer = onegru.GRU(np.ones((1, 6, 3)), np.ones((1, 6, 2)))
        print(len(layer._repr_html_()) > 500, "matplotlib" in sys.modules)
    """
    blocked = "name not in sys.stdlib_module_names | {'numpy', 'onegru'}"
    assert run_python_without(blocked, code).stdout == "True False\n"
