"""onegru's execution provider for ONNX Runtime; `onegru.execution_provider` is its public module."""

from __future__ import annotations

import itertools
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onegru import _native
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import MissingExtraError, OneGRUError, SpecWarning, callers_level, needs_extra
from onegru.engines.native import get_num_threads
from onegru.layers.call import apply
from onegru.layers.gru import GRU
from onegru.operators.lowering import lower
from onegru.operators.onnx import OPERATORS
from onegru.operators.schema import OpSchema

_NAME = "OnegruExecutionProvider"
_OLDEST = (1, 25)
_registering = threading.Lock()  # ONNX Runtime would reject a second registration


def get_library_path() -> str:
    """Return the path of the library to register with ONNX Runtime, as `register` does."""
    return str(_native.__file__)


def get_ep_name() -> str:
    """Return the provider's name, for `providers=`."""
    return _NAME


def get_ep_names() -> list[str]:
    """Return the names of all providers in the library, which has one."""
    return [_NAME]


def register() -> str:
    """Register the provider with ONNX Runtime in this process, unless it is registered already.

    Returns:
        the provider's name, for `providers=`.

    Raises:
        MissingExtraError: ONNX Runtime is not installed, or is older than 1.25.
        OneGRUError: ONNX Runtime rejects the provider, for example because onegru does not support its
            version.
    """
    with needs_extra("onnxruntime", "onnxruntime", "the execution provider"):
        import onnxruntime
    version = tuple(map(int, re.findall(r"\d+", onnxruntime.__version__)[:2]))
    if version < _OLDEST:
        least = f"onnxruntime>={'.'.join(map(str, _OLDEST))}"  # older versions have no kernels in providers
        purpose = f"the execution provider (onnxruntime {onnxruntime.__version__} is installed)"
        raise MissingExtraError(least, "onnxruntime", purpose)
    with _registering:
        if _NAME not in {device.ep_name for device in onnxruntime.get_ep_devices()}:
            get_num_threads()  # reads the environment
            _native.observe(_handle_node, _warn)
            try:
                onnxruntime.register_execution_provider_library(_NAME, get_library_path())
            except Exception as error:  # the exceptions of ONNX Runtime share no base class
                words = f"onnxruntime {onnxruntime.__version__} refuses onegru ({error})"
                raise OneGRUError(words) from error
    return _NAME


# Called with a node's name, a moment, and the node's arrays by the specification's names. The arrays are
# valid until it returns. The moment is "weights" when W, R and B are packed, which happens when a node with
# constant weights is created, or in a run. It is "done" after each run.
Observer = Callable[[str, str, Mapping[str, Array]], None]

_observers: dict[int, Observer] = {}
_numbers = itertools.count(1)


def add_observer(observer: Observer) -> int:
    """Add an observer of GRU nodes, and return its number for the session option `observer`."""
    number = next(_numbers)
    _observers[number] = observer
    return number


def remove_observer(number: int) -> None:
    """Stop calling an observer."""
    del _observers[number]


def _handle_node(
    session: int,
    moment: str,
    node: str,
    operator: str,
    version: int,
    attributes: Mapping[str, object],
    ports: Mapping[str, tuple[memoryview, str, Sequence[int]]],
) -> None:
    """Handle a call of native code about a node. An exception ends the run."""
    arrays: dict[str, Array] = {
        name: np.frombuffer(data, numpy_dtype(dtype)).reshape(shape)
        for name, (data, dtype, shape) in ports.items()
    }
    if moment == "compute":
        _compute(OPERATORS[operator, version], attributes, arrays)
    elif (observer := _observers.get(session)) is not None:
        observer(node, moment, arrays)


def _warn(message: str) -> None:
    """Warn, for native code, about parts of a node without effect or with needless cost."""
    warnings.warn(message, SpecWarning, stacklevel=callers_level("onnxruntime"))


def _compute(operator: OpSchema, attributes: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Compute the outputs of a node with the reference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SpecWarnings were given when the model was loaded
        lowered = lower(operator, attributes, arrays["W"], arrays["R"], arrays.get("B"))
    layer = GRU.from_canonical(lowered.spec, lowered.weights, engine="reference")
    given = {name: arrays[name] for name in ("X", "sequence_lens", "initial_h", "A") if name in arrays}
    apply(layer, lowered.ports, given, {name: arrays[name] for name in ("Y", "Y_h") if name in arrays})
