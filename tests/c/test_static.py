"""libonegru.a where a program or a plug-in links it: layers made before main, a plug-in that is closed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.c.library import needs_library
from tests.c.test_install import build_folder, run
from tests.support.machine.repository import ROOT

pytestmark = [needs_library, pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux")]

# Layers of equal weights, and the last number of a call.
LAYER = """
#include <onegru.hpp>
#include <cstdio>
#include <vector>
inline onegru::Layer Make(unsigned I, unsigned H, int direction) {
  onegru_spec spec;
  onegru_spec_init(&spec, I, H);
  spec.direction = direction;
  const std::size_t D = direction == ONEGRU_BIDIRECTIONAL ? 2 : 1;
  const std::vector<float> W(D * 3 * H * I, 0.1f), R(D * 3 * H * H, 0.001f);
  return onegru::Layer(spec, W, R);
}
inline float Last(const onegru::Layer& layer, std::size_t T, std::size_t B) {
  const std::size_t I = layer.spec().input_size, H = layer.spec().hidden_size, D = layer.directions();
  std::vector<float> X(T * B * I, 0.3f), Y(T * D * B * H);
  onegru_call call{};
  call.T = T, call.B = B, call.X = X.data(), call.Y = Y.data();
  layer.Run(call);
  return Y.back();
}
"""

BEFORE_MAIN = (
    LAYER
    + """
static const onegru::Layer layer = Make(8, 24, ONEGRU_FORWARD);
static const float first = [] {
  onegru_set_num_threads(2);
  return Last(Make(64, 1024, ONEGRU_BIDIRECTIONAL), 20, 1);
}();
int main() {
  const bool is_same = first == Last(Make(64, 1024, ONEGRU_BIDIRECTIONAL), 20, 1);
  std::puts(is_same && Last(layer, 5, 2) == Last(Make(8, 24, ONEGRU_FORWARD), 5, 2) ? "same" : "different");
}
"""
)

PLUGIN = (
    LAYER
    + """
extern "C" __attribute__((visibility("default"))) float use() {
  onegru_set_num_threads(2);
  return Last(Make(40, 256, ONEGRU_FORWARD), 20, 8);
}
"""
)

# As audio hosts do: a thread uses the plug-in, ends, and only then is the plug-in closed.
HOST = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static float (*use)(void);
static void* audio(void* nothing) { return use(), nothing; }
int main(int count, char** arguments) {
  for (int i = 0; i < atoi(arguments[2]); ++i) {
    void* plugin = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (plugin == NULL) return puts(dlerror()), 2;
    *(void**)&use = dlsym(plugin, "use");
    pthread_t thread;
    pthread_create(&thread, NULL, audio, NULL);
    pthread_join(thread, NULL);
    dlclose(plugin);
    usleep(200);  // a worker that sleeps wakes up, if it is to crash
  }
  return 0;
}
"""


def compiled(folder: Path, source: str, *options: str) -> Path:
    """A program in C++, linked with the static library and all that it needs."""
    library = build_folder() / "libonegru.a"
    if not library.exists():
        pytest.skip("libonegru.a is not built")
    (found,) = re.findall(r"^Libs\.private: (.*)$", (build_folder() / "onegru.pc").read_text(), re.MULTILINE)
    (folder / "source.cc").write_text(source)
    flags = ["-O1", "-std=c++20", "-fvisibility=hidden", f"-I{ROOT / 'native' / 'c'}", *options]
    made = folder / "made"
    run(["c++", *flags, folder / "source.cc", library, *found.split(), "-o", made])
    return made


def finished(command: Sequence[object]) -> str:
    """What a program prints; a signal that ended it is named."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def test_layers_before_main(tmp_path: Path) -> None:
    """The initialisers of a program may run before those of the library."""
    assert finished([compiled(tmp_path, BEFORE_MAIN)]) == "same\n"


def test_a_plug_in_that_is_closed_after_each_use(tmp_path: Path) -> None:
    """Its worker threads outlive it, so it stays in memory."""
    (tmp_path / "symbols").write_text("{ global: use; local: *; };")
    script = f"-Wl,--version-script={tmp_path / 'symbols'}"
    plugin = compiled(tmp_path, PLUGIN, "-shared", "-fPIC", script)
    (tmp_path / "host.c").write_text(HOST)
    run(["cc", tmp_path / "host.c", "-o", tmp_path / "host", "-ldl", "-pthread"])
    finished([tmp_path / "host", plugin, 1000])
