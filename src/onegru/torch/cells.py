"""Drop-in replacements for PyTorch's cells, and cells with attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from torch import Tensor, nn

from onegru.core.errors import SpecError
from onegru.core.spec import Attention, Spec
from onegru.layers.torch_form import TorchForm
from onegru.torch.arguments import TorchGruConfig, form_of, must_have_attention, spec_of
from onegru.torch.autograd.few_steps import run_few_steps
from onegru.torch.autograd.few_steps_function import train_few_steps
from onegru.torch.freeze import Freezable
from onegru.torch.functional import checked_attention, checked_state, must_be_tensors
from onegru.torch.parts import OwnSignature, cast, is_pytorchs, name_of, promoted, type_of, words_of
from onegru.torch.route import Route, choose_route, is_recorded
from onegru.torch.state import FormInState


class GRUCell(Freezable, FormInState, nn.RNNCellBase):
    """Run and train `torch.nn.GRUCell` with onegru's kernels, with the additional options of `GRU`."""

    has_attention = False
    __signature__ = OwnSignature()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an instance of `torch.nn.GRUCell` too, if the equations are the same; see `GRU`."""
        is_plain = cls is GRUCell and bool(args or kwargs) and is_pytorchs(kwargs)
        made: Self = super().__new__(TorchGRUCell if is_plain else cls)
        return made

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        linear_before_reset: bool = True,
        clip: float | None = None,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
    ) -> None:
        nn.RNNCellBase.__init__(self, input_size, hidden_size, bias, num_chunks=3, device=device, dtype=dtype)
        self._form = form_of(
            "forward", linear_before_reset, clip, activations, activation_alpha, activation_beta
        )

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the new state.

        Args:
            input: [B, I], or [I] for one row.
            hx: the previous state, [B, H] or [H]. Default: None (zeros).

        Raises:
            SpecError: an argument is invalid.
        """
        if self.frozen_layers is None and isinstance(input, Tensor):
            done = self._run_directly(input, hx, None)
            if done is not None:
                return done
        return _step(self, input, hx, None)

    def _run_directly(self, input: Tensor, hx: Tensor | None, attention: Tensor | None) -> Tensor | None:
        """Run a step with kernels that read the tensors in place, or with PyTorch; None for other routes."""
        own = self._parameters
        weights = (own.get("weight_ih"), own.get("weight_hh"), own.get("bias_ih"), own.get("bias_hh"))
        tensors: Any = (input, hx, attention, None, None, *weights)
        if input.dim() != 2 or (self.bias and (weights[2] is None or weights[3] is None)):
            tensors = None  # biases that are computed from other tensors are not parameters
        B = 1 if input.dim() < 2 else input.shape[0]
        found: Any = None
        match choose_route(self, input, tensors, 1, B):
            case Route.FEW_STEPS:
                found = run_few_steps(self._form, tensors)
            case Route.TRAINED_FEW_STEPS:
                found = train_few_steps(self._form, tensors)
            case Route.PYTORCH:
                must_be_tensors(hx=hx)
                found = (nn.GRUCell.forward(self, input, hx),)
        return None if found is None else found[0]

    @property
    def form(self) -> TorchGruConfig:
        """Return the configuration, without sizes."""
        return self._form

    def weights_of(self, number: int) -> list[Tensor | None]:
        """Return the four weights; biases may be None."""
        return [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]

    def specs(self) -> list[Spec]:
        """Return the specification of the cell, in a list."""
        attention = self.has_attention
        return [spec_of(self._form, self.input_size, self.hidden_size, "float32", attention)]

    def form_in_state(self) -> TorchForm:
        """Return the entry for the state dict."""
        return TorchForm(self.specs()[0], self._form.resets_to_initial)

    def extra_repr(self) -> str:
        """Return PyTorch's text, and the options that differ from it."""
        return str(super().extra_repr()) + words_of(self._form)

    def _get_name(self) -> str:
        return name_of(self)


class TorchGRUCell(GRUCell, nn.GRUCell):
    """`GRUCell` with the equation of `torch.nn.GRUCell`, and an instance of it."""


def _step(cell: GRUCell, input: Tensor, hx: Tensor | None, attention: Tensor | None) -> Tensor:
    must_be_tensors(input=input, hx=hx, attention=attention)
    if input.dim() not in (1, 2) or input.shape[-1] != cell.input_size:
        raise SpecError.of("input", f"shape {list(input.shape)}; must be [B, {cell.input_size}]")
    is_one = input.dim() == 1
    if cell.has_attention:
        B = 1 if is_one else input.shape[0]
        shape = None if attention is None else tuple(attention.shape)
        if shape != (B,) and shape != (B, 1) and not (is_one and shape == ()):
            raise SpecError.of("attention", f"shape {shape}; must be {[B]} or {[B, 1]}")
    X, h = (input[None], None if hx is None else hx[None]) if is_one else (input, hx)
    if h is not None and tuple(h.shape) != (X.shape[0], cell.hidden_size) and not is_recorded():
        wanted = [cell.hidden_size] if is_one else [X.shape[0], cell.hidden_size]
        raise SpecError.of("hx", f"shape {list(h.shape[is_one:])}; must be {wanted}")
    weights, weight = cell.weights_of(0), cell.weight_ih
    wanted = promoted(X, h)
    X = cast(X, weight)[None]
    if weight.dtype != X.dtype:
        raise SpecError.of("input", f"{X.dtype}; must be {type_of(weight)}")
    if h is not None and cast(h, weight).dtype != X.dtype:
        raise SpecError.of("hx", f"{h.dtype}; must be {X.dtype}, like the input")
    state = None if h is None else checked_state(cast(h, weight)[None], X, (1, X.shape[1], cell.hidden_size))
    scores = None if attention is None else checked_attention(cast(attention.reshape(1, -1), weight), X)
    _, Y_h = cell.run_layer(0, cell.form, (X, state, scores, None, None, *weights))
    return (Y_h[0, 0] if is_one else Y_h[0]).to(wanted)


class AUGRUCell(GRUCell):
    """One step of an `AUGRU`. Sources: OpenVINO's AUGRUCell, and the paper on DIEN.

    Args:
        input_size: I.
        hidden_size: H.
        attention: "openvino" or "dien", as for `AUGRU`.
        options: the options of `GRUCell`.
    """

    has_attention = True

    def __init__(
        self, input_size: int, hidden_size: int, *, attention: Attention = "openvino", **options: Any
    ) -> None:
        super().__init__(input_size, hidden_size, **{"linear_before_reset": False, **options})
        self._form = replace(self._form, attention=must_have_attention(attention))

    def forward(  # type: ignore[override]
        self, input: Tensor, attention: Tensor, hx: Tensor | None = None
    ) -> Tensor:
        """Return the new state [B, H].

        Args:
            input: [B, I].
            attention: scores, [B] or [B, 1].
            hx: the previous state, [B, H]. Default: None (zeros).

        Raises:
            SpecError: an argument is invalid.
        """
        scores = attention
        if type(attention) is Tensor and type(input) is Tensor and input.dim() == 2 == attention.dim():
            scores = attention[:, 0] if attention.shape == (input.shape[0], 1) else attention
        if self.frozen_layers is None and isinstance(input, Tensor):
            done = self._run_directly(input, hx, scores)
            if done is not None:
                return done
        return _step(self, input, hx, attention)
