"""libonegru as it is installed: the example by pkg-config and CMake, with Python's bits; real time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from tests.c.library import needs_library
from tests.support.layers import normal_gru
from tests.support.machine.repository import ROOT

pytestmark = [needs_library, pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux")]

EXAMPLE = ROOT / "examples" / "c"
CMAKE = Path(sys.executable).with_name("cmake")
PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(denoiser LANGUAGES CXX)
find_package(onegru 0.1 REQUIRED)
foreach(library onegru onegru_static)
  add_executable(by_${{library}} "{source}")
  target_compile_features(by_${{library}} PRIVATE cxx_std_20)
  target_link_libraries(by_${{library}} PRIVATE onegru::${{library}})
endforeach()
"""


def build_folder() -> Path:
    """The build that has libonegru, the newest one."""
    return max(ROOT.glob("build/module-*/libonegru.so"), key=lambda path: path.stat().st_mtime).parent


def run(command: Sequence[object], **environment: str) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("installed")
    run([CMAKE, "--install", build_folder(), "--component", "c", "--prefix", place])
    return place


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A noisy tone as a WAV file, and the samples that Python makes of it."""
    path = tmp_path_factory.mktemp("sound") / "noisy.wav"
    rng = np.random.default_rng(5)
    signal = 0.5 * np.sin(0.05 * np.arange(4003)) + 0.2 * rng.standard_normal(4003)
    samples = np.clip(np.rint(32767 * signal), -32768, 32767).astype(np.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(samples.tobytes())
    layers = onegru.load_layers(EXAMPLE / "denoiser.safetensors")
    (stack,) = layers.values()
    frames = samples[:4000].reshape(-1, 1, 16).astype(np.float32) / np.float32(32768)
    heard = frames
    assert isinstance(stack, onegru.Stack)
    for layer in stack.layers:
        heard = layer.stream().run(heard)
    want = samples.copy()
    want[:4000] = np.rint(np.float32(32767) * heard.ravel())
    clean = 0.5 * np.sin(0.05 * np.arange(4000))
    assert np.mean((heard.ravel() - clean) ** 2) < 0.1 * np.mean((frames.ravel() - clean) ** 2)
    return path, want


def check(program: Path, sound: tuple[Path, np.ndarray], **environment: str) -> None:
    clean = program.with_suffix(".wav")
    run([program, EXAMPLE / "denoiser.safetensors", sound[0], clean], **environment)
    with wave.open(str(clean), "rb") as file:
        found = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    assert np.array_equal(found, sound[1])
    layers, text = EXAMPLE / "denoiser.safetensors", EXAMPLE / "README.md"
    for arguments in ([], [text, sound[0], clean], [sound[0]] * 3, [layers, text, clean]):
        done = subprocess.run(
            [program, *arguments],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        assert done.returncode == 1 and done.stderr.startswith("denoiser: ") and done.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="no pkg-config")
@pytest.mark.parametrize("static", [False, True])
def test_the_example_by_pkg_config(
    prefix: Path, sound: tuple[Path, np.ndarray], tmp_path: Path, static: bool
) -> None:
    (package,) = prefix.rglob("onegru.pc")
    found = {"PKG_CONFIG_PATH": str(package.parent)}
    flags = run(
        ["pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "onegru"], **found
    ).split()
    if static:  # a linker takes the shared one of two
        flags = [flag.replace("-lonegru", "-l:libonegru.a") for flag in flags]
    program = tmp_path / "denoiser"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    run(["c++", "-std=c++20", "-O1", *warnings, EXAMPLE / "denoiser.cc", "-o", program, *flags])
    libraries = run(["pkg-config", "--variable=libdir", "onegru"], **found).strip()
    check(program, sound, **({} if static else {"LD_LIBRARY_PATH": libraries}))


def test_the_example_by_cmake(prefix: Path, sound: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(source=EXAMPLE / "denoiser.cc"), encoding="utf-8")
    run([CMAKE, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"])
    run([CMAKE, "--build", tmp_path / "build"])
    for library in ("onegru", "onegru_static"):
        check(tmp_path / "build" / f"by_{library}", sound)


@pytest.mark.long
def test_a_first_configuration_knows_the_headers_folder(tmp_path: Path) -> None:
    run([CMAKE, "-S", ROOT, "-B", tmp_path])
    (targets,) = tmp_path.glob("CMakeFiles/Export/*/onegru-targets.cmake")
    assert targets.read_text(encoding="utf-8").count("${_IMPORT_PREFIX}/include") == 2


def test_a_program_in_c(prefix: Path, tmp_path: Path) -> None:
    """The header is C, and the library has no symbols but its own."""
    source = tmp_path / "program.c"
    source.write_text(
        """
        #include "onegru.h"
        int main(void) { return onegru_version() != ONEGRU_VERSION_MAJOR * 65536 + ONEGRU_VERSION_MINOR; }
        """,
        encoding="utf-8",
    )
    (header,) = prefix.rglob("onegru.h")
    (library,) = prefix.rglob("libonegru.so")
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{header.parent}"]
    run(["cc", *strict, source, "-o", tmp_path / "program", library, f"-Wl,-rpath,{library.parent}"])
    run([tmp_path / "program"])
    names = {line.split()[-1] for line in run(["nm", "-D", "--defined-only", library]).splitlines()}
    assert len(names) == 19 and all(name.startswith("onegru_") for name in names)


@pytest.mark.parametrize(
    "options", [{}, {"weight_storage": "bfloat16"}, {"weight_storage": "int8"}, {"attention": True}]
)
@pytest.mark.parametrize("sizes", [(1, 3), (16, 48), (130, 200)])
def test_steps_of_real_time(tmp_path: Path, sizes: tuple[int, int], options: dict[str, Any]) -> None:
    path, built = tmp_path / "layer.safetensors", build_folder()
    onegru.save_layers(normal_gru(*sizes, **options), path)
    assert ": 0 allocations, 0 locks;" in run([built / "onegru_real_time", built / "libonegru.so", path, 300])


def test_a_plug_in_with_the_static_library_is_closed_in_itself(prefix: Path, tmp_path: Path) -> None:
    """It needs no library of ours at run time, and exports only its own function."""
    (tmp_path / "plug_in.cc").write_text(
        """
        #include <onegru.hpp>
        extern "C" __attribute__((visibility("default"))) unsigned entry(const char* path) {
          return onegru::Layer::Open(path).spec().hidden_size;
        }
        """,
        encoding="utf-8",
    )
    (header,) = prefix.rglob("onegru.h")
    (archive,) = prefix.rglob("libonegru.a")
    (shared,) = prefix.rglob("libonegru.so")
    plug_in = tmp_path / "plug_in.so"
    flags = ["-O1", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{header.parent}"]
    run(["c++", *flags, tmp_path / "plug_in.cc", archive, "-pthread", "-Wl,--no-undefined", "-o", plug_in])
    exported = run(["nm", "-D", "--defined-only", plug_in]).split()
    assert "entry" in exported and not any("onegru" in name for name in exported)
    for library in (plug_in, shared):
        needed = re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", library]))
        assert needed and not any(name.startswith("libhwy") for name in needed)
