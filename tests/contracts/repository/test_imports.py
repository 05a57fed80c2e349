"""Test that imports go one way, optional packages stay optional, and `import onegru` is fast."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

import onegru
from tests.support.files.ir_files import write_case
from tests.support.files.onnx_models import graph, gru, model, save, value, weights
from tests.support.machine.processes import run_python, run_python_without
from tests.support.machine.repository import ROOT

SOURCE = Path(onegru.__file__).parent

# A folder is a layer, the lowest first. A module imports only from its own folder and from lower rows, not
# from other folders of its row.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("system", "operators", "engines", "drawing"),
    ("layers",),
    ("frameworks", "runtimes", "dataflow", "torch"),
    ("formats",),
    ("fusion", "peers"),
    ("timeline",),
    ("models",),
    ("rewriting", "verification"),
    ("conformance", "scoring", "quantization"),
    ("cli",),
)
# Above all folders except the command line: modules for other packages, and the public names.
PUBLIC = ("backend", "execution_provider", "openvino", "reports", "__init__")

# The only modules that may import packages other than NumPy and the standard library.
OPTIONAL = {
    "onnx": (
        "formats.onnx.*",
        "fusion.onnx.*",
        "timeline.edits.onnx",
        "timeline.edits.edit",
        "rewriting.*",
        "verification.probe",
        "peers.onnx_reference",
        "conformance.files",
        "conformance.export",
        "models.inference_session",
        "backend",
        "formats.tflite.*",
    ),
    "tflite": ("formats.tflite.*",),
    "google": ("formats.onnx.*", "rewriting.*"),  # protobuf, which onnx itself needs
    "onnxruntime": ("runtimes.execution_provider", "formats.onnx.whole.session", "models.inference_session"),
    "openvino": (
        "cli.commands.bench",
        "runtimes.openvino_op",
        "runtimes.openvino_replace",
        "runtimes.openvino_failures",
        "formats.openvino.network",
        "formats.openvino.faults",
        "fusion.openvino.in_memory",
        "peers.openvino",
    ),
    "ml_dtypes": ("core.dtypes",),
    "keras": ("frameworks.keras", "frameworks.export"),
    "flax": ("frameworks.flax",),
    "safetensors": ("formats.checkpoints.checkpoint", "formats.checkpoints.safetensors"),
    "h5py": ("formats.keras",),
    "torch": (
        "torch.*",
        "frameworks.pytorch",
        "frameworks.export",
        "conformance.runtimes.torch",
    ),
    "pyarrow": ("scoring.*",),
    "ray": ("scoring.ray",),
    "typer": ("cli.*",),
    "rich": ("cli.*",),
}


@dataclass(frozen=True)
class Import:
    """Imported module: whether it belongs to onegru, and its name, without "onegru."."""

    name: str
    own: bool
    line: int


def module_names() -> list[str]:
    paths = (path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py"))
    return sorted(".".join(path.parts) for path in paths)


MODULES = module_names()


@cache
def nodes_of(module: str) -> list[ast.AST]:
    """Return all nodes of a module's syntax tree."""
    return [*ast.walk(ast.parse((SOURCE / Path(*module.split("."))).with_suffix(".py").read_text()))]


def imports(module: str) -> Iterator[Import]:
    """Yield everything that a module imports, including imports in functions and under TYPE_CHECKING."""
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield resolve(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{module}: a relative import"
            for alias in node.names:
                yield resolve(f"{node.module}.{alias.name}", node.lineno)


def resolve(name: str, line: int) -> Import:
    """Return the module that an imported name is, or is in."""
    first, _, rest = name.partition(".")
    if first != "onegru":
        return Import(first, False, line)
    parts = rest.split(".") if rest else []
    while parts:
        candidate = ".".join(parts)
        if candidate in MODULES or candidate == "_native":
            return Import(candidate, True, line)
        if f"{candidate}.__init__" in MODULES:
            return Import(f"{candidate}.__init__", True, line)
        parts.pop()
    return Import("__init__", True, line)


def row(module: str) -> float:
    """Return the layer of a module: its folder's row."""
    if module == "_native":
        return -1
    if module == "__main__":
        return len(LAYERS)
    if module in PUBLIC:
        return len(LAYERS) - 2 + (PUBLIC.index(module) + 1) / (len(PUBLIC) + 1)
    folder = module.partition(".")[0]
    return next(number for number, folders in enumerate(LAYERS) if folder in folders)


def test_imports_go_one_way() -> None:
    wrong = [
        f"{module}:{item.line} imports {item.name} of a higher layer"
        for module in MODULES
        for item in imports(module)
        if item.own
        and (item.name.partition(".")[0] != module.partition(".")[0] or module in PUBLIC)
        and row(item.name) >= row(module)
    ]
    assert not wrong


def test_every_folder_is_a_layer() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {folder for row in LAYERS for folder in row}


def test_no_cycles() -> None:
    graph = {
        module: {item.name for item in imports(module) if item.own and item.name != module}
        for module in MODULES
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def test_every_folder_of_the_package_has_tests() -> None:
    for folder in {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py")}:
        assert any((ROOT / "tests" / folder).glob("test_*.py")), f"tests/{folder}: no tests"


def test_other_packages_are_imported_where_they_belong() -> None:
    everywhere = {"numpy", *sys.stdlib_module_names}
    wrong = [
        f"{module}:{item.line}: {item.name}"
        for module in MODULES
        for item in imports(module)
        if not item.own
        and item.name not in everywhere
        and not any(fnmatchcase(module, pattern) for pattern in OPTIONAL.get(item.name, ()))
    ]
    assert not wrong


def test_numpy_is_enough() -> None:
    result = run_python_without(
        "name not in sys.stdlib_module_names | {'numpy', 'onegru'}",
        """
        import numpy as np
        import onegru

        ones = np.ones
        Y, Y_h = onegru.gru(ones((2, 1, 3)), ones((1, 6, 3)), ones((1, 6, 2)))
        assert Y.shape == (2, 1, 1, 2) and np.all(Y[-1] == Y_h)
        print({name.partition(".")[0] for name in sys.modules} & {"onnx", "onnxruntime", "ml_dtypes", "rich"})
        """,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "set()\n"


def test_import_time() -> None:
    code = """
        import numpy
        import time
        began = time.process_time()  # not the clock's: the machine may be busy
        import onegru
        print(time.process_time() - began)
    """
    seconds = min(float(run_python(code).stdout) for _ in range(5))
    print(f"import onegru, after NumPy: {seconds * 1e3:.1f} ms")  # should be below 50
    assert seconds < 0.15


LOAD = """
    import onegru
    try:
        onegru.load(sys.argv[1])
    except onegru.MissingExtraError as error:
        assert isinstance(error, ImportError)
        print(error.package, error.extra, error)
"""


@pytest.fixture
def onnx_path(tmp_path: Path) -> Path:
    """Return the path of a model with a GRU and another node."""
    nodes = [gru("X", ["Y"], bias="B")]
    nodes.append(nodes[0].__class__(op_type="Relu", input=["Y"], output=["Z"], name="relu"))
    proto = graph(nodes, [value("X", shape=["T", "N", 5])], ["Z"], weights())
    return save(tmp_path, model(proto))


def test_onnx_files_without_onnx(onnx_path: Path) -> None:
    result = run_python_without("name == 'onnx'", LOAD, onnx_path)
    assert result.stdout == f"onnx onnx {onnx_path} needs onnx: pip install 'onegru[onnx]'\n"


def test_other_nodes_without_onnxruntime(onnx_path: Path) -> None:
    result = run_python_without("name == 'onnxruntime'", LOAD, onnx_path)
    assert result.stdout == (
        f"onnxruntime onnxruntime {onnx_path}: Relu node 'relu' needs onnxruntime: "
        "pip install 'onegru[onnxruntime]'\n"
    )


def test_only_grus_without_onnxruntime(tmp_path: Path) -> None:
    path = save(tmp_path, model(graph([gru("X", ["Y"])], [value("X", shape=[2, 1, 5])], ["Y"], weights())))
    result = run_python_without("name == 'onnxruntime'", LOAD + "\n    else:\n        print('loaded')", path)
    assert result.stdout == "loaded\n", result.stderr


def test_irs_without_any_optional_package(tmp_path: Path) -> None:
    inputs = {
        "X": np.ones((1, 5), np.float32),
        "initial_hidden_state": np.ones((1, 3), np.float32),
        **{name: array[0] for name, array in weights().items() if name != "B"},
    }
    path = write_case(tmp_path / "cell.xml", "gru_cell", dict(inputs), {"hidden_size": 3})
    blocked = "name in ('onnx', 'onnxruntime', 'openvino', 'ml_dtypes', 'typer', 'rich')"
    result = run_python_without(blocked, LOAD + "\n    else:\n        print('loaded')", path)
    assert result.stdout == "loaded\n", result.stderr


def test_bfloat16_without_ml_dtypes(tmp_path: Path) -> None:
    inputs = {
        "X": np.ones((1, 5), np.float32),
        "initial_hidden_state": np.ones((1, 3), np.float32),
        **{name: array[0] for name, array in weights().items() if name != "B"},
    }
    path = write_case(tmp_path / "cell.xml", "gru_cell", dict(inputs), {"hidden_size": 3})
    path.write_text(path.read_text().replace('"f32"', '"bf16"').replace('size="180"', 'size="90"'))
    path.write_text(path.read_text().replace('size="108"', 'size="54"'))
    result = run_python_without("name == 'ml_dtypes'", LOAD, path)
    assert "ml_dtypes bfloat16" in result.stdout, result.stdout + result.stderr
    assert result.stdout.endswith("needs ml_dtypes: pip install 'onegru[bfloat16]'\n")


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_command_line_without_its_packages(package: str) -> None:
    result = run_python_without(f"name == {package!r}", "from onegru.cli import main\nmain()")
    assert result.returncode == 2
    assert result.stderr == "onegru: the command line needs typer and rich: pip install 'onegru[cli]'\n"
    assert result.stdout == ""


def test_command_line_without_onnx(onnx_path: Path, tmp_path: Path) -> None:
    code = "from onegru.cli import main\nmain()"
    result = run_python_without("name == 'onnx'", code, "inspect", onnx_path)
    assert result.returncode == 2
    assert result.stderr == f"onegru: {onnx_path} needs onnx: pip install 'onegru[onnx]'\n"


def test_broken_packages_are_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "onnx.py").write_text("import a_package_that_it_needs_and_that_is_not_there")
    code = f"sys.path.insert(0, {str(tmp_path)!r})\nimport onegru\nonegru.load(sys.argv[1])"
    result = run_python_without("False", code, save(tmp_path, b"\x08\x08"))
    assert result.stderr.splitlines()[-1].startswith("ModuleNotFoundError")


# Names with an underscore that belong to Python, NamedTuple or other packages.
OTHERS_PRIVATE = {
    *("_asdict", "_replace", "_fields", "_exit", "_getframe", "_native"),
    *("_C", "_functorch", "_are_functorch_transforms_active", "_len_torch_dispatch_stack", "_is_zerotensor"),
    *("_current_level", "_flatten_layers", "_ops", "_len_torch_dispatch_stack_pre_dispatch"),
    *("_profiler_enabled", "_make_wrapper_subclass"),
}


def private_names_of_others(module: str) -> list[str]:
    own: set[str] = set()
    for node in nodes_of(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    used = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for node in nodes_of(module)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in own | OTHERS_PRIVATE
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    return used + [
        f"{module}:{node.lineno}: imports {alias.name}"
        for node in nodes_of(module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onegru")
        for alias in node.names
        if alias.name.startswith("_") and alias.name not in ("_native", "__version__")
    ]


def test_no_module_reaches_into_anothers_private_names() -> None:
    assert not [name for module in MODULES for name in private_names_of_others(module)]
