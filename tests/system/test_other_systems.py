"""What onegru does on a system that has less than Linux: an interpreter that is robbed of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machine.processes import BLOCK, run_python

ROB = (
    """
blocked = {"resource", "fcntl", "pty", "termios", "pwd", "grp"}.__contains__
"""
    + BLOCK
    + """
import os, signal, subprocess, tempfile
import numpy as np
for module, names in (
    (os, "fork killpg fchmod sched_getaffinity sysconf O_NOFOLLOW O_NONBLOCK O_CLOEXEC register_at_fork"),
    (signal, "SIGALRM setitimer alarm"),
):
    for name in names.split():
        delattr(module, name)
sys.platform = "win32"
"""
)


def test_layers_files_and_children_without_posix(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    (tmp_path / "body.py").write_text(
        "from onegru.system.child_process import write_answer\n"
        "import numpy as np, time\n"
        "def main(arguments):\n"
        "    time.sleep(float(arguments[0]))\n"
        "    write_answer({'x': 1}, [np.arange(3)])\n"
    )
    run_python(
        ROB
        + """
    from pathlib import Path
    import onegru
    from onegru.core.machine import memory_size, usable_cores, usable_cpus
    from onegru.system.child_process import Limits, read_answer, run_child

    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    assert usable_cpus() == usable_cores() >= 1 and memory_size() == 2**34
    layer = onegru.GRU(*(np.ones(s, "f") for s in ((1, 6, 3), (1, 6, 2))))
    for _ in range(2):
        onegru.save_layers(layer, folder / "layer.onnx")
    assert onegru.load_layers(folder / "layer.onnx")
    for name, seconds, code in (("quick", 0, 0), ("slow", 60, None)):
        place = folder / name
        place.mkdir()
        ended = run_child("body", [str(seconds)], place, Limits(20 if code == 0 else 2, 30, 4 << 30))
        assert ended.code == code, ended
    head, arrays = read_answer(folder / "quick")
    assert head == {"x": 1} and arrays[0].tolist() == [0, 1, 2]
    """.replace("\n    ", "\n"),
        tmp_path,
    )
