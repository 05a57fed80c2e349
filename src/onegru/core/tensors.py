"""Convert tensors of other frameworks to arrays, without importing the frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from onegru.core.dtypes import Array, as_float_array, numpy_dtype
from onegru.core.errors import SpecError


def as_tensor(name: str, value: object, must_be: tuple[str, ...] = ()) -> Array:
    """Convert a tensor of any framework to an array of the same element type."""
    try:
        value = _plain(value)
    except SpecError:
        raise
    except Exception as error:  # frameworks raise various errors for a tensor without values
        raise SpecError.of(name, f"its values cannot be read ({error}); must be a dense array") from error
    return as_float_array(name, value, must_be) if must_be else as_float_array(name, value)


def _plain(value: Any) -> object:
    if isinstance(value, np.ndarray | list | tuple):
        return value
    if callable(getattr(value, "detach", None)):  # torch does not support NumPy's bfloat16
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            return value.float().numpy().astype(numpy_dtype("bfloat16"))
        return value.numpy()
    for name in () if hasattr(value, "__array__") else ("get_value", "unbox"):  # a variable or a box of Flax
        if callable(unbox := getattr(value, name, None)):
            return _plain(unbox())
    return np.asarray(value)


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value is a mapping, whose keys are assumed to be names."""
    return isinstance(value, Mapping)
