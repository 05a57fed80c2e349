"""The options of an `onegru.torch` module, as an entry of its state dict.

PyTorch's tensor names imply PyTorch's function. If a module has another function, its state dict has one more
entry: a tensor with the character codes of a JSON text. The text has the fields of `Spec`, except the sizes
and the type, and whether resets restore the initial state. The tensor is float32, because programs clone,
average and round the tensors of a state dict, and float32 keeps the codes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from onegru.core.errors import SpecError
from onegru.core.spec import Spec
from onegru.core.spec_json import spec_from_json, spec_to_json
from onegru.core.tensors import as_tensor
from onegru.system.bounded import parse_json

#: The last part of the entry's name, which PyTorch uses for extra state of a module.
KEY = "_extra_state"

#: The largest number of codes in an entry.
LONGEST = 10_000

_SIZES: dict[str, Any] = {"input_size": 1, "hidden_size": 1, "dtype": "float32"}
_RESETS = "resets_to_initial"


@dataclass(frozen=True, slots=True)
class TorchForm:
    """Options of a module: its function without sizes and type."""

    spec: Spec  # of any of its layers, with arbitrary sizes and type
    resets_to_initial: bool = False  # whether a reset restores the initial state; else it sets zeros

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", replace(self.spec, **_SIZES))

    @property
    def matches_nn_gru(self) -> bool:
        """Whether `torch.nn` computes this function, so that the names of the tensors suffice."""
        plain = TorchForm(Spec(**_SIZES, linear_before_reset=True))
        both = replace(plain.spec, direction="bidirectional", activations=plain.spec.activations * 2)
        return self in (plain, TorchForm(both))

    def codes(self) -> list[int]:
        """Return the numbers of the entry."""
        document = {name: value for name, value in spec_to_json(self.spec).items() if name not in _SIZES}
        return list(json.dumps(document | {_RESETS: self.resets_to_initial}).encode())

    def differences(self, other: TorchForm) -> list[str]:
        """List the differences from another form."""
        return [
            f"{name} {theirs}; must be {own}"
            for (name, own), (_, theirs) in zip(self._facts(), other._facts(), strict=True)
            if own != theirs
        ]

    def __str__(self) -> str:
        plain = TorchForm(Spec(**_SIZES, linear_before_reset=True))._facts()
        return ", ".join(f"{name} {own}" for name, own in self._facts() if (name, own) not in plain)

    def _facts(self) -> Sequence[tuple[str, str]]:
        names = [item.name for item in fields(Spec) if item.name not in _SIZES]
        facts = [(name, _words(getattr(self.spec, name))) for name in names]
        return [*facts, (_RESETS, str(self.resets_to_initial))]


def _words(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return ", ".join(str(function) for pair in value for function in pair)


def read_torch_form(entry: object) -> TorchForm:
    """Return the form in an entry."""
    codes = as_tensor("the configuration", entry).astype(np.float64)
    whole = np.rint(codes)
    if codes.ndim != 1 or codes.size > LONGEST or not np.all(np.abs(codes - whole) < 0.25):
        raise SpecError("not the character codes of a text; must be an entry that onegru.torch wrote")
    if not np.all((whole >= 32) & (whole < 127)):
        raise SpecError("contains codes outside ASCII; must be an entry that onegru.torch wrote")
    try:
        document = parse_json(whole.astype(np.uint8).tobytes())
    except ValueError as error:
        raise SpecError(f"not JSON ({error}); must be an entry that onegru.torch wrote") from error
    if not isinstance(document, dict) or _SIZES.keys() & document or type(document.get(_RESETS)) is not bool:
        raise SpecError("not the configuration of a module; must be an entry that onegru.torch wrote")
    resets_to_initial = document.pop(_RESETS)
    return TorchForm(spec_from_json({**_SIZES, **document}), resets_to_initial)
