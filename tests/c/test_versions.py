"""Programs and libraries of different versions of onegru.h."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.c.library import LIBRARY, CSpec, needs_library
from tests.c.test_install import build_folder, run
from tests.support.machine.repository import ROOT

pytestmark = [needs_library, pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux")]

HEADER = (ROOT / "native" / "c" / "onegru.h").read_text(encoding="utf-8")
PROGRAM = """
#include "onegru.h"
#include <stdio.h>

static int failed(const char* name) { return printf("%s: %s\\n", name, onegru_error_message()), 1; }

int main(void) {
  struct { onegru_spec spec; unsigned char after[64]; } first, second;
  struct { onegru_call call; unsigned char after[64]; } given;
  float W[36], R[48], X[6], Y[8];
  size_t i;
  onegru_layer* layer;
  for (i = 0; i < 36; ++i) W[i] = 0.1f * (float)(i % 5);
  for (i = 0; i < 48; ++i) R[i] = 0.1f * (float)(i % 7) - 0.3f;
  for (i = 0; i < 6; ++i) X[i] = (float)i;
  memset(&first, 0xaa, sizeof(first));
  memset(&second, 0xaa, sizeof(second));
  memset(&given, 0xaa, sizeof(given));
  onegru_spec_init(&first.spec, 3, 4);
  onegru_call_init(&given.call, 2, 1);
  SET;
  given.call.X = X;
  given.call.Y = Y;
  if (onegru_layer_create(&first.spec, W, R, NULL, &layer) != ONEGRU_OK) return failed("create");
  second.spec.size = sizeof(second.spec);
  if (onegru_layer_spec(layer, &second.spec) != ONEGRU_OK) return failed("spec");
  if (onegru_layer_run(layer, &given.call) != ONEGRU_OK) return failed("run");
  if (memcmp(&first.spec, &second.spec, 40) != 0) return puts("another spec"), 1;
  for (i = 0; i < sizeof(first.after); ++i) {
    if (first.after[i] != 0xaa || second.after[i] != 0xaa) return puts("written beyond the structure"), 1;
  }
  printf("%.9g %.9g\\n", Y[0], Y[7]);
  return 0;
}
"""


def grown(header: str, *structures: str) -> str:
    """A header whose structures have one field more."""
    for structure in structures:
        assert header.count(f"}} {structure};") == 1
        header = header.replace(f"}} {structure};", f"  double added;\n}} {structure};")
    return header


HEADERS = {
    "this": HEADER,
    "older": re.sub(
        r"  int32_t flush_subnormals; [^\n]*\n  int32_t reserved; [^\n]*\n(?=} onegru_spec)", "", HEADER
    ),
    "newer": grown(HEADER, "onegru_spec", "onegru_options", "onegru_call"),
}


def program(folder: Path, header: str, library: Path, setting: str = "") -> subprocess.CompletedProcess[str]:
    """What the program prints that was compiled by a header and runs with a library."""
    (folder / "onegru.h").write_text(HEADERS[header], encoding="utf-8")
    (folder / "program.c").write_text(PROGRAM.replace("SET", setting), encoding="utf-8")
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{folder}"]
    run(["cc", *strict, folder / "program.c", library, "-o", folder / "program"])
    where = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    return subprocess.run([folder / "program"], check=False, capture_output=True, text=True, env=where)


def test_programs_of_older_and_newer_headers(tmp_path: Path) -> None:
    assert len(set(HEADERS.values())) == 3
    library = build_folder() / "libonegru.so"
    found = {header: program(tmp_path, header, library) for header in HEADERS}
    assert {header: done.returncode for header, done in found.items()} == dict.fromkeys(HEADERS, 0)
    assert len({done.stdout for done in found.values()}) == 1


@pytest.mark.parametrize("setting", ["first.spec.added = 1", "given.call.added = 1"])
def test_a_field_that_the_library_does_not_know_is_refused(tmp_path: Path, setting: str) -> None:
    done = program(tmp_path, "newer", build_folder() / "libonegru.so", setting)
    assert done.returncode == 1
    assert "sets a field that this version of libonegru does not know" in done.stdout


def test_programs_with_a_newer_library(tmp_path: Path) -> None:
    """The C interface is compiled with larger structures, on the kernels of the static library."""
    (tmp_path / "native" / "c").mkdir(parents=True)
    (tmp_path / "native" / "c" / "onegru.h").write_text(HEADERS["newer"], encoding="utf-8")
    library = tmp_path / "libonegru.so"
    sources = sorted((ROOT / "native" / "c").glob("*.cc"))
    flags = ["-std=c++20", "-O0", "-fPIC", f"-I{tmp_path}", f"-I{ROOT}"]
    run(["c++", "-shared", *flags, *sources, build_folder() / "libonegru.a", "-pthread", "-o", library])
    found = [program(tmp_path, header, library) for header in HEADERS]
    found.append(program(tmp_path, "this", build_folder() / "libonegru.so"))
    assert [done.returncode for done in found] == [0] * 4
    assert len({done.stdout for done in found}) == 1


def test_a_newer_structure_that_another_language_gives_is_cleared() -> None:
    """Such a program sets the size, and has no macro that clears the rest."""
    assert LIBRARY is not None
    size, known = 200, ctypes.sizeof(CSpec)
    memory = ctypes.create_string_buffer(b"\xaa" * 256, 256)
    spec = CSpec.from_buffer(memory)
    spec.size = size
    LIBRARY.onegru_spec_init(ctypes.byref(spec), 3, 4)
    assert (spec.size, spec.input_size) == (size, 3)
    assert memory.raw[known:] == bytes(size - known) + b"\xaa" * (256 - size)
