# Types of the compiled module, which native/python makes; keep the two together.

from collections.abc import Callable, Sequence
from typing import Any, overload

from numpy import dtype
from numpy.typing import ArrayLike, NDArray

class UnsupportedError(RuntimeError): ...

def interface() -> str: ...
def version() -> str: ...
def highway_version() -> str: ...
def is_native() -> bool: ...
def compiled_targets() -> list[str]: ...
def available_targets() -> list[str]: ...
def chosen_target() -> str: ...
def select_target(name: str | None = None) -> str: ...
def int8_products() -> str: ...
def limit_int8_products(most: str) -> None: ...
def target_traits(name: str) -> tuple[bool, int]: ...
def num_threads() -> int: ...
def set_num_threads(count: int, avoids_contention: bool) -> None: ...
def limit_threads(most: int) -> None: ...
def release_memory() -> int: ...
def graph_api() -> int: ...
def graph_fail(message: str, is_watched: bool, threads: int) -> bool: ...
def run_watched(run: Callable[[], object]) -> str: ...
def take_lost_errors() -> list[str]: ...
def observe(see: Callable[..., None], warn: Callable[[str], None]) -> None: ...
def set_float_mode(mode: int | None) -> int: ...
def fma_peak(seconds: float) -> float: ...
def read_bandwidth(bytes: int, seconds: float) -> float: ...
def array_at(
    owner: object, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: dtype[Any]
) -> NDArray[Any]: ...
def tensor_rows(
    api: object,
    tensors: tuple[Any, ...],
    room: tuple[int, ...],
    shapes: tuple[tuple[int, ...], ...],
    kinds: str,
    is_double: bool,
) -> list[tuple[int, int, int]] | None: ...
def few_steps_of_tensors(
    api: object,
    tensors: tuple[Any, ...],
    room: tuple[int, ...],
    sizes: tuple[int, int, int, int, int],
    forms: tuple[tuple[Any, ...], ...],
    is_cell: bool,
    is_double: bool,
    Y: int,
    Y_h: int,
) -> bool: ...
def few_steps(
    is_double: bool, sizes: tuple[int, int, int, int, int], directions: tuple[tuple[Any, ...], ...]
) -> None: ...
def few_steps_gradients(
    is_double: bool, sizes: tuple[int, int, int, int, int], directions: tuple[tuple[Any, ...], ...]
) -> None: ...
def activate(function: int, alpha: float, beta: float, x: NDArray[Any], y: NDArray[Any]) -> None: ...

class Layer:
    @overload
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        reversed: Sequence[bool],
        linear_before_reset: bool,
        attention: int,
        clip: float,
        activations: Sequence[tuple[int, float, float]],
        type: int,
        storage: int,
        planes: int,
        group: int,
        flush_subnormals: bool,
        dtype: dtype[Any],
        W: NDArray[Any],
        R: NDArray[Any],
        B: NDArray[Any],
    ) -> None: ...
    @overload
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        reversed: Sequence[bool],
        linear_before_reset: bool,
        attention: int,
        clip: float,
        activations: Sequence[tuple[int, float, float]],
        type: int,
        dtype: dtype[Any],
        weights: Sequence[list[NDArray[Any] | None]],
        order: Sequence[int],
        packs: bool,
    ) -> None: ...
    def run(
        self,
        X: NDArray[Any],
        initial_h: NDArray[Any] | None,
        lengths: NDArray[Any] | None,
        attention: NDArray[Any] | None,
        Y: NDArray[Any] | None,
        Y_h: NDArray[Any] | None,
        wide_state: bool,
        gates: NDArray[Any] | None = None,
    ) -> None: ...
    def gradients(
        self,
        X: NDArray[Any],
        initial_h: NDArray[Any] | None,
        lengths: NDArray[Any] | None,
        attention: NDArray[Any] | None,
        resets: NDArray[Any] | None,
        resets_to_initial: bool,
        Y: NDArray[Any],
        gates: NDArray[Any] | None,
        dY: NDArray[Any] | None,
        dY_h: NDArray[Any] | None,
        dX: NDArray[Any] | None,
        by: Sequence[list[NDArray[Any] | None]],
        d_initial_h: NDArray[Any] | None,
        d_attention: NDArray[Any] | None,
    ) -> None: ...
    def unpack(self, W: NDArray[Any], R: NDArray[Any]) -> None: ...
    def scratch_bound(self, batch_size: int) -> int: ...
    def set_name(self, name: str) -> None: ...
    @property
    def saved_size(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def target(self) -> str: ...

class Caller:
    """A call is `try_call` where that will do; all others are `run`."""

    def __init__(self, native: Layer | None, layout: int) -> None: ...
    def try_call(
        self,
        X: object,
        initial_h: object = None,
        *,
        sequence_lens: object = None,
        attention: object = None,
        layout: object = None,
        out: object = None,
    ) -> tuple[NDArray[Any], NDArray[Any]] | None: ...

def describe_call(type: type[Caller], text: str) -> None: ...

class Stepper:
    """Plain steps are done; all others are `_step`."""

    def __init__(self, native: Stream | None) -> None: ...
    def step(
        self,
        x: ArrayLike,
        *,
        attention: ArrayLike | None = None,
        rows: ArrayLike | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]: ...
    def try_run(self, X: object, attention: object, out: object) -> NDArray[Any] | None: ...

def run_stack(
    steppers: Sequence[Stepper], X: object, batch_first: bool, out: NDArray[Any] | None = None
) -> NDArray[Any] | None: ...

class SizedCall:
    def __init__(self) -> None: ...
    def prepare(
        self,
        inputs: Sequence[tuple[str, NDArray[Any]]],
        outputs: Sequence[tuple[str, NDArray[Any]]],
        run: Callable[[], object],
        settle: Callable[[], object],
        lost: list[object],
    ) -> bool: ...
    def __call__(self, inputs: object) -> dict[str, NDArray[Any]] | None: ...

class Stream:
    def __init__(self, layer: Layer, state: NDArray[Any]) -> None: ...
    def run(
        self, X: NDArray[Any], attention: NDArray[Any] | None, rows: NDArray[Any] | None, Y: NDArray[Any]
    ) -> None: ...
