"""Test a build without some kernels: its errors say how to add them, and nothing else differs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.machine.repository import ROOT
from tests.support.machine.systems import linux

CXX = os.environ.get("CXX", "c++")
CMAKE = Path(sys.executable).with_name("cmake")
pytestmark = [linux, pytest.mark.skipif(shutil.which(CXX) is None, reason="needs a C++ compiler")]

KINDS = ("FLOAT64", "FLOAT16", "BFLOAT16", "INT8", "GRADIENTS")
PROGRAM = """
#include <cstdio>

#include "native/kernel_table.cc"

namespace onegru {
const Kernel& Float32Kernel(std::size_t) {
  static const Kernel kernel{};
  return kernel;
}
}  // namespace onegru

template <class F>
void Print(F&& find) {
  try {
    find();
    std::puts("found");
  } catch (const onegru::Unsupported& error) {
    std::puts(error.what());
  }
}

int main() {
  using onegru::ElementType;
  for (const ElementType storage : {ElementType::kFloat32, ElementType::kFloat64, ElementType::kFloat16,
                                    ElementType::kBFloat16, ElementType::kInt8}) {
    Print([&] {
      onegru::Spec spec{};
      spec.storage = storage;
      onegru::KernelFor(spec, 0);
    });
  }
  Print([] { onegru::GradientKernelFor(ElementType::kFloat32, 0); });
  Print([] { onegru::FewStepsFor(ElementType::kFloat32, 0); });
}
"""


def run(command: Sequence[object]) -> str:
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_message_names_the_command_that_adds_a_kernel(tmp_path: Path) -> None:
    source, program = tmp_path / "kernels.cc", tmp_path / "kernels"
    source.write_text(PROGRAM)
    absent = [f"-DONEGRU_HAS_{kind}=0" for kind in KINDS]
    run([CXX, "-std=c++20", "-O0", f"-I{ROOT}", *absent, source, "-pthread", "-o", program])
    found, *messages = run([program]).splitlines()
    assert found == "found"
    names = ["float64", "float16 weights", "bfloat16 weights", "int8 weights"]
    names += 2 * ["training and PyTorch modules"]
    assert messages == [
        f"this build of onegru has no kernels for {name}; add them with `make kernels`, or with CMake's "
        "-DONEGRU_STORAGES=all -DONEGRU_GRADIENTS=ON"
        for name in names
    ]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^kernels: \$\(VENV\)/\.examples", makefile, re.MULTILINE)


def commands(folder: Path, **options: str) -> dict[str, str]:
    """Return the command that compiles each unit of onegru, without the names of folders."""
    defines = {
        "ONEGRU_TARGETS": "native",
        "ONEGRU_PYTHON": "OFF",
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
        "CMAKE_MAKE_PROGRAM": str(CMAKE.with_name("ninja")),
        **options,
    }
    run([CMAKE, "-S", ROOT, "-B", folder, "-G", "Ninja", *(f"-D{name}={defines[name]}" for name in defines)])
    units = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    return {Path(unit["output"]).name: unit["command"].replace(str(folder), "") for unit in units}


@pytest.mark.long
@pytest.mark.skipif(not CMAKE.exists(), reason="needs CMake next to Python")
def test_a_build_with_some_kernels_compiles_all_other_units_alike(tmp_path: Path) -> None:
    some = commands(tmp_path / "some", ONEGRU_STORAGES="float32", ONEGRU_GRADIENTS="OFF")
    every = commands(tmp_path / "every", ONEGRU_STORAGES="all", ONEGRU_GRADIENTS="ON")
    assert {name for name in some if some[name] != every[name]} == {"kernel_table.cc.o"}
    extra = {name for name in every if name not in some}
    assert {name for name in extra if "_i8" not in name} == {
        *("kernels_f64.cc.o", "kernels_f16.cc.o", "kernels_bf16.cc.o", "kernels_bf16_rounded.cc.o"),
        *("gradients_f32.cc.o", "gradients_f64.cc.o"),
    }
    assert len(extra) == 8
