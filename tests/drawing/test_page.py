"""Pages: what they hold, and what a browser makes of them."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.drawing import page as drawing_page
from onegru.drawing.colours import colours
from onegru.drawing.page import page
from onegru.drawing.picture import DirectionView, Panel, Picture, Run
from tests.support.layers import draw, make_gru
from tests.support.machine.browser import dump_dom

PANELS = (
    Panel("z", "update gate z", "0 to 1", 0.0, 1.0, "sequential", 1.0),
    Panel("h", "state h", "about 0", -2.0, 2.0, "diverging", 4.0),
)
HOSTILE = "</script><script>document.title='bad'</script><img src=x onerror=\"document.title='bad'\">&'"


# What scripts use pages with.
HELPERS = """
const pause = () => new Promise((done) => setTimeout(done, 60));
const find = (selector, index = 0) => document.querySelectorAll(selector)[index];
const text = (selector) => [...document.querySelectorAll(selector)].map((item) => item.textContent);
const pick = async (selector, value) => {
  find(selector).value = value;
  find(selector).dispatchEvent(new Event("change"));
  await pause();
};
const press = async (selector) => (find(selector).click(), await pause());
const key = async (name) => (dispatchEvent(new KeyboardEvent("keydown", { key: name })), await pause());
const mouse = async (kind, canvas, x, y) => {
  const box = canvas.getBoundingClientRect();
  canvas.setPointerCapture = () => {};
  canvas.dispatchEvent(new PointerEvent(kind, { clientX: box.left + x, clientY: box.top + y }));
  await pause();
};
const colour = (canvas, x, y) => {
  const ratio = canvas.width / canvas.getBoundingClientRect().width;
  const copy = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  copy.drawImage(canvas, -Math.floor(x * ratio), -Math.floor(y * ratio));
  return [...copy.getImageData(0, 0, 1, 1).data.slice(0, 3)];
};
const pixels = (canvas) => canvas.toDataURL().length + canvas.toDataURL().slice(-4000, -100);
"""


def use_page(text: str, script: str, folder: Path, size: tuple[int, int] = (1280, 1300)) -> Any:
    """What a script returns that uses a page; nothing may go wrong, and nothing may be loaded."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    seen = dump_dom(path, *size, HELPERS + script)
    assert (seen.console, seen.requests) == ([], [])
    return seen.value


def picture_of(*steps: int, units: int = 3, views: int = 1, label: str = "this run") -> Picture:
    """Runs of so many steps, whose number at step t of unit u is (10t + u) / 100, in h with a minus.

    In the second run they are half of that.
    """
    runs = []
    for index, count in enumerate(steps):
        values = (np.arange(count)[:, None] * 10 + np.arange(units)).astype(np.float32) / 100 / (1 + index)
        runs.append(Run((label, "other run")[index], f"{label} in words", (values, -values)))
    orders = {"as it is": list(range(units)), "turned round": list(reversed(range(units)))}
    names = ("forward", "reverse")[:views]
    return Picture(
        "A title", "some words", tuple(DirectionView(name, PANELS, tuple(runs), orders) for name in names)
    )


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def numbers_of(data: Any, panel: int, run: int = 0) -> Any:
    """The numbers of a panel, [H, T], and how far apart two are at least."""
    view = data["views"][0]
    low, high = view["panels"][panel]["low"], view["panels"][panel]["high"]
    whole = np.frombuffer(base64.b64decode(view["runs"][run]["data"][panel]), "<u2").reshape(
        view["units"], -1
    )
    return np.where(whole == 65535, np.nan, low + (high - low) * whole / 65534), (high - low) / 65534


def test_numbers_are_held_in_two_bytes() -> None:
    picture = picture_of(9)
    for panel in (0, 1):
        got, spacing = numbers_of(data_of(page(picture)), panel)
        np.testing.assert_allclose(got.T, picture.views[0].runs[0].values[panel], atol=0.51 * spacing)


def test_what_is_no_number_stays_none() -> None:
    picture = picture_of(2)
    picture.views[0].runs[0].values[0][:] = [[np.nan, np.inf, -np.inf], [0.5, 0.25, 1]]
    got, spacing = numbers_of(data_of(page(picture)), 0)
    np.testing.assert_allclose(got.T, [[np.nan, 1, 0], [0.5, 0.25, 1]], atol=spacing)


def test_large_runs_are_held_as_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing_page, "MOST_NUMBERS", 20)
    text = page(picture_of(10))  # 60 numbers
    data = data_of(text)
    assert data["stride"] == 3 and "each column is the mean of 3 steps" in data["notes"][0]
    got, spacing = numbers_of(data, 0)
    np.testing.assert_allclose(got[0], [0.1, 0.4, 0.7, 0.9], atol=spacing)  # the last of only one step
    assert data["views"][0]["runs"][0]["length"] == 10


def test_names_cannot_become_markup() -> None:
    picture = picture_of(2, label=HOSTILE)
    text = page(Picture(HOSTILE, HOSTILE, picture.views))
    assert text.count("<script") == page(picture_of(2)).count("<script")
    assert "<img" not in text
    assert data_of(text)["words"] == HOSTILE
    assert "{{" not in text


def test_a_page_names_no_other_place() -> None:
    assert (
        re.findall(r"(?:https?:)?//[\w.]+|@import|url\(", re.sub(r"(?m)^\s*//.*$", "", page(picture_of(2))))
        == []
    )


def test_what_is_read_covers_no_map(tmp_path: Path) -> None:
    """Every map can be scrolled into sight, above what is read off it; in windows of any size."""
    script = """
      const maps = document.querySelectorAll(".sheet"), last = maps[maps.length - 1];
      last.scrollIntoView({ block: "end" });
      await pause();
      return last.getBoundingClientRect().bottom - find("#readout").getBoundingClientRect().top;
    """
    for size in ((1280, 500), (420, 500)):
        assert use_page(page(picture_of(9)), script, tmp_path, size) < 1  # pixel


@pytest.mark.long
def test_the_cursor_sorting_and_zoom(tmp_path: Path) -> None:
    script = """
      const map = find("canvas.over"), seen = {};
      seen.first = text("#place")[0];
      await mouse("pointermove", map, 47, 53);
      seen.corner = [text("#place")[0], ...text("tbody td")];
      await pick("#order", "turned round");
      seen.sorted = [text("#place")[0], ...text("tbody td")];
      await mouse("pointerdown", map, 47, 53);
      await mouse("pointerup", map, 47, 53);
      await mouse("pointermove", map, 500, 100);
      seen.held = text("#place")[0];
      await key("ArrowRight");
      await key("ArrowDown");
      seen.keys = [text("#place")[0], ...text("tbody td")];
      const before = pixels(find("canvas"));
      await mouse("pointerdown", map, 100, 60);
      await mouse("pointermove", map, 400, 65);
      await mouse("pointerup", map, 400, 65);
      seen.zoomed = [find("canvas").getAttribute("aria-label"), pixels(find("canvas")) !== before];
      await press("#all");
      seen.all = find("canvas").getAttribute("aria-label");
      await key("Escape");
      seen.none = text("#place")[0];
      await press("#theme");
      seen.theme = document.documentElement.dataset.theme;
      return seen;
    """
    seen = use_page(page(picture_of(40)), script, tmp_path)
    assert seen["first"] == "move over a map"
    assert seen["corner"] == ["step 0 · unit 0 (1 of 3)", "0.0000", "0.0000", "0.0100", "−0.0100"]
    assert seen["sorted"] == ["step 0 · unit 2 (1 of 3)", "0.0200", "−0.0200", "0.0100", "−0.0100"]
    assert seen["held"] == "step 0 · unit 2 (1 of 3) · held"
    assert seen["keys"] == ["step 1 · unit 1 (2 of 3) · held", "0.110", "−0.110", "0.110", "−0.110"]
    label, changed = seen["zoomed"]
    assert changed and re.fullmatch(
        r"update gate z, steps [1-9] to 1\d, units 1 to 3 of 3, turned round", label
    )
    assert seen["all"] == "update gate z, steps 0 to 39, units 1 to 3 of 3, turned round"
    assert seen["none"] == "move over a map" and seen["theme"] == "dark"


def test_maps_have_the_colours_of_their_numbers(tmp_path: Path) -> None:
    """In the middle of each cell of 4 steps and 3 units: as they are, turned round, and as a difference."""
    script = """
      const seen = {}, all = [0.125, 0.375, 0.625, 0.875];
      document.documentElement.dataset.theme = "light";
      await press("#modes button[value=first]");
      const width = find("canvas").getBoundingClientRect().width - 98;
      const map = (canvas) => [0, 1, 2].map((rank) => all.map(
        (share) => colour(canvas, 46 + share * width, 52 + ((rank + 0.5) / 3) * 110)));
      seen.z = map(find("canvas"));
      await pick("#order", "turned round");
      seen.turned = map(find("canvas"));
      await pick("#order", "as it is");
      await press("#modes button[value=difference]");
      seen.h = map(find("canvas", 2));
      return seen;
    """
    seen = use_page(page(picture_of(4, 4)), script, tmp_path)
    z = (np.arange(4) * 10 + np.arange(3)[:, None]) / 100

    def expected(shares: Any, kind: str) -> Any:
        return colours("light", kind)[np.round(shares * 255).astype(int)]

    np.testing.assert_allclose(seen["z"], expected(z, "sequential"), atol=2)
    np.testing.assert_allclose(seen["turned"], expected(z[::-1], "sequential"), atol=2)
    np.testing.assert_allclose(seen["h"], expected((4 - z / 2) / 8, "diverging"), atol=2)  # -z less -z/2


@pytest.mark.long
def test_two_runs_and_directions(tmp_path: Path) -> None:
    script = """
      const seen = { maps: [document.querySelectorAll(".sheet").length], labels: text(".label").slice(0, 3) };
      for (const mode of ["first", "difference"]) {
        await press(`#modes button[value=${mode}]`);
        seen.maps.push(document.querySelectorAll(".sheet").length);
      }
      await mouse("pointermove", find("canvas.over"), 1200 - 60, 60);
      seen.rows = text("tbody th");
      seen.values = text("tbody td");
      await pick("#view", "reverse");
      seen.views = text("#view option");
      return seen;
    """
    seen = use_page(page(picture_of(40, 20, views=2)), script, tmp_path)
    assert seen["maps"] == [6, 2, 2] and seen["views"] == ["forward", "reverse"]
    assert seen["labels"] == ["this run", "other run", "difference: this run − other run"]
    assert seen["rows"] == ["unit 0, this run", "mean, this run", "unit 0, other run", "mean, other run"]
    assert "–" not in seen["values"][:4] and seen["values"][4:] == ["–"] * 4  # the other has ended


def test_hostile_names_and_nothing_to_see_in_a_browser(tmp_path: Path) -> None:
    picture = picture_of(0, label=HOSTILE)
    text = page(Picture(HOSTILE, HOSTILE, picture.views))
    seen = use_page(
        text, 'return [document.title, text("h1")[0], text("#notes p")[0]];', tmp_path, (420, 900)
    )
    assert seen[0] == seen[1] == HOSTILE and "an empty sequence" in seen[2]


def test_the_page_of_a_layer(tmp_path: Path) -> None:
    """From a layer to what the browser shows of it, NaN included, in colours of the right place."""
    layer = make_gru(direction="bidirectional")
    X, (state,) = draw(layer, T=30)
    X[10] = np.nan
    trace = layer.trace(X, state, sequence_lens=[30, 20, 3])
    script = """
      await mouse("pointermove", find("canvas.over"), 47, 53);
      const start = [text("#place")[0], ...text("tbody td").slice(0, 4)];
      await mouse("pointermove", find("canvas.over"), 1160, 53);
      return { start, end: text("tbody td").slice(0, 4), labels: text("h2") };
    """
    seen = use_page(trace.to_html(), script, tmp_path)
    assert seen["labels"] == ["update gate z", "reset gate r", "candidate n", "state h"]
    unit = int(seen["start"][0].split("unit ")[1].split()[0])
    shown = [float(text.replace("−", "-")) for text in seen["start"][1:]]
    exact = [float(getattr(trace, name)[0, 0, 0, unit]) for name in "zrnh"]
    np.testing.assert_allclose(shown, exact, atol=6e-4)
    assert seen["end"] == ["NaN"] * 4


def test_to_html_is_what_it_writes(tmp_path: Path) -> None:
    trace = make_gru().trace(draw(make_gru())[0])
    text = trace.to_html(tmp_path / "page.html", row=2, against=trace)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    for arguments, message in (
        ({"row": 3}, "row: 3; must be in 0…2"),
        ({"direction": "reverse"}, "direction: 'reverse'; must be 'forward'"),
        ({"against": 3}, "against: 3; must be a GateTrace"),
        ({"path": 3}, "path: 3; must be the name of a file"),
    ):
        with pytest.raises(onegru.SpecError, match=f"^{message}"):
            trace.to_html(**arguments)
