"""The runtimes by name, and what may be asked of them."""

from __future__ import annotations

from typing import Any

import pytest

import onegru
from onegru import MissingExtraError, SpecError
from onegru.conformance.runtimes import registry
from onegru.conformance.runtimes.registry import configs
from onegru.peers.openvino import OpenVino
from tests.support.models.mutants import Absent


def names_and_options(*arguments: Any, **options: Any) -> list[tuple[str, dict[str, str]]]:
    return [(item.runtime.name, dict(item.options)) for item in configs(*arguments, **options)]


def test_engines_of_onegru() -> None:
    target = onegru.targets().chosen
    assert names_and_options(["onegru"]) == [("onegru", {"engine": "native", "target": target})]
    assert names_and_options(["onegru"], engines=["reference", "native", "reference"]) == [
        ("onegru", {"engine": "reference"}),
        ("onegru", {"engine": "native", "target": target}),
    ]


def test_providers() -> None:
    pytest.importorskip("onnxruntime")
    cpu, own = "CPUExecutionProvider", "OnegruExecutionProvider"
    assert names_and_options(["onnxruntime"]) == [("onnxruntime", {"provider": cpu})]
    first, second = configs(["onnxruntime"], [own, cpu])
    assert first.options == {"provider": own, "target": onegru.targets().chosen}
    assert second.options == {"provider": cpu}
    assert not first.reserves_memory and not second.reserves_memory
    with pytest.raises(SpecError, match=r"provider: 'None'; must be one of .*CPUExecutionProvider"):
        configs(["onnxruntime"], ["None"])


def test_precision() -> None:
    pytest.importorskip("openvino")
    (item,) = configs(["openvino"], precision="default")
    assert item.runtime == OpenVino(precision="default") and item.options == {"precision": "default"}
    assert item.kinds == ("onnx", "openvino")
    assert names_and_options(["openvino"]) == [("openvino", {"precision": "f32"})]


def test_all_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry, "RUNTIMES", {"onegru": registry.RUNTIMES["onegru"], "torch": Absent(name="torch")}
    )
    assert [name for name, _ in names_and_options()] == ["onegru"]
    with pytest.raises(MissingExtraError, match=r"runtime needs torch: pip install 'onegru\[torch\]'"):
        configs(["torch"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"names": ["tvm"]}, "runtime: 'tvm'; must be one of onegru, onnxruntime, openvino, onnx, torch"),
        ({"engines": ["fast"]}, "engine: 'fast'; must be one of native, reference"),
        ({"precision": "f8"}, "precision: 'f8'; must be one of f32, default"),
        (
            {"names": ["onegru"], "providers": ["CPUExecutionProvider"]},
            "provider: 'CPUExecutionProvider'; has no effect, because onnxruntime is not among the "
            "runtimes; remove it",
        ),
        (
            {"names": ["onnx"], "engines": ["native"]},
            "engine: 'native'; has no effect, because onegru is not among the runtimes; remove it",
        ),
        (
            {"names": ["onegru"], "precision": "f32"},
            "precision: 'f32'; has no effect, because openvino is not among the runtimes; remove it",
        ),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "onnx"):  # whatever is installed
        monkeypatch.setitem(registry.RUNTIMES, name, registry.RUNTIMES["onegru"])
    with pytest.raises(SpecError) as error:
        configs(**arguments)
    assert str(error.value) == message
