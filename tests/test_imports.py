"""Imports go one way, optional packages stay optional, and `import onegru` is quick."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

import onegru
from tests.ir_files import write_case
from tests.onnx_models import graph, gru, model, save, value, weights

SOURCE = Path(onegru.__file__).parent

# Lowest first. A module imports from the layers below its own, and within a layer from those before it.
# The folders' own __init__ modules, which hold nothing but words, need no place.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "_native",
        "cpus",
        "errors",
        "atomic_write",
        "bounded",
        "array_files",
        "pickling",
        "arguments",
        "dtypes",
        "child_process",
        "state_files",
        "activations",
        "compare",
        "wording",
    ),
    ("shapes", "spec", "known", "dialects.schema", "attributes"),
    ("dialects.onnx", "dialects.openvino", "dialects.frameworks", "dialect", "reference"),
    ("problem", "native", "engine", "stream", "layer", "stack"),
    (
        "functional",
        "execution_provider",
        "_openvino_graph",
        "_openvino_op",
        "_openvino_exchange",
        "openvino_ops",
        "tensors",
        "padding",
        "exchange",
        "frameworks.pytorch",
        "frameworks.keras_config",
        "frameworks.keras3",
        "frameworks.flax",
        "frameworks.files",
        "files.zip_file",
        "files.recognise",
        "files.graph",
        "files.sizes",
        "files.onnx_read",
        "files.onnx_order",
        "files.onnx_functions",
        "files.onnx_bounds",
        "files.onnx_constant_grus",
        "files.onnx_guard",
        "files.onnx_tensor",
        "files._onnxruntime",
        "files.onnx_lift",
        "files.onnx_whole",
        "files.onnx_views",
        "files.onnx_states",
        "files.onnx_node",
        "files.onnx_sizes",
        "files.onnx_model",
        "files.onnx_probe",
        "files.onnx_scope",
        "files.onnx_form",
        "files.onnx_activations",
        "files.onnx_decompose",
        "files.onnx_change",
        "files.onnx_opset",
        "files.onnx_plan",
        "files.onnx_rewrite",
        "files.openvino_xml",
        "files.openvino_words",
        "files.openvino_constants",
        "files._openvino",
        "files._openvino_check",
        "files.openvino_whole",
        "files.openvino_steps",
        "files.openvino_ir",
        "files.writing",
        "files.onnx_write",
        "files.openvino_net",
        "files.openvino_write",
        "files.safetensors_file",
        "files.torch_file",
        "files.checkpoint",
        "files.keras_reader",
        "files.keras_archive",
    ),
    (
        "saving",
        "model_gru",
        "model_inputs",
        "model_stream",
        "session",
        "loading",
        "inference_session",
        "report",
        "draw",
        "surgery",
        "backend",
        "runtimes.subject",
        "runtimes.onnxruntime",
        "runtimes.onnx_evaluator",
        "runtimes.openvino",
        "runtimes.torch",
        "runtimes.table",
        "runtimes.apart",
        "runtimes.child",
        "conformance.*",
    ),
    ("__init__",),  # the public names
    (
        "cli.bench",
        "cli.show",
        "cli.waiting",
        "cli.inputs",
        "cli.outputs",
        "cli.chain",
        "cli.check",
        "cli.surgery",
        "cli.convert",
        "cli.verify",
        "cli.app",
        "cli.__init__",
        "__main__",
    ),
)

# The only modules that may import a package beside NumPy and the standard library.
OPTIONAL = {
    "onnx": ("files.onnx*", "backend", "inference_session", "runtimes.onnx_evaluator"),
    "google": ("files.onnx*",),  # protobuf, which onnx itself needs
    "onnxruntime": ("files._onnxruntime", "execution_provider", "inference_session"),
    "openvino": (
        "files._openvino",
        "files._openvino_check",
        "_openvino_op",
        "_openvino_exchange",
        "runtimes.openvino",
    ),
    "ml_dtypes": ("dtypes",),
    "keras": ("frameworks.keras3", "frameworks.files"),
    "flax": ("frameworks.flax",),
    "safetensors": ("files.checkpoint", "files.safetensors_file"),
    "h5py": ("files.keras_reader",),
    "torch": ("frameworks.pytorch", "frameworks.files", "runtimes.torch"),
    "typer": ("cli.*",),
    "rich": ("cli.*",),
}


@dataclass(frozen=True)
class Import:
    """One imported module: whether it is one of onegru's, and its name, without "onegru."."""

    name: str
    own: bool
    line: int


def module_names() -> list[str]:
    paths = (path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py"))
    return sorted(".".join(path.parts) for path in paths)


MODULES = module_names()


def imports(module: str) -> Iterator[Import]:
    """Everything that a module imports, within functions too; names under TYPE_CHECKING count as well."""
    tree = ast.parse((SOURCE / Path(*module.split("."))).with_suffix(".py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield resolve(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{module}: a relative import"
            for alias in node.names:
                yield resolve(f"{node.module}.{alias.name}", node.lineno)


def resolve(name: str, line: int) -> Import:
    """The module that an imported name is, or lies in."""
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


def place(module: str) -> tuple[int, int] | None:
    """Layer and place within it."""
    for layer, patterns in enumerate(LAYERS):
        for index, pattern in enumerate(patterns):
            if fnmatchcase(module, pattern):
                return layer, index
    return None


def is_bare_package(module: str) -> bool:
    """Whether a module is a folder's __init__ without any code."""
    body = ast.parse((SOURCE / Path(*module.split("."))).with_suffix(".py").read_text()).body
    return module.endswith(".__init__") and len(body) == 1 and isinstance(body[0], ast.Expr)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    own_place = place(module)
    if own_place is None:
        assert is_bare_package(module), f"{module} has no place in LAYERS"
        return
    for item in imports(module):
        if not item.own or item.name == module:
            continue
        there = place(item.name)
        assert there is not None, f"{module}:{item.line} imports {item.name}, which has no place in LAYERS"
        assert there <= own_place, f"{module}:{item.line} imports {item.name}, which lies above it"


def test_no_cycles() -> None:
    graph = {
        module: {item.name for item in imports(module) if item.own and item.name != module}
        for module in MODULES
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def test_every_name_in_the_table_exists() -> None:
    for pattern in (pattern for layer in LAYERS for pattern in layer if pattern != "_native"):
        assert any(fnmatchcase(module, pattern) for module in MODULES) or "*" in pattern, pattern


@pytest.mark.parametrize("module", MODULES)
def test_other_packages_are_imported_where_they_belong(module: str) -> None:
    for item in imports(module):
        if item.own or item.name == "numpy" or item.name in sys.stdlib_module_names:
            continue
        allowed = OPTIONAL.get(item.name, ())
        assert any(fnmatchcase(module, pattern) for pattern in allowed), f"{module}:{item.line}: {item.name}"


# ---- what happens without the optional packages

BLOCK = """
    import sys

    class Block:
        def find_spec(self, name, path=None, target=None):
            first = name.partition(".")[0]
            if blocked(first):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Block())
"""


def python(blocked: str, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter where the packages that `blocked` (an expression of `name`) are not."""
    lines = f"blocked = lambda name: {blocked}\n" + textwrap.dedent(BLOCK) + textwrap.dedent(code)
    command = [sys.executable, "-c", lines, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_numpy_is_enough() -> None:
    result = python(
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
        began = time.perf_counter()
        import onegru
        print(time.perf_counter() - began)
    """
    seconds = min(float(python("False", code).stdout) for _ in range(5))
    print(f"import onegru, after NumPy: {seconds * 1e3:.1f} ms")  # should be under 50
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
    """A GRU and another node."""
    nodes = [gru("X", ["Y"], bias="B")]
    nodes.append(nodes[0].__class__(op_type="Relu", input=["Y"], output=["Z"], name="relu"))
    proto = graph(nodes, [value("X", shape=["T", "N", 5])], ["Z"], weights())
    return save(tmp_path, model(proto))


def test_onnx_files_without_onnx(onnx_path: Path) -> None:
    result = python("name == 'onnx'", LOAD, onnx_path)
    assert result.stdout == f"onnx onnx {onnx_path} needs onnx: pip install 'onegru[onnx]'\n"


def test_other_nodes_without_onnxruntime(onnx_path: Path) -> None:
    result = python("name == 'onnxruntime'", LOAD, onnx_path)
    assert result.stdout == (
        f"onnxruntime onnxruntime {onnx_path}: Relu node 'relu' needs onnxruntime: "
        "pip install 'onegru[onnxruntime]'\n"
    )


def test_grus_alone_without_onnxruntime(tmp_path: Path) -> None:
    path = save(tmp_path, model(graph([gru("X", ["Y"])], [value("X", shape=[2, 1, 5])], ["Y"], weights())))
    result = python("name == 'onnxruntime'", LOAD + "\n    else:\n        print('loaded')", path)
    assert result.stdout == "loaded\n", result.stderr


def test_irs_without_any_optional_package(tmp_path: Path) -> None:
    inputs = {
        "X": np.ones((1, 5), np.float32),
        "initial_hidden_state": np.ones((1, 3), np.float32),
        **{name: array[0] for name, array in weights().items() if name != "B"},
    }
    path = write_case(tmp_path / "cell.xml", "gru_cell", dict(inputs), {"hidden_size": 3})
    blocked = "name in ('onnx', 'onnxruntime', 'openvino', 'ml_dtypes', 'typer', 'rich')"
    result = python(blocked, LOAD + "\n    else:\n        print('loaded')", path)
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
    result = python("name == 'ml_dtypes'", LOAD, path)
    assert "ml_dtypes bfloat16" in result.stdout, result.stdout + result.stderr
    assert result.stdout.endswith("needs ml_dtypes: pip install 'onegru[bfloat16]'\n")


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_command_line_without_its_packages(package: str) -> None:
    result = python(f"name == {package!r}", "from onegru.cli import main\nmain()")
    assert result.returncode == 2
    assert result.stderr == "onegru: the command line needs typer and rich: pip install 'onegru[cli]'\n"
    assert result.stdout == ""


def test_command_line_without_onnx(onnx_path: Path, tmp_path: Path) -> None:
    code = "from onegru.cli import main\nmain()"
    result = python("name == 'onnx'", code, "inspect", onnx_path)
    assert result.returncode == 2
    assert result.stderr == f"onegru: {onnx_path} needs onnx: pip install 'onegru[onnx]'\n"


def test_broken_packages_are_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "onnx.py").write_text("import a_package_that_it_needs_and_that_is_not_there")
    code = f"sys.path.insert(0, {str(tmp_path)!r})\nimport onegru\nonegru.load(sys.argv[1])"
    result = python("False", code, save(tmp_path, b""))
    assert result.stderr.splitlines()[-1].startswith("ModuleNotFoundError")
