"""The page in a browser: it filters, opens, shows what differs, and asks for nothing from outside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onegru.conformance.case import Case
from onegru.conformance.report import data, page_of, write_report
from onegru.conformance.report.data import command, page_data
from onegru.conformance.results import Outcome, RuntimeResults
from onegru.operators.onnx import GRU_VERSIONS
from onegru.operators.openvino import OPERATORS
from tests.support.machine.browser import dump_dom

GRU = GRU_VERSIONS[14]
USUAL, CLIP = Case(GRU, {}), Case(GRU, {"clip": "reached"})
BOTH = Case(GRU, {"clip": "reached", "layout": "1"})
OLD, OLD_CLIP = Case(GRU_VERSIONS[1], {}), Case(GRU_VERSIONS[1], {"clip": "reached"})
LONG = Case(GRU, {"seq_length": "1000"})
BACKWARD = Case(GRU, {"direction": "bidirectional", "g backward": "Relu"})
CELL = Case(OPERATORS["GRUCell"], {})
CASES = [USUAL, CLIP, BOTH, OLD, OLD_CLIP, LONG, BACKWARD, CELL]

HOSTILE = "</script><script>document.title = 'broken'</script><!-- <img src=https://example.com/x>"
PASSES = Outcome("passes")


def differs(case: Case, output: str, where: tuple[int, ...], got: float) -> tuple[Outcome, dict[str, Any]]:
    """A result with one number that is wrong."""
    outputs = {name: array.astype(case.output_dtype()) for name, array in case.expected.items()}
    outputs[output][where] = got
    should, allowed = (float(item[output][where]) for item in (case.expected, case.tolerance))
    return Outcome("differs", f"{output} is off", output, where, should, got, allowed), outputs


def results() -> list[RuntimeResults]:
    clip, clip_outputs = differs(CLIP, "Y", (2, 0, 1, 3), 7.5)
    long, long_outputs = differs(LONG, "Y", (600, 0, 1, 0), float("nan"))
    other_shape = {name: array.swapaxes(0, 1) for name, array in BOTH.expected.items()}
    good = {case.name: PASSES for case in CASES}
    return [
        RuntimeResults("good", "1.0", {}, good),
        RuntimeResults(
            "bad",
            "2.0",
            {"precision": "f16"},
            {
                **{case.name: PASSES for case in (USUAL, BACKWARD)},
                CLIP.name: clip,
                BOTH.name: Outcome("differs", "Y: shape [3, 5, 1, 5]; must be [5, 3, 1, 5]", "Y"),
                OLD.name: Outcome("refuses", "knows no version 1"),
                OLD_CLIP.name: Outcome("refuses", HOSTILE),
                LONG.name: long,
            },
            {CLIP.name: clip_outputs, LONG.name: long_outputs, BOTH.name: other_shape},
        ),
        RuntimeResults("worse", "3.0", {}, {USUAL.name: PASSES, CLIP.name: Outcome("crashes", "signal 6")}),
    ]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    write_report(path, results(), CASES)
    return path


# What the tests read off the page.
READ = """
const words = cell => cell.innerText.split(/\\s+/).join(" ");
const lines = () => [...document.querySelectorAll("#matrix tbody tr:not(.group)")];
const rows = () => Object.fromEntries(lines().map(row =>
  [row.cells[0].firstChild.textContent, [...row.cells].slice(1).map(words)]));
const set = (id, value) => {
  const item = document.getElementById(id);
  item[item.type === "checkbox" ? "checked" : "value"] = value;
  item.dispatchEvent(new Event("input"));
};
const panel = document.getElementById("panel");
const cell = (row, runtime) => [...document.querySelectorAll(".cell")].find(item =>
  item.dataset.row === row && item.dataset.runtime.startsWith(runtime));
const until = async done => {
  while (!done()) await new Promise(go => setTimeout(go, 20));
};
const count = what => panel.querySelectorAll(what).length;
const opened = () => count(".case[open] .body") === count(".case");
"""


def test_the_matrix_and_its_filters(page: Path) -> None:
    script = """
    const found = { all: rows() };
    set("operator", "GRU-1"); found.operator = rows(); set("operator", "");
    set("status", "crashes"); found.status = rows(); set("status", "");
    set("text", "SHAPE ["); found.reason = rows();
    set("text", "relu"); found.feature = rows(); set("text", "");
    set("disagree", true); found.disagree = rows(); found.address = location.hash;
    found.shown = document.getElementById("shown").value;
    set("text", "no such thing"); found.nothing = !document.getElementById("nothing").hidden;
    document.getElementById("clear").click(); found.cleared = rows();
    const labels = [...document.querySelectorAll(".cell .verdict.passes")];
    found.green = labels.map(label => label.parentElement.querySelector(".passing").textContent);
    return found;
    """
    dom = dump_dom(page, script=READ + script)
    found = dom.value
    everything = found["all"]
    assert everything["reached"] == ["✓passes 3/3", "≠differs 0/3", "✗crashes 0/1"]
    assert everything["all cases"] == ["8", "2 3d 2r", "1 1c"]
    assert everything["GRU-1"] == ["✓passes 2/2", "⊘refuses 0/2", "–"]
    assert everything["GRU-14"][1] == "◐passes on its own 2/5"  # the plain node; not shown as a pass
    assert everything["GRUCell-3"] == ["✓passes 1/1", "–", "–"]
    assert everything["1000"][:2] == ["✓passes 1/1", "≠differs 0/1"]
    assert everything["Relu"] == ["✓passes 1/1", "✓passes 1/1", "–"]  # a second direction is no unusual thing
    assert everything["bidirectional"] == ["1", "1", "–"]
    assert found["operator"] == {
        "all cases": ["2", "2r", "–"],
        "GRU-1": ["✓passes 2/2", "⊘refuses 0/2", "–"],
        "reached": ["✓passes 1/1", "⊘refuses 0/1", "–"],
    }
    assert set(found["status"]) == {"all cases", "GRU-14", "reached"}
    assert set(found["reason"]) == {"all cases", "GRU-14", "reached", "1"}
    assert set(found["feature"]) == {"all cases", "GRU-14", "Relu", "bidirectional"}
    assert found["disagree"]["all cases"] == ["5", "3d 2r", "1c"]
    assert found["address"] == "#disagree=1"
    assert found["shown"] == "5 of 8 cases"
    assert found["nothing"]
    assert found["cleared"] == everything
    shares = [share.split("/") for share in found["green"]]
    assert shares and all(passing == of for passing, of in shares)  # green only where every case passes
    assert dom.console == []


@pytest.mark.long
def test_a_narrow_page_has_every_outcome(page: Path) -> None:
    script = """
    const found = { rows: rows(), wide: document.documentElement.scrollWidth > innerWidth };
    const parts = [...cell("all", "bad").querySelectorAll(".counts span")];
    found.colours = new Set(parts.map(item => getComputedStyle(item).color)).size;
    return found;
    """
    found = dump_dom(page, 420, script=READ + script).value
    assert found["rows"]["all cases"] == ["8", "2 3d 2r", "1 1c"] and found["colours"] == 3
    assert found["rows"]["reached"] == ["✓passes 3", "≠differs 2d 1r", "✗crashes 1c"]
    assert not found["wide"]


def test_one_case_of_one_operator_without_its_plain_node(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, [RuntimeResults("one", "1", {}, {BOTH.name: Outcome("crashes", "signal 6")})], [BOTH])
    script = """return { rows: rows(), about: document.getElementById("about").innerText,
                         shown: document.getElementById("shown").value };"""
    found = dump_dom(path, script=READ + script).value
    assert found["about"].startswith("1 runtime on 1 case of 1 operator. ") and found["shown"] == "1 case"
    assert set(map(tuple, found["rows"].values())) == {("1c",)}


def test_a_cell_opens_its_failing_cases(page: Path) -> None:
    script = """
    cell("clip:reached", "bad").click(); await until(() => location.hash.includes("case="));
    const found = { open: panel.open, hash: location.hash };
    found.cases = [...panel.querySelectorAll(".case code")].map(item => item.textContent);
    for (const item of panel.querySelectorAll(".case")) item.open = true;
    await until(opened);
    found.bodies = [...panel.querySelectorAll(".case")].map(item => item.innerText);
    found.off = [...panel.querySelectorAll(".off.worst")].map(item => item.innerText);
    found.inputs = [...panel.querySelectorAll(".case")][0].querySelector(".inputs").textContent;
    found.scripts = document.scripts.length;
    found.title = document.title;
    panel.close();
    await until(() => document.activeElement === cell("clip:reached", "bad"));
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true }));
    found.moved = document.activeElement.dataset.runtime;
    found.after = location.hash;
    return found;
    """
    dom = dump_dom(page, script=READ + script)
    found = dom.value
    assert found["open"] and found["hash"].startswith("#row=clip%3Areached&runtime=bad+2.0+f16")
    assert found["cases"] == [
        CLIP.name,
        BOTH.name,
        OLD_CLIP.name,
    ]  # an operator that it does not take comes last
    first, both, old = found["bodies"]
    assert "Worst: Y[2, 0, 1, 3] must be" in first and "and is 7.5, off by" in first
    assert CLIP.checks in first and CLIP.source in first and "clip = 0.25" in first
    assert f"onegru conformance run --runtime bad --precision=f16 --case {CLIP.name}" in first
    should = float(np.float32(CLIP.expected["Y"][2, 0, 1, 3]))
    shown, right = found["off"][0].split("\n")
    assert shown == "≠ 7.5" and float(right) == pytest.approx(should, rel=1e-6)
    assert f"{float(CLIP.inputs['X'][0, 0, 0]):.5g}" in found["inputs"]
    assert HOSTILE in old
    assert "Y as it is float32" in both or "Y as it is float64" in both
    assert found["title"] == "GRU conformance" and found["scripts"] == 2
    assert dom.requests == []
    assert found["moved"] == "good 1.0" and found["after"] == ""
    assert dom.console == []


@pytest.mark.parametrize("width", [400, 1280])
def test_an_address_opens_a_case(page: Path, width: int) -> None:
    script = """
    await until(() => panel.querySelector(".off.worst"));
    return { open: [...panel.querySelectorAll(".case[open] code")].map(item => item.textContent),
             worst: panel.querySelector(".off.worst").closest("tr").innerText,
             wide: document.documentElement.scrollWidth > innerWidth || panel.scrollWidth > innerWidth };
    """
    fragment = f"row=operator%3AGRU-14&runtime=bad+2.0+f16&case={LONG.name}"
    dom = dump_dom(page, width, 900, READ + script, fragment, dark=True)
    assert dom.value["open"] == [LONG.name]
    assert re.match(r"\[600, 0, 1, :\]\s≠ NaN", dom.value["worst"])  # only a part of the array is there
    assert not dom.value["wide"]
    assert dom.console == []


def test_what_it_holds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = page_data(results(), CASES)
    assert set(found["arrays"]) == {CASES.index(case) for case in (CLIP, BOTH, OLD, OLD_CLIP, LONG)}
    assert len(json.dumps(found["arrays"][CASES.index(LONG)])) < 20_000
    assert "Infinity" not in json.dumps(found) and json.loads(json.dumps(found, allow_nan=False))
    monkeypatch.setattr(data, "MOST_ARRAYS", 100)
    names = {name for number, item in page_data(results(), CASES)["arrays"].items() for name in item}
    assert names == {"attributes", "inputs", "expected", "got"}
    assert sum("inputs" in item for item in page_data(results(), CASES)["arrays"].values()) == 1


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "onegru",
            {"engine": "native", "target": "avx2"},
            "ONEGRU_TARGET=avx2 onegru {} onegru --engine=native",
        ),
        ("onnxruntime", {"provider": "a; b"}, "onegru {} onnxruntime '--provider=a; b'"),
    ],
)
def test_the_command_has_the_options(name: str, options: dict[str, str], words: str) -> None:
    assert (
        command(RuntimeResults(name, "1", options)) == words.format("conformance run --runtime") + " --case"
    )


def test_nothing_ends_the_data_early() -> None:
    page = page_of(results(), CASES)
    start = page.index('id="data">') + len('id="data">')
    held = json.loads(page[start : page.index("</script>", start)])
    assert HOSTILE in held["texts"]
    rest = page[:start] + page[page.index("</script>", start) :]
    assert not re.search(r"(?:src|href)=[\"'](?!data:)|url\(|@import|https?:", rest)
