"""Read OpenVINO's nodes, shapes and requests, without importing OpenVINO."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any


def sizes_of(shape: Any) -> tuple[int | None, ...] | None:
    """Return the sizes of a PartialShape, None for dynamic ones; None if the rank is dynamic."""
    if shape.rank.is_dynamic:
        return None
    return tuple(None if size.is_dynamic else size.get_length() for size in shape)


def bodies_of(node: Any) -> list[tuple[Any, Any]]:
    """Return the bodies of a node, each with the descriptions of its inputs."""
    match node.get_type_name():
        case "If":
            bodies = (node.get_then_body(), node.get_else_body())
            return [(body, node.get_input_descriptions(index)) for index, body in enumerate(bodies)]
        case "Loop" | "TensorIterator":
            return [(node.get_function(), node.get_input_descriptions())]
    return []


def infer(request: Any, inputs: Mapping[Any, Any] | None = None) -> None:
    """Run a request, and raise its errors, which `request.infer` does not do on one thread.

    It takes about 10 µs longer. In a process that was forked after the model was compiled, it never ends.
    """
    request.start_async(inputs)
    request.wait()


def run_of(request: Any) -> Callable[[], object]:
    """Return a function that runs a request on its tensors, in the calling thread."""
    # OpenVINO's Python method converts inputs and wraps outputs (2 µs), and calls that of a base class. In a
    # direct call, there is also no Python code that could catch the exception of a signal handler.
    for base in type(request).__mro__[1:]:
        method: Any = vars(base).get("infer")
        if "inputs: dict, share_outputs: bool, decode_strings: bool" in str(method.__doc__):
            return functools.partial(method, request, _NO_INPUTS, True, False)
    return functools.partial(request.infer, share_outputs=True)


_NO_INPUTS: dict[str, Any] = {}
