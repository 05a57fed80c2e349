"""Drop-in replacements for PyTorch's GRU, and modules with attention."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from onegru.core.errors import SpecError
from onegru.core.spec import Attention, Spec
from onegru.layers.torch_form import TorchForm
from onegru.torch.arguments import TorchGruConfig, form_of, must_have_attention, spec_of
from onegru.torch.autograd.few_steps import run_few_steps
from onegru.torch.autograd.few_steps_function import train_few_steps
from onegru.torch.freeze import Freezable
from onegru.torch.functional import (
    checked_attention,
    checked_lengths,
    checked_resets,
    checked_state,
    must_be_tensors,
    must_have_steps,
)
from onegru.torch.packed import RowGroup, groups_of, joined, must_be_packed
from onegru.torch.parts import (
    OwnSignature,
    cast,
    check_axes,
    is_pytorchs,
    name_of,
    promoted,
    type_of,
    words_of,
)
from onegru.torch.route import Route, choose_route, is_exporting, is_recorded
from onegru.torch.state import FormInState


class GRU(Freezable, FormInState, nn.RNNBase):
    """Run and train `torch.nn.GRU` with onegru's kernels.

    Constructor, parameters, call and state dict are those of `torch.nn.GRU`. A module with the same equation
    is also an instance of `torch.nn.GRU`. With other options, the state dict has an additional entry
    `_extra_state`, which stores them; modules with other options reject it. The additional options are:

    Args:
        linear_before_reset: whether the reset gate acts after the recurrent product, as in PyTorch.
        clip: clip value > 0 for the inputs of the activations; the gradient beyond it is zero. Default: None
            (no clipping).
        activations: ONNX's names of f and g for each direction. Default: None (Sigmoid and Tanh).
        activation_alpha: alpha for the functions that have it, in order.
        activation_beta: beta for the functions that have it, in order.
        resets_to_initial: whether a reset restores the initial state instead of zeros.

    Raises:
        SpecError: an argument is invalid.
    """

    has_attention = False
    __signature__ = OwnSignature()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an instance of `torch.nn.GRU` too, if the equations agree; without arguments, a copy."""
        is_plain = cls is GRU and bool(args or kwargs) and is_pytorchs(kwargs)
        made: Self = super().__new__(TorchGRU if is_plain else cls)
        return made

    def __init__(
        self,
        *args: Any,
        linear_before_reset: bool = True,
        clip: float | None = None,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        resets_to_initial: bool = False,
        **kwargs: Any,
    ) -> None:
        if "proj_size" in kwargs:
            raise SpecError.of("proj_size", "given; a GRU has no projection, so remove it")
        nn.RNNBase.__init__(self, "GRU", *args, **kwargs)
        self._form = form_of(
            "bidirectional" if self.bidirectional else "forward",
            linear_before_reset,
            clip,
            activations,
            activation_alpha,
            activation_beta,
            resets_to_initial,
        )

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Return the outputs of the last layer, and the last states of all layers.

        Args:
            input: [T, B, I], [B, T, I] with batch_first, [T, I] for one sequence, or a PackedSequence.
            hx: [L·D, B, H], or [L·D, H] for one sequence. Default: None (zeros).
            lengths: [B], the number of steps of each sequence. Must be None for a PackedSequence.
                Default: None (all T steps).
            resets: booleans, [T, B], or [B, T] with batch_first: whether the state is reset before a step.

        Returns:
            the outputs in the layout of the input, with D·H features and zero in the padding, and the states
            [L·D, B, H].

        Raises:
            SpecError: an argument is invalid.
        """
        is_packed = not isinstance(input, Tensor)
        if is_packed and not isinstance(input, PackedSequence):
            raise SpecError.of("input", f"{type(input).__name__}; must be a tensor or a PackedSequence")
        if lengths is None and resets is None and self.frozen_layers is None:
            done: tuple[Any, Tensor] | None = self._run_directly(input, hx)
            if done is not None:
                return done
        must_be_tensors(hx=hx, lengths=lengths, resets=resets)
        if is_packed:
            return self._packed(input, hx, lengths, resets)
        if input.dim() not in (2, 3):
            raise SpecError.of("input", f"shape {list(input.shape)}; must have 2 or 3 dimensions")
        is_one = input.dim() == 2
        X = input.unsqueeze(1) if is_one else input.transpose(0, 1) if self.batch_first else input
        check_axes(resets, 1 if is_one else 2)
        if resets is not None:
            resets = resets.unsqueeze(1) if is_one else resets.transpose(0, 1) if self.batch_first else resets
        if is_one and hx is not None:
            wanted = [self.num_layers * self._form.num_directions, self.hidden_size]
            if hx.dim() != 2:
                raise SpecError.of(
                    "hx", f"shape {list(hx.shape)}; must be {wanted}, because input is one row"
                )
            hx = hx.unsqueeze(1)
        Y, Y_h = self._layers(X, hx, lengths, resets)
        if is_one:
            return Y.squeeze(1), Y_h.squeeze(1)
        return (Y.transpose(0, 1) if self.batch_first else Y), Y_h

    def _run_directly(self, input: Any, hx: Tensor | None, attention: Tensor | None = None) -> Any:
        """Run all layers with kernels that read tensors in place, or with PyTorch; None for other routes."""
        X, tensors, T, B = input, None, 0, 0
        if isinstance(input, Tensor) and input.dim() == 3:
            X, own = input.transpose(0, 1) if self.batch_first else input, self._parameters
            T, B, _ = X.shape
            weights = [*map(own.get, self._flat_weights_names)]  # None if computed from other tensors
            if not (self.dropout and self.training) and type(None) not in map(type, weights):
                tensors = (X, hx, attention, None, None, *self._with_biases(weights))
        found: Any = None
        match choose_route(self, X, tensors, T, B):
            case Route.FEW_STEPS:
                found = self._few_steps(run_few_steps, tensors)
            case Route.TRAINED_FEW_STEPS:
                found = self._few_steps(train_few_steps, tensors)
            case Route.PYTORCH:
                return nn.GRU.forward(self, input, hx)
        return (found[0].transpose(0, 1), found[1]) if found and self.batch_first else found

    def _few_steps(self, run: Any, tensors: Any) -> Any:
        if self.num_layers == 1:
            return run(self._form, tensors)
        X, hx, _, _, _, *weights = tensors
        D = self._form.num_directions
        if hx is not None and hx.shape != (self.num_layers * D, X.shape[1], self.hidden_size):
            return None
        last = []
        for number in range(self.num_layers):
            start = None if hx is None else hx[number * D : (number + 1) * D]
            own = weights[4 * D * number : 4 * D * (number + 1)]
            done = run(self._form, (X, start, None, None, None, *own))
            if done is None:
                return None
            X, Y_h = done
            last.append(Y_h)
        return X, torch.cat(last)

    def _packed(
        self, input: PackedSequence, hx: Tensor | None, lengths: Tensor | None, resets: Tensor | None
    ) -> tuple[PackedSequence, Tensor]:
        if lengths is not None or resets is not None:
            raise SpecError("lengths, resets: have no effect with a PackedSequence; remove them")
        must_be_packed(input)
        order = input.sorted_indices
        if hx is not None and order is not None:
            hx = hx.index_select(1, order)
        if is_recorded() or is_exporting():  # dynamic sizes
            X, given = pad_packed_sequence(PackedSequence(input.data, input.batch_sizes))
            Y, Y_h = self._layers(X, hx, given, None)
            data = pack_padded_sequence(Y, given).data
        else:
            width = self.input_size + self._form.num_directions * self.hidden_size
            data, Y_h = self._layers(input.data, hx, None, None, groups_of(input, width))
        if input.unsorted_indices is not None:
            Y_h = Y_h.index_select(1, input.unsorted_indices)
        result = PackedSequence(data, input.batch_sizes, input.sorted_indices, input.unsorted_indices)
        return result, Y_h

    def _layers(
        self,
        X: Tensor,
        hx: Tensor | None,
        lengths: Tensor | None,
        resets: Tensor | None,
        groups: Sequence[RowGroup] | None = None,
        attention: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run all layers over X [T, B, I], or over packed data [steps, I] in groups of rows."""
        if X.shape[-1] != self.input_size:
            raise SpecError.of(
                "input", f"{X.shape[-1]} features; must have {self.input_size}, the module's input_size"
            )
        must_have_steps("input", X)
        B = X.shape[1] if groups is None else groups[-1].rows.stop
        D, wanted = self._form.num_directions, promoted(X, hx)
        weights = self._weights()
        X, hx = cast(X, weights[0]), cast(hx, weights[0])
        for weight in weights[:1]:
            if weight.dtype != X.dtype:
                raise SpecError.of("input", f"{X.dtype}; must be {type_of(weight)}")
        states = checked_state(hx, X, (self.num_layers * D, B, self.hidden_size), "hx")
        lengths, resets = checked_lengths(lengths, X), checked_resets(resets, X, self.batch_first)
        scores = checked_attention(cast(attention, weights[0]), X, self.batch_first)
        is_plain = (
            groups is None and resets is None and scores is None and not (self.dropout and self.training)
        )
        each = len(weights) // self.num_layers
        layers = [
            self._with_biases(weights[number * each : (number + 1) * each])
            for number in range(self.num_layers)
        ]
        if is_plain and (found := self.run_layers(X, states, lengths, layers)) is not None:
            return found[0].to(wanted), found[1].to(wanted)
        last: list[Tensor] = []
        for number, own in enumerate(layers):
            start = None if states is None else states[number * D : (number + 1) * D]
            if groups is None:
                tensors = (X, start, scores, lengths, resets, *own)
                X, Y_h = self.run_layer(number, self._form, tensors)
            else:
                parts = []
                for g in groups:
                    h = None if start is None else start[:, g.rows]
                    tensors = (g.take(X), h, None, g.lengths, None, *own)
                    parts.append(self.run_layer(number, self._form, tensors))
                X, Y_h = joined(groups, [Y for Y, _ in parts]), torch.cat([h for _, h in parts], 1)
            last.append(Y_h)
            if self.dropout and self.training and number < self.num_layers - 1:
                X = nn.functional.dropout(X, self.dropout)
        return X.to(wanted), (last[0] if len(last) == 1 else torch.cat(last)).to(wanted)

    def _weights(self) -> list[Tensor]:
        """Return the weights of this call; parametrizations compute them."""
        return [getattr(self, name) for name in self._flat_weights_names]

    @property
    def form(self) -> TorchGruConfig:
        """Return the configuration, without sizes."""
        return self._form

    def weights_of(self, number: int) -> list[Tensor | None]:
        """Return the weights of a layer, four for each direction."""
        weights = self._weights()
        each = len(weights) // self.num_layers
        return self._with_biases(weights[number * each : (number + 1) * each])

    def _with_biases(self, own: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Insert None for the biases of a module without biases."""
        if self.bias:
            return [*own]
        return [tensor for n in range(0, len(own), 2) for tensor in (*own[n : n + 2], None, None)]

    def specs(self) -> list[Spec]:
        """Return the specification of each layer."""
        D, attention = self._form.num_directions, self.has_attention
        sizes = [self.input_size, *[D * self.hidden_size] * (self.num_layers - 1)]
        return [spec_of(self._form, size, self.hidden_size, "float32", attention) for size in sizes]

    def form_in_state(self) -> TorchForm:
        """Return the entry for the state dict."""
        return TorchForm(self.specs()[0], self._form.resets_to_initial)

    def extra_repr(self) -> str:
        """Return PyTorch's text, and the options that differ from it."""
        return str(super().extra_repr()) + words_of(self._form)

    def _get_name(self) -> str:
        return name_of(self)


class TorchGRU(GRU, nn.GRU):
    """`GRU` with the equation of `torch.nn.GRU`, and an instance of it."""

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
    ) -> tuple[Any, Tensor]:
        """See `GRU.forward`.

        `torch.compile` breaks the graph at an nn.GRU, but would also compile the code inside.
        """
        if "torch._dynamo" not in sys.modules or torch.compiler.is_dynamo_compiling():
            return super().forward(input, hx, lengths, resets)
        found: tuple[Any, Tensor] = _outside_of_compiled()(self, input, hx, lengths, resets)
        return found


class AUGRU(GRU):
    """A GRU with attention scores that scale its update gate, as in interest evolution networks.

        z = (1 - a)·z              "openvino": a score of 0 has no effect, 1 forgets the state
        z = 1 - a·(1 - z)          "dien": a score of 1 has no effect, 0 keeps the state

    An AUGRU has one forward layer. Other options are as in `GRU`. linear_before_reset is False by default, as
    in the definition of AUGRU. Sources: OpenVINO's AUGRUSequence, which agrees with the first TensorFlow
    code; and equations 14 to 16 of the paper on DIEN (arXiv 1809.03672). The paper's update gate is 1 - z, as
    in DeepCTR-Torch.

    Args:
        input_size: I.
        hidden_size: H.
        attention: "openvino" or "dien".
        options: the options of `GRU`, except num_layers, bidirectional and dropout.
    """

    has_attention = True

    def __init__(
        self, input_size: int, hidden_size: int, *, attention: Attention = "openvino", **options: Any
    ) -> None:
        for name in ("num_layers", "bidirectional", "dropout"):
            if name in options:
                raise SpecError.of(name, "given; an AUGRU has one forward layer, so remove it")
        super().__init__(input_size, hidden_size, **{"linear_before_reset": False, **options})
        self._form = replace(self._form, attention=must_have_attention(attention))

    def forward(  # type: ignore[override]
        self,
        input: Tensor,
        attention: Tensor,
        hx: Tensor | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the states after all steps, and the last states.

        Args:
            input: [T, B, I], or [B, T, I] with batch_first.
            attention: scores, [T, B] or [T, B, 1], or [B, T] or [B, T, 1] with batch_first.
            hx: [1, B, H]. Default: None (zeros).
            lengths: as in `GRU`.
            resets: as in `GRU`.

        Returns:
            Y [T, B, H], or [B, T, H] with batch_first, and Y_h [1, B, H].

        Raises:
            SpecError: an argument is invalid.
        """
        must_be_tensors(input=input, attention=attention, hx=hx, lengths=lengths, resets=resets)
        if attention is None:
            raise SpecError.of("attention", "None; must be a tensor")
        if input.dim() != 3 or input.shape[2] != self.input_size:
            raise SpecError.of(
                "input", f"shape {list(input.shape)}; must have 3 dimensions, {self.input_size} features"
            )
        must_have_steps("input", input.transpose(0, 1) if self.batch_first else input)
        if attention.dim() not in (2, 3):
            raise SpecError.of("attention", f"shape {list(attention.shape)}; must have 2 or 3 dimensions")
        check_axes(resets, 2)
        X, scores = input, attention
        if self.batch_first:
            X, scores = X.transpose(0, 1), scores.transpose(0, 1)
            resets = None if resets is None else resets.transpose(0, 1)
        if lengths is None and resets is None and self.frozen_layers is None:
            done: tuple[Tensor, Tensor] | None = self._run_directly(input, hx, scores.flatten(1))
            if done is not None:
                return done
        Y, Y_h = self._layers(X, hx, lengths, resets, attention=scores)
        return (Y.transpose(0, 1) if self.batch_first else Y), Y_h


@functools.cache
def _outside_of_compiled() -> Any:
    return torch.compiler.disable(GRU.forward)
