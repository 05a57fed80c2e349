"""State dict entries for options that PyTorch names cannot express."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from onegru.core.errors import SpecError
from onegru.layers.torch_form import KEY, TorchForm, read_torch_form


class FormInState(nn.Module):
    """Module with a state dict entry for its configuration, unless PyTorch's module computes the same."""

    # `get_extra_state` would add an entry to every module of the class.

    def form_in_state(self) -> TorchForm:
        """Return the configuration."""
        raise NotImplementedError

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        form = self.form_in_state()
        if not form.matches_nn_gru:
            like = next((tensor for tensor in self.parameters() if not tensor.is_meta), None)
            device = None if like is None else like.device
            destination[prefix + KEY] = torch.tensor(form.codes(), dtype=torch.float32, device=device)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = prefix + KEY
        entry, own = state_dict.get(key), self.form_in_state()
        if entry is not None and (refusal := self._refusal(entry, own)):
            error_msgs.append(f"{prefix}{KEY}: {refusal}")
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        unexpected_keys[:] = [name for name in unexpected_keys if name != key]
        if entry is None and not own.matches_nn_gru:
            missing_keys.append(key)

    def _refusal(self, entry: object, own: TorchForm) -> str:
        """Return the reason why tensors of a state dict with this entry do not fit; "" if they fit."""
        try:
            found = own.differences(read_torch_form(entry))
        except SpecError as error:
            return str(error)
        return f"{found[0]}, as this {self._get_name()} computes it" if found else ""
