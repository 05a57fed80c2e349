"""The commands of the conformance suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onegru.cli.commands.conformance import chosen_cases, features
from onegru.conformance.cases import kit_cases
from onegru.conformance.results import read_results
from onegru.conformance.runtimes import registry
from tests.support.faulty_runtime import FaultyRuntime
from tests.support.machine.cli import Cli, files
from tests.support.models.mutants import Fake, Refusing

pytest.importorskip("onnx")

USUAL, CLIP = "gru_14__usual", "gru_14__clip_reached"
FEW = ("--case", USUAL, "--case", CLIP)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtimes with little to load, which fail as they should."""
    found = {
        "good": Fake(name="good"),
        "bad": FaultyRuntime(name="bad", faults={CLIP: "off"}),
        "shy": Refusing(name="shy"),
        "mad": FaultyRuntime(name="mad", faults={USUAL: "exit"}),
    }
    monkeypatch.setattr(registry, "RUNTIMES", found)


def run(cli: Cli, *arguments: str) -> Any:
    return cli("conformance", "run", *FEW, *arguments)


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    ("runtime", "options", "code", "words"),
    [
        ("good", ("--no-refusals",), 0, "2 passed"),
        ("shy", (), 0, "2 refused"),
        ("shy", ("--no-refusals",), 1, "2 refused"),
        ("bad", (), 1, "1 passed, 1 differed"),
        ("mad", (), 1, "1 passed, 1 crashed"),
    ],
)
def test_exit_codes(cli: Cli, runtime: str, options: tuple[str, ...], code: int, words: str) -> None:
    result = run(cli, "--runtime", runtime, *options)
    assert (result.code, result.err) == (code, "")
    assert f"{runtime} 1.0: {words}\n" in result.out


@pytest.mark.usefixtures("fakes")
def test_the_table(cli: Cli) -> None:
    result = run(cli)
    lines = [line.split() for line in result.out.splitlines()]
    assert ["feature", "good", "bad", "shy", "mad"] in lines
    assert ["no", "unusual", "feature", "1", "1", "1r", "1c"] in lines
    assert ["clip", "reached", "1", "1d", "1r", "1"] in lines
    assert ["all", "cases", "2", "1", "1d", "2r", "1", "1c"] in lines
    assert "  1 differed: Y beyond the tolerance (gru_14__clip_reached)\n" in result.out
    assert "  1 crashed: exit code 3 (gru_14__usual)\n" in result.out
    assert "  2 refused: no such operator (gru_14__usual)\n" in result.out
    assert max(map(len, result.out.split("\n\n")[0].splitlines())) <= 80


@pytest.mark.usefixtures("fakes")
def test_files_and_json(cli: Cli) -> None:
    pytest.importorskip("onegru.conformance.report")
    result = run(cli, "--runtime", "bad", "--runtime", "good", "-o", "r.json", "--html", "r.html", "--json")
    assert (result.code, result.err) == (1, "")
    assert json.loads(result.out) == json.loads(Path("r.json").read_text())
    bad, good = read_results(Path("r.json"))
    assert (bad.runtime, good.runtime) == ("bad", "good")
    assert [outcome.status for outcome in bad.outcomes.values()] == ["passes", "differs"]
    assert list(good.outcomes) == [USUAL, CLIP]
    assert CLIP in Path("r.html").read_text()
    assert files() == {"r.json", "r.html"}


def test_onegru_itself(cli: Cli) -> None:
    result = run(cli, "--runtime", "onegru", "--engine", "reference", "--engine", "native", "--json")
    first, second = result.document()["runtimes"]
    assert first["options"] == {"engine": "reference"} and second["options"]["engine"] == "native"
    assert first["counts"] == second["counts"] == {"passes": 2, "differs": 0, "refuses": 0, "crashes": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--runtime", "tvm"), "runtime: 'tvm'; must be one of onegru, "),
        (
            ("run", "--runtime", "onegru", "--engine", "fast"),
            "engine: 'fast'; must be one of native, reference",
        ),
        (("run", "--case", "nothing*"), "--case: 'nothing*'; must match one of the "),
        (("run", "--operator", "LSTM"), "--operator: 'LSTM'; must be one of GRU-1, GRU-3, GRU-7, GRU-14, "),
        (("list", "--operator", "GRU-14", "--case", "grucell*"), "--case: 'grucell*'; must match one of"),
        (("run", "-o", "no/r.json"), "-o no/r.json: folder 'no' does not exist"),
        (("run", "-o", "r.html"), "-o r.html: must end in .json"),
        (("run", "--html", "model.onnx"), "--html model.onnx: must end in .html"),
        (("run", "--html", ""), "'' is not a file or folder; must be a name"),
        (("run", "-o", ""), "'' is not a file or folder; must be a name"),
        (("export", ""), "'' is not a file or folder; must be a name"),
        (
            ("run", "--runtime", "onegru", "--precision", "default"),
            "--precision: 'default'; has no effect, because openvino is not among the runtimes; remove it",
        ),
        (
            ("run", "--runtime", "onnx", "--case", "grucell_3__usual"),
            "--runtime: onnx; must support one of the chosen cases",
        ),
        (("run", "--timeout", "0"), "--timeout"),
        (("export", "no/kit", "--case", USUAL), "no/kit: No such file or directory"),
        (("export",), "DIR"),
        (("walk",), "walk"),
    ],
)
def test_refusals(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    cli("conformance", *arguments).refused(message)
    assert files() == set()


def test_list(cli: Cli) -> None:
    result = cli("conformance", "list", "--operator", "gru-14", "--case", "*clip_reached", "--case", "*usual")
    assert (result.code, result.err) == (0, "")
    usual, *rest = result.out.splitlines()
    assert usual == USUAL and rest[0].startswith("  The operator with all defaults")
    assert rest[1] == "  GRU-14: Equations, every line" and rest[-1].endswith(" cases")
    found = cli("conformance", "list", "--json").document()["cases"]
    assert [case["name"] for case in found] == [case.name for case in kit_cases()]
    case = next(case for case in found if case["name"] == CLIP)
    assert case == {
        "name": CLIP,
        "operator": "GRU-14",
        "file": "onnx",
        "type": "float32",
        "features": {"clip": "reached"},
        "checks": case["checks"],
        "source": "GRU-14: Attribute clip, sentences 2 and 3",
    }


def test_chosen_cases() -> None:
    everything = list(kit_cases())
    assert chosen_cases((), ()) == everything
    assert {str(case.operator) for case in chosen_cases((), ["GRU"])} == {
        f"GRU-{version}" for version in (1, 3, 7, 14, 22)
    }
    both = chosen_cases(["*usual", USUAL], ["GRU-14", "augru"])
    assert [case.name for case in both] == [USUAL, "augru_1__usual"]


def test_features_are_in_the_order_of_the_factors() -> None:
    found = features(list(kit_cases()))
    assert next(iter(found)) == ("no unusual feature", "")
    factors = list(dict.fromkeys(factor for factor, _ in found))
    assert factors.index("direction") < factors.index("sequence_lens") < factors.index("values")
    assert USUAL in found["no unusual feature", ""] and CLIP in found["clip", "reached"]
    backward = "gru_14__direction_bidirectional__f_backward_Relu"
    assert backward in found["f backward", "Relu"] and backward not in found["direction", "bidirectional"]
    assert all(found.values()) and sum(map(len, found.values())) == len(kit_cases())


def test_export(cli: Cli) -> None:
    result = cli("conformance", "export", "kit", "--case", USUAL, "--case", "grucell_3__usual")
    assert (result.code, result.out, result.err) == (0, "wrote 2 cases to kit\n", "")
    assert Path("kit/onnx/test_gru_14__usual/model.onnx").is_file()
    assert Path("kit/openvino/grucell_3__usual/model.xml").is_file()
    cli("conformance", "export", "kit", "--case", USUAL).refused(
        "kit: is not empty; must be a new or empty folder"
    )


def test_help(cli: Cli) -> None:
    for command in ((), ("run",), ("list",), ("export",)):
        result = cli("conformance", *command, *(["--help"] if command else []))
        assert (result.code, result.err) == (0, "")
        assert not command or f"Example: onegru conformance {command[0]}" in result.out


def test_a_function_as_a_runtime(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("import os\ndef run(case):\n    os.abort()\n")
    result = run(cli, "--runtime", "mine.py:run", "--json")
    (found,) = json.loads(result.out)["runtimes"]
    assert result.code == 1 and found["runtime"] == "mine.py:run"
    assert {item["reason"] for item in found["outcomes"]} == {"signal 6, SIGABRT"}
    result = run(cli, "--runtime", "mine:run")  # the current folder is not where modules are looked for
    assert result.code == 2
    assert "runtime: 'mine:run': no such function; must be module:function of an importable" in result.err
