"""Processes that onegru starts: what they import, what they may take, what is believed of their answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import onegru
from onegru import FormatError
from onegru.formats import keras_archive
from onegru.system import child_process
from onegru.system.child_process import READING, Limits, read_answer, run_child
from tests.support.files.keras_files import keras_3
from tests.support.files.onnx_models import graph, gru, model, save, value, weights
from tests.support.machine.processes import Done, run_python
from tests.support.machine.systems import linux, posix

# Modules that a child, or a library in it, imports; each notes that it was run.
PLANTS = (
    *(
        "json",
        "numpy",
        "h5py",
        "zipfile",
        "pickle",
        "onnxruntime",
        "openvino",
        "onnx",
        "re",
        "runpy",
        "random",
    ),
    *("sitecustomize", "usercustomize", "onegru", "signal", "resource", "ml_dtypes", "tempfile", "typing"),
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with models, and with modules that write a file `marker` next to it."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    for name in PLANTS:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'a').write(__name__ + ' ')")
    keras_3(folder / "x.keras")
    keras_3(folder / "x.h5")
    proto = graph([gru("X", ["Y"], bias="B")], [value("X", shape=[2, 1, 5])], ["Y"], weights())
    save(folder, model(proto), "x.onnx")
    return folder


def python(folder: Path, code: str, *arguments: str) -> Done:
    return run_python(code, *arguments, status=None, options=("-P",), folder=folder)


COMMANDS = (
    "convert x.keras a.onnx",
    "convert x.h5 b.safetensors",
    "convert x.onnx c.xml",
    "rewrite x.onnx d.onnx --layout 1",
    "inspect x.onnx",
    "run x.onnx --random 0",
    "bench x.onnx --random 0 --rounds 1",
    "verify x.onnx --random 0",
    "verify x.onnx --random 0 --against x.keras",
    "targets",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_import_nothing_of_the_current_folder(hostile: Path, command: str) -> None:
    pytest.importorskip("typer")
    result = python(hostile, "import sys; from onegru.cli import main; sys.exit(main())", *command.split())
    assert not (hostile.parent / "marker").exists(), (hostile.parent / "marker").read_text()
    assert result.returncode in (0, 1), result.stderr


# Once where it is clean, so that this process imports nothing later; then where it is not.
FUNCTIONS = """
import os, sys
import numpy as np
import onegru

def work():
    assert onegru.load_layers("x.keras") and onegru.load_layers("x.h5") and onegru.load_layers("x.onnx")
    found = onegru.verify("x.onnx", {"X": np.ones((2, 1, 5), np.float32)})
    assert all(item.status == "agrees" for item in found.runtimes), found

os.chdir(sys.argv[1])
work()
os.chdir(sys.argv[2])
sys.path[:0] = ["", ".", os.getcwd()]
os.environ.update(PYTHONPATH=":" + os.getcwd(), PYTHONSTARTUP="json.py", PYTHONINSPECT="1")
os.environ["PYTHONHOME"] = os.getcwd()
work()
"""


@pytest.mark.long
def test_functions_import_nothing_of_the_current_folder(hostile: Path, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    clean.mkdir()
    for name in ("x.keras", "x.h5", "x.onnx"):
        (clean / name).write_bytes((hostile / name).read_bytes())
    result = python(tmp_path, FUNCTIONS, str(clean), str(hostile))
    assert not (tmp_path / "marker").exists(), (tmp_path / "marker").read_text()
    assert result.returncode == 0, result.stderr


@posix
def test_onegru_in_the_current_folder_is_found(tmp_path: Path) -> None:
    """It comes last there: what hides another module is still not imported."""
    copy = tmp_path / "onegru"
    copy.mkdir()
    for part in (*Path(onegru.__file__).parent.iterdir(), Path(onegru._native.__file__ or "")):
        if not (copy / part.name).exists():
            (copy / part.name).symlink_to(part)
    (tmp_path / "json.py").write_text("open('marker', 'w')")
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
sys.meta_path[:] = [finder for finder in sys.meta_path if isinstance(finder, type)]  # no editable install
import onegru
assert onegru.__file__.startswith(sys.argv[1]), onegru.__file__
onegru.load_layers("x.keras")
"""
    keras_3(tmp_path / "x.keras")
    result = python(tmp_path, code, str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "marker").exists()


# ---- limits, by modules that are there for these tests


def child(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module whose `main` does this; its name."""
    modules = folder / "modules"
    modules.mkdir()
    (modules / "body_of_a_child.py").write_text(f"def main(arguments):\n    {body}\n")
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.chdir(folder)
    return "body_of_a_child"


@linux
@pytest.mark.parametrize(
    ("body", "limits", "code", "words"),
    [
        ("import time; time.sleep(60)", Limits(2, 30, 4 << 30), None, ""),
        ("while True: pass", Limits(60, 2, 4 << 30), -signal.SIGKILL, ""),
        ("bytearray(3 << 30)", Limits(60, 30, 2 << 30, 1), 1, "MemoryError"),
        ("import os; os.abort()", Limits(60, 30, 4 << 30), -signal.SIGABRT, ""),
        ("assert input() == 'x'", Limits(60, 30, 4 << 30), 1, "EOFError: EOF when reading a line"),
    ],
    ids=["sleeps", "computes", "takes memory", "crashes", "reads"],
)
def test_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, limits: Limits, code: int | None, words: str
) -> None:
    began = time.monotonic()
    ended = run_child(child(tmp_path, body, monkeypatch), [], tmp_path, limits)
    assert ended.code == code and (ended.error == words or not words)
    assert time.monotonic() - began < 30


def is_gone(number: int) -> bool:
    """Whether a process ends within 10 s."""
    state, deadline = Path(f"/proc/{number}/stat"), time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@linux
def test_what_a_child_starts_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = "import subprocess, time; p = subprocess.Popen(['sleep', '60'])"
    body = f"{starts}; print(p.pid, file=open('pid', 'w'), flush=True); time.sleep(60)"
    run_child(child(tmp_path, body, monkeypatch), [], tmp_path, Limits(3, 30, 4 << 30))
    assert is_gone(int((tmp_path / "pid").read_text()))


@posix
def test_an_interrupt_ends_the_child(hostile: Path, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "slow.py").write_text(
        "import os, time\n"
        "def main(arguments):\n    open(arguments[0], 'w').write(str(os.getpid()))\n    time.sleep(60)"
    )
    code = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in a shell's background ignores
sys.path.insert(0, sys.argv[1])
from onegru.system.child_process import READING, run_child
run_child("slow", [sys.argv[2]], Path(sys.argv[3]), READING)
"""
    place = tmp_path / "work"
    place.mkdir()
    command = [sys.executable, "-c", code, str(tmp_path / "modules"), str(tmp_path / "pid"), str(place)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@posix
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import os; os.abort()", "the reading process ended with -6"),
        ("raise SystemExit('words')", "the reading process ended with 1: words"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "not read within 30 s of CPU time"),
        ("open('answer', 'w')", "the reading process returned"),
    ],
)
def test_a_library_that_crashes_takes_only_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    monkeypatch.setattr(keras_archive, "_READER", child(tmp_path, body, monkeypatch))
    with pytest.raises(FormatError, match=message):
        onegru.load_layers(keras_3(tmp_path / "x.keras"))


# ---- answers


def answer(folder: Path, head: object, data: bytes = b"") -> None:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    (folder / "answer").write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_answers_that_are_right(tmp_path: Path) -> None:
    answer(tmp_path, {"x": 1, "arrays": [["float32", [2]], ["<U2", [1]], ["int64", [0, 3]]]}, bytes(16))
    head, arrays = read_answer(tmp_path)
    assert head == {"x": 1}
    assert [(array.dtype, array.shape) for array in arrays] == [
        (np.dtype("float32"), (2,)),
        (np.dtype("<U2"), (1,)),
        (np.dtype("int64"), (0, 3)),
    ]


@pytest.mark.parametrize(
    ("head", "data"),
    [
        (b"", b""),
        (b"[" * 10_000 + b"]" * 10_000, b""),
        (b"nonsense", b""),
        ([], b""),
        ({}, b""),
        ({"arrays": [["object", [1]]]}, bytes(8)),
        ({"arrays": [["float32,float32", [1]]]}, bytes(8)),
        ({"arrays": [["float32,(", [1]]]}, bytes(8)),
        ({"arrays": [["str", [1]]]}, bytes(8)),
        ({"arrays": [["float32", [1 << 62, 1 << 62]]]}, bytes(8)),
        ({"arrays": [["float32", [-1]]]}, bytes(8)),
        ({"arrays": [["float32", [True]]]}, bytes(4)),
        ({"arrays": [["float32", [2]]]}, bytes(7)),
        ({"arrays": [["float32", [2]]]}, bytes(9)),
        ({"arrays": [["float32"]]}, bytes(9)),
        ({"arrays": [[["float32"], [2]]]}, bytes(8)),
    ],
)
def test_answers_that_are_wrong(tmp_path: Path, head: object, data: bytes) -> None:
    answer(tmp_path, head, data)
    with pytest.raises(ValueError):
        read_answer(tmp_path)


@posix
def test_answers_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_answer(tmp_path)
    (tmp_path / "answer").symlink_to("/etc/passwd")
    with pytest.raises(ValueError):
        read_answer(tmp_path)
    (tmp_path / "answer").unlink()
    os.mkfifo(tmp_path / "answer")
    with pytest.raises(ValueError):
        read_answer(tmp_path)


# What a hostile child does to its files. Loops end after seconds, because what escapes its group outlives it.
_BEGIN = """
    import ctypes, json, os, pathlib, signal, socket, subprocess, sys, threading, time
    answer = pathlib.Path("answer")
    def valid(path="answer", size=0):
        head = json.dumps({"layers": [], "others": [], "held": [], "is_chain": False, "arrays": []}).encode()
        pathlib.Path(path).write_bytes(len(head).to_bytes(8, "little") + head)
    def escaped(work):  # a process outside the group, which works for some seconds
        ready, ready_writer = os.pipe()
        if os.fork():
            os.read(ready, 1)
            return
        os.setsid()
        end = time.monotonic() + 8
        while time.monotonic() < end:
            if ready_writer:
                threading.Timer(0.2, os.write, (ready_writer, b"x")).start()
                ready_writer = 0
            work()
        os._exit(0)
    def swap():
        os.mkfifo("pipe"); os.rename("pipe", "answer"); valid("file"); os.rename("file", "answer")
    def trace():
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long] * 4
        libc.ptrace(0x4206, victim, 0, 0)  # PTRACE_SEIZE
        time.sleep(1)
    def lease(held=[]):
        import fcntl
        held.append(open("answer", "r+"))
        fcntl.fcntl(held[0], fcntl.F_SETLEASE, fcntl.F_WRLCK)
        time.sleep(5)
    secret, victim = pathlib.Path(arguments[0]).with_name("secret"), os.getpid()
"""
HOSTILE = {
    "stderr is a pipe": "answer.unlink(True); [os.unlink(n) for n in os.listdir()]; os.mkfifo('said'); 1 / 0",
    "stderr is a link": "[os.unlink(n) for n in os.listdir()]; os.symlink(secret, 'said'); sys.exit(1)",
    "stderr grows": "escaped(lambda: os.write(2, b'x' * 65536)); sys.exit(1)",
    "stderr has other flags": "import fcntl; fcntl.fcntl(2, fcntl.F_SETFL, os.O_DIRECT); 1 / 0",
    "a pipe": "os.mkfifo('answer')",
    "a pipe with a writer": "os.mkfifo('answer'); f = os.open('answer', os.O_RDWR); escaped(lambda: None)",
    "a link": "answer.symlink_to(secret)",
    "a link to itself": "answer.symlink_to(answer)",
    "a second name of a file": "valid(secret.with_name('other')); os.link(secret.with_name('other'), answer)",
    "a folder": "answer.mkdir()",
    "a socket": "socket.socket(socket.AF_UNIX).bind('answer')",
    "a device": "os.mknod('answer', 0o020600, os.makedev(1, 5))",
    "a file that grows": "escaped(lambda: answer.open('ab').write(b'x' * 65536)); sys.exit(0)",
    "a file that is replaced": "escaped(swap); sys.exit(0)",
    "a sparse file": "valid(); os.truncate('answer', 1 << 31)",
    "a lease": "valid(); escaped(lease)",
    "no folder": "os.rename(os.getcwd(), os.getcwd() + '-'); os.symlink('/etc', os.getcwd()[:-1])",
    "another folder": (
        "other = secret.with_name('other'); other.mkdir(); valid(other / 'answer'); "
        "here = os.getcwd(); os.rename(here, here + '-'); os.symlink(other, here)"
    ),
    "deep folders": "[(os.mkdir('d'), os.chdir('d')) for _ in range(3000)]",
    "stops": "os.kill(os.getpid(), signal.SIGSTOP)",
    "is traced": "escaped(trace); time.sleep(60)",
}


@linux
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a child that is traced
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_whatever_a_hostile_child_does_to_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    """The parent goes on in bounded time, and tells nothing of another file."""
    (tmp_path / "secret").write_text("the secret\n")
    monkeypatch.setattr(keras_archive, "_READER", child(tmp_path, f"{_BEGIN}    {body}", monkeypatch))
    monkeypatch.setattr(keras_archive, "READING", replace(READING, seconds=6.0))
    monkeypatch.setattr(child_process, "_END_SECONDS", 1.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    began = time.monotonic()
    with pytest.raises(FormatError, match=r"x\.keras: not (a model|read within)") as caught:
        onegru.load_layers(keras_3(tmp_path / "x.keras"))
    assert "secret" not in str(caught.value)
    assert time.monotonic() - began < 20
    assert (tmp_path / "secret").read_text() == "the secret\n"
    subprocess.run(["rm", "-rf", *map(str, tmp_path.glob("onegru-*"))], check=False)  # deep folders are left


def test_an_answer_larger_than_half_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(tmp_path, {"arrays": [["uint8", [1000]]]}, bytes(1000))
    monkeypatch.setattr(child_process, "memory_size", lambda: 1500)
    with pytest.raises(ValueError, match="must fit into half of the memory"):
        read_answer(tmp_path)


@linux
def test_what_a_child_started_ends_with_a_child_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = "import subprocess; p = subprocess.Popen(['sleep', '60']); open('pid', 'w').write(str(p.pid))"
    run_child(child(tmp_path, starts, monkeypatch), [], tmp_path, Limits(30, 30, 4 << 30))
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    "head",
    [
        {"layers": [["gru", "GRU", {}, 4]]},
        {"layers": [["gru", "GRU", {}, -1]]},
        {"layers": [["gru", "GRU", [], 0]]},
        {"layers": [["gru", 3, {}, 0]]},
        {"layers": [[]]},
        {"layers": 3},
    ],
)
def test_a_reading_process_that_has_gone_astray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: object
) -> None:
    monkeypatch.setattr(keras_archive, "read_answer", lambda folder: (head, []))
    with pytest.raises(FormatError, match=r"x\.keras: not a model that Keras saved"):
        onegru.load_layers(keras_3(tmp_path / "x.keras"))


def test_the_limits_of_reading_suit_honest_files() -> None:
    assert READING.cpu_seconds <= 30 and READING.seconds <= 60


def test_a_child_that_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = "from onegru.system.child_process import write_answer"
    body = f"import time; {write}; [write_answer({{'it': name}}, name=name) for name in 'ab']; time.sleep(60)"
    module = child(tmp_path, body, monkeypatch)

    class Enough(Exception):
        pass

    def watch() -> None:
        if (tmp_path / "b").exists():
            raise Enough

    with pytest.raises(Enough):
        run_child(module, [], tmp_path, READING, watch)
    assert [read_answer(tmp_path, name)[0] for name in "ab"] == [{"it": "a"}, {"it": "b"}]
    limits = Limits(seconds=1.0, cpu_seconds=10, memory=READING.memory)
    assert run_child(module, [], tmp_path, limits, lambda: None).code is None
