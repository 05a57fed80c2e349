"""The native core: its version, its stub, and which SIMD target it uses."""

from __future__ import annotations

import ast
import os
import re
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import _native
from onegru.core.activations import ACTIVATIONS
from onegru.engines import native
from tests.support.machine.processes import Done, run_python

SHOW = "import onegru; print(onegru.targets().chosen)"


def import_with(target: str, code: str = SHOW) -> Done:
    return run_python(code, status=None, environment={"ONEGRU_TARGET": target})


def test_targets() -> None:
    targets = onegru.targets()
    assert targets.available
    assert targets.chosen in targets.available
    assert len(set(targets.available)) == len(targets.available)
    assert set(targets.available) <= set(_native.compiled_targets())


@pytest.mark.skipif("ONEGRU_TARGET" in os.environ, reason="a target is forced")
@pytest.mark.parametrize("products", ["simd", "vnni", "amx"])
def test_what_multiplies_in_int8(products: str) -> None:
    best = onegru.targets().int8
    if products == "simd" != best and _native.is_native():
        with pytest.raises(ValueError, match=r"simd; this build has only kernels that need VNNI"):
            _native.limit_int8_products(products)
        return
    _native.limit_int8_products(products)
    try:
        assert onegru.targets().int8 == min(best, products, key=("simd", "vnni", "amx").index)
    finally:
        _native.limit_int8_products("amx")


SMALL_STACK = """
import ctypes, mmap, sys
import numpy as np
import onegru

class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

def set_stack(size):
    memory = ctypes.create_string_buffer(size)
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, size)), None) == 0, memory

if sys.argv[1] == "before":
    before = set_stack(8192)
layer = onegru.GRU(*(np.full((1, 192, 64), 0.1, "f") for _ in "WR"), weight_storage="int8")
Y = layer(np.ones((20, 20, 64), "f"))[0]
print(onegru.targets().int8, set_stack(8192)[0], Y.sum())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="tiles are Linux's to allow")
def test_small_stacks_of_signals() -> None:
    """Linux allows tiles, and refuses stacks that cannot hold them, or the other way round."""

    def run(when: str, target: str = "") -> list[str]:
        environment = {"ONEGRU_TARGET": target} if target else {}
        return run_python(SMALL_STACK, when, environment=environment).stdout.split()

    after, before = run("after"), run("before")
    assert after[2] == before[2]
    assert after[1] == str(after[0] != "amx")
    assert before[0] != "amx" and before[1] == "True"
    if "avx2" in _native.available_targets():
        assert run("after", "avx2")[1:] == ["True", after[2]]


LESSER_CPU = """
import ctypes
ctypes.CDLL("libhwy.so.1")._ZN3hwy14DisableTargetsEl(ctypes.c_int64(-1))  # as if the CPU had none of them
try:
    import onegru
except ImportError as error:
    print(error)
"""


@pytest.mark.skipif(not _native.is_native(), reason="a build for every target runs on every CPU")
def test_a_build_for_another_cpu_is_refused() -> None:
    if "libhwy" not in Path("/proc/self/maps").read_text():
        pytest.skip("Highway is linked into the module: nothing can hide the CPU's targets")
    said = run_python(LESSER_CPU).stdout
    (target,) = _native.compiled_targets()
    assert said.startswith(f"onegru was built for the SIMD target {target}")
    assert "`make clean` before `make run` or `make test`" in said and "`pip install .`" in said


@pytest.mark.skipif("ONEGRU_TARGET" in os.environ, reason="a target is forced")
def test_the_best_target_is_chosen() -> None:
    targets = onegru.targets()
    assert targets.chosen == targets.available[0]


@pytest.mark.parametrize("target", onegru.targets().available)
def test_environment_forces_a_target(target: str) -> None:
    result = import_with(target)
    assert result.stdout == f"{target}\n", result.stderr


def test_an_empty_environment_variable_forces_nothing() -> None:
    assert import_with("").stdout == f"{onegru.targets().available[0]}\n"


@pytest.mark.parametrize("target", ["nope", "AVX2 ", "avx2,sse4"])
def test_an_unknown_target_is_refused(target: str) -> None:
    result = import_with(target)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"onegru.SpecError: ONEGRU_TARGET: {target!r}; must be one of "
        f"{', '.join(onegru.targets().available)}, the targets for this CPU in this build"
    )


def test_selecting_a_target() -> None:
    before = _native.chosen_target()
    try:
        for target in _native.available_targets():
            assert _native.select_target(target) == target == onegru.targets().chosen
        with pytest.raises(ValueError, match="available here"):
            _native.select_target("nope")
        assert onegru.targets().chosen == _native.available_targets()[-1]  # unchanged
        assert _native.select_target() == _native.available_targets()[0]
    finally:
        _native.select_target(before)


def test_traits() -> None:
    for target in _native.available_targets():
        _, vector_bytes = _native.target_traits(target)
        assert vector_bytes >= 1
        assert vector_bytes & (vector_bytes - 1) == 0  # a power of two
    with pytest.raises(ValueError, match="nope"):
        _native.target_traits("nope")


def test_versions() -> None:
    assert _native.version() == version("onegru") == onegru.__version__
    major, minor, _ = map(int, _native.highway_version().split("."))
    assert (major, minor) >= (1, 0)


def test_stub_names_what_the_module_has() -> None:
    stub = ast.parse((Path(onegru.__file__).parent / "_native.pyi").read_text())
    named = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert named == {name for name in dir(_native) if not name.startswith("__")}
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            arguments = [argument.arg for argument in node.args.args]
            shown = str(getattr(_native, node.name).__doc__).splitlines()[0]
            assert re.findall(r"(\w+): ", shown.partition("(")[2]) == arguments, shown
        elif isinstance(node, ast.ClassDef):
            members = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            assert members <= set(dir(getattr(_native, node.name)))


SUBINTERPRETER = """
import numpy as np
import onegru
{create}
one = np.ones((1, 12, 4), np.float32)
layer = onegru.GRU(one, one)
stream = layer.stream(1)
X = np.ones((3, 1, 4), np.float32)
out = (np.empty((3, 1, 1, 4), np.float32), np.empty((1, 1, 4), np.float32))
expected = layer(X)[0].tobytes()
for _ in range(2):
    {run}
    assert layer(X, out=out)[0].tobytes() == layer(X)[0].tobytes() == expected
    assert onegru.GRU(one, one)(X)[0].tobytes() == expected
    stream.reset()
    assert np.stack([stream.step(x, out=np.empty((1, 4), np.float32)) for x in X]).tobytes() == expected
    try:
        onegru._native.Layer(1)
    except TypeError:
        print("right")
"""

# How versions of Python make subinterpreters: the import, and a call that runs a program in a new one.
_IMPORT = "try:\\n import onegru\\nexcept ImportError as error: print(error, flush=True)"
WAYS = {
    "_xxsubinterpreters": ("_xxsubinterpreters as module", "module.run_string(module.create(), '{}')"),
    "_interpreters": ("_interpreters as module", "module.run_string(module.create('legacy'), '{}')"),
    "concurrent.interpreters": (
        "from concurrent import interpreters as module",
        "module.create().exec('{}')",
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_subinterpreter_is_refused_and_breaks_nothing(name: str) -> None:
    try:
        found = find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(f"this Python has no {name}")
    create, run = WAYS[name]
    create = create if create.startswith("from") else f"import {create}"
    code = SUBINTERPRETER.format(create=create, run=run.format(_IMPORT))
    done = run_python(code)
    assert not done.stderr
    refused = "onegru: imported in a subinterpreter; must be imported in the main one"
    if name == "_xxsubinterpreters":  # isolated ones are refused by Python itself, in its own words
        assert done.stdout.splitlines() == [refused, "right"] * 2
    assert done.stdout.splitlines()[1::2] == ["right"] * 2


# --- what the module does not know


def options(**changed: object) -> list[object]:
    zeros = [np.zeros(shape, np.float32) for shape in ((1, 6, 3), (1, 6, 2), (1, 12))]
    given = {
        "input_size": 3,
        "hidden_size": 2,
        "reversed": [False],
        "linear_before_reset": False,
        "attention": False,
        "clip": np.inf,
        "activations": [(2, 0.0, 0.0), (1, 0.0, 0.0)],
        "type": 2,
        "storage": 2,
        "planes": 1,
        "group": 0,
        "flush_subnormals": False,
        "dtype": np.dtype(np.float32),
        **dict(zip("WRB", zeros, strict=True)),
    }
    return list({**given, **changed}.values())


COUNT = len(ACTIVATIONS)
MUST_BE_KNOWN = f"must be an onegru_function, 0…{COUNT - 1}"
REFUSED: list[tuple[dict[str, object], str]] = [
    ({"activations": [(COUNT, 0.0, 0.0), (1, 0.0, 0.0)]}, f"activations: {COUNT}; {MUST_BE_KNOWN}"),
    ({"activations": [(2, 0.0, 0.0), (-1, 0.0, 0.0)]}, f"activations: -1; {MUST_BE_KNOWN}"),
    ({"activations": []}, "reversed: 1 directions, activations: 0; must be 1 or 2, and two for each"),
    ({"reversed": [False] * 3}, "reversed: 3 directions, activations: 2; must be 1 or 2, and two for each"),
    ({"type": 4}, "dtype: 4; must be float16, bfloat16, float32 or float64, 0…3"),
    ({"type": -1}, "dtype: -1; must be float16, bfloat16, float32 or float64, 0…3"),
    ({"storage": 5}, "weight_storage: 5; must be float16, bfloat16, float32 or int8: 0, 1, 2 or 4"),
    ({"storage": 3}, "weight_storage: 3; must be float16, bfloat16, float32 or int8: 0, 1, 2 or 4"),
    ({"attention": 3}, "attention: 3; must be an onegru_attention, 0…2"),
    ({"planes": 2}, "activation_bits: 16; must be 0 unless weight_storage is int8, or bfloat16 in"),
    ({"storage": 4, "planes": 3}, "activation_bits: 24; must be 8 or 16"),
    ({"group": 32}, "group: 32; must be 0 unless weight_storage is int8"),
    ({"storage": 4, "group": 6}, "group: 6; must be a multiple of 4"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_what_the_module_does_not_know_is_refused(changed: dict[str, object], message: str) -> None:
    make: Any = _native.Layer
    make(*options())
    with pytest.raises(ValueError, match=re.escape(message)):
        make(*options(**changed))


def test_unknown_numbers_elsewhere() -> None:
    numbers = np.zeros(16, np.float32)
    with pytest.raises(ValueError, match=f"activations: {COUNT}; must be"):
        _native.activate(COUNT, 0.0, 0.0, numbers, numbers.copy())
    with pytest.raises(ValueError, match="most: 'mish'; must be simd, vnni or amx"):
        _native.limit_int8_products("mish")
    weights: Any = [[np.zeros(shape, np.float32) for shape in ((6, 3), (6, 2))] + [None, None]]
    trained: Any = _native.Layer
    for order in ((0, 1, 3), (0, 0, 1)):
        with pytest.raises(ValueError, match=r"order: [03]; must be each of 0, 1, 2 once"):
            trained(*options()[:8], np.dtype(np.float32), weights, order, True)
    unpacked = trained(*options()[:8], np.dtype(np.float32), weights, (0, 1, 2), False)
    X = np.ones((2, 1, 3), np.float32)
    stream = _native.Stream(unpacked, np.zeros((1, 2), np.float32))
    for run in (
        lambda: stream.run(X, None, None, np.zeros((2, 1, 1, 2), np.float32)),
        lambda: unpacked.run(X, None, None, None, None, None, False),
        lambda: unpacked.set_name("unpacked"),
    ):
        with pytest.raises(ValueError, match="no weights are packed"):
            run()


OLDER = "build it again: `make run` or `make test`"


@pytest.mark.parametrize("old", ["", None, native.INTERFACE.replace("Softplus", "Softplus Newest")])
def test_another_module_is_refused(old: str | None) -> None:
    native.check_module(_native.interface())
    with pytest.raises(ImportError, match=OLDER):
        native.check_module(old)


def test_a_tree_that_knows_more_than_its_module_says_so() -> None:
    code = """
        import importlib.util, sys
        from pathlib import Path

        class Newer:  # the package's table of activations, with one more
            def find_spec(self, name, path=None, target=None):
                if name != "onegru.core.activations":
                    return None
                self.path = Path(path[0], "activations.py")
                return importlib.util.spec_from_loader(name, self, origin=str(self.path))
            def create_module(self, spec):
                return None
            def exec_module(self, module):
                row = "_KINDS = (\\n"
                text = self.path.read_text(encoding="utf-8")
                assert row in text
                new = 'ActivationKind("Newest", "x", None),'
                exec(text.replace(row, row + new), vars(module))

        sys.meta_path.insert(0, Newer())
        import onegru
    """
    done = run_python(code, status=1)
    assert OLDER in done.stderr.splitlines()[-1]
