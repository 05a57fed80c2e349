"""The layer: a GRU whose weights are prepared once and that is called many times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import ArrayLike

from onegru import _native
from onegru.core.arguments import integer, shown
from onegru.core.dtypes import Array, is_int8
from onegru.core.errors import SpecError
from onegru.core.pickling import state_of
from onegru.core.spec import Attention, Direction, Spec, Weights, attention_of
from onegru.engines.interface import Engine, EngineOptions
from onegru.engines.select import engine_options, make_engine
from onegru.layers.call import apply, attention_ports
from onegru.layers.stream import Stream
from onegru.operators.lowering import lower
from onegru.operators.onnx import NEWEST
from onegru.operators.schema import CANONICAL_AXES, Port

if TYPE_CHECKING:
    from onegru.layers.gates.trace import GateTrace


class _CallSignature:
    """Makes `inspect.signature` describe calls of an instance; for the class, the constructor."""

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        if instance is None:
            raise AttributeError("__signature__")
        from inspect import signature

        return signature(instance.__call__)  # type: ignore[operator]


_RANKS = {"W": 3, "R": 3, "B": 2}  # the first axis is the direction


class GRU(_native.Caller):
    """A GRU layer that packs its weights once for many calls.

    The weights are laid out as in ONNX's GRU, gate order z, r, h. One step, for each row and direction:

        z = f(clip(x·Wzᵀ + h·Rzᵀ + Wbz + Rbz))
        r = f(clip(x·Wrᵀ + h·Rrᵀ + Wbr + Rbr))
        n = g(clip(x·Whᵀ + (r∘h)·Rhᵀ + Wbh + Rbh))       linear_before_reset = False
        n = g(clip(x·Whᵀ + r∘(h·Rhᵀ + Rbh) + Wbh))       linear_before_reset = True
        z = (1 - a)·z                                     with attention, "openvino"
        z = 1 - a·(1 - z)                                 with attention, "dien"
        h = (1 - z)∘n + z∘h

    Source: ONNX GRU-14 and GRU-22. Attention follows OpenVINO's AUGRUCell, or equations 14 to 16 of the DIEN
    paper (arXiv 1809.03672), whose update gate is 1 - z. onegru supports attention with any activation,
    clip, direction and reset mode.

    Args:
        W: input weights, [D, 3H, I], D = 2 if bidirectional, else 1; float16, bfloat16, float32 or float64.
        R: recurrence weights, [D, 3H, H], of W's type.
        B: biases, [D, 6H] = Wb (z, r, h), then Rb (z, r, h), of W's type. Default: None (zeros).
        direction: "forward", "reverse" (each row from its own last step) or "bidirectional".
        linear_before_reset: whether the reset gate acts after the recurrent product.
        clip: bound > 0 on the inputs of all activations. Default: None (no bound).
        activations: names of (f, g) for each direction, ignoring case. Default: None (Sigmoid, Tanh).
        activation_alpha: values for the functions that have alpha, in order. Default: None (their defaults).
        activation_beta: values for the functions that have beta, in order. Default: None (ONNX's defaults).
        attention: the equation of attention, "openvino" or "dien". Each call then needs scores a. True means
            "openvino". Default: None (no attention).
        engine: "native" for the SIMD kernels, "reference" for the float64 reference, or "auto" for the
            fastest that supports the layer.
        weight_storage: the type in which a float32 layer stores W and R. "bfloat16" and "float16" round the
            weights and halve the memory that large layers read in each step. "int8" stores 8 bits with one
            scale per row, and multiplies integers. onegru rejects weights that overflow the type, and int8
            rows with an outlier that would round the other weights to 0. Default: None (W's type).
        activation_storage: the type to which x, h and r∘h are rounded before they are multiplied. With int8
            weights: "int16", or "int8", which is faster, with one scale per row of the batch. With bfloat16
            weights: "bfloat16", which multiplies batches much faster on a CPU with AMX, and gives
            the same bits on every CPU. Default: None ("int16" with int8 weights, else no rounding).
        flush_subnormals: whether a new state below 2^-100 (2^-1000 in float64) becomes 0. While X is 0, the
            state fades to subnormal numbers, which can slow a float32 layer down a hundred times. The results
            are the same on every CPU. Files do not store this option.
        layout: the layout of calls that do not pass one: 0 for time first, 1 for batch first. Files do not
            store it, and a stream's `run` is always time first.

    Attributes:
        try_call: the fast path of `layer(…)`. It needs arrays of the layer's type and shapes, inputs with a
            contiguous last axis, contiguous outputs that do not overlap inputs, and int32 or int64 lengths.
            Otherwise it does nothing and returns None; then call `layer(…)`.

    Raises:
        SpecError: an argument is invalid. The message names it, its value and the valid values.
    """

    __module__ = "onegru"
    __signature__ = _CallSignature()

    def __init__(
        self,
        W: ArrayLike,
        R: ArrayLike,
        B: ArrayLike | None = None,
        *,
        direction: Direction = "forward",
        linear_before_reset: bool = False,
        clip: float | None = None,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        attention: Attention | bool | None = None,
        engine: str = "auto",
        weight_storage: str | None = None,
        activation_storage: str | None = None,
        flush_subnormals: bool = False,
        layout: int = 0,
    ) -> None:
        """Pack the weights. The class documents the arguments."""
        if isinstance(W, int):
            raise SpecError.of("W", f"{W}; must be an array of weights; for sizes, use onegru.torch.GRU")
        attributes = present(
            direction=direction,
            linear_before_reset=linear_before_reset,
            clip=clip,
            activations=activations,
            activation_alpha=activation_alpha,
            activation_beta=activation_beta,
        )
        try:
            lowered = lower(NEWEST, attributes, W, R, B, attention=attention_of(attention) or False)
        except SpecError as error:
            if (name := error.argument) in _RANKS and str(error).startswith(
                f"{name}: rank {_RANKS[name] - 1},"
            ):
                raise SpecError(f"{error}; for one direction, pass {name}[None]", name) from error.__cause__
            raise
        options = engine_options(engine, weight_storage, activation_storage, flush_subnormals)
        self._prepare(lowered.spec, lowered.weights, options, layout)

    @classmethod
    def from_canonical(
        cls,
        spec: Spec,
        weights: Weights,
        *,
        engine: str = "auto",
        weight_storage: str | None = None,
        layout: int = 0,
        activation_storage: str | None = None,
        flush_subnormals: bool = False,
    ) -> Self:
        """Create a layer from a Spec and its Weights.

        Args:
            spec: the specification.
            weights: the weights, which must match `spec`.
            engine: as in `GRU`.
            weight_storage: as in `GRU`.
            layout: as in `GRU`.
            activation_storage: as in `GRU`.
            flush_subnormals: as in `GRU`.

        Raises:
            SpecError: the weights do not match the spec, or an argument is invalid.
        """
        if not isinstance(weights, Weights):
            raise SpecError.of("weights", f"{shown(weights)}; must be Weights")
        weights.check(spec)
        layer = cls.__new__(cls)
        options = engine_options(engine, weight_storage, activation_storage, flush_subnormals)
        layer._prepare(spec, weights, options, layout)
        return layer

    def _prepare(self, spec: Spec, weights: Weights, options: EngineOptions, layout: int) -> None:
        layout = integer("layout", layout, 0, 1)
        made = make_engine(options, spec, weights)
        # This comes first, because it rejects a second initialization.
        super().__init__(made.native, layout)
        self._layout = layout
        self._spec = spec
        self.engine_options = options
        self.prepared_engine: Engine = made

    @property
    def spec(self) -> Spec:
        """The specification of the layer."""
        return self._spec

    @property
    def input_size(self) -> int:
        """Input size (I)."""
        return self._spec.input_size

    @property
    def hidden_size(self) -> int:
        """Hidden size (H)."""
        return self._spec.hidden_size

    @property
    def weights(self) -> Weights:
        """The weights, restored from the engine's form."""
        return self.prepared_engine.weights

    @property
    def weight_storage(self) -> str:
        """The type in which W and R are stored."""
        return self.engine_options.weight_storage or self._spec.dtype

    @property
    def activation_storage(self) -> str | None:
        """The type to which activations are rounded; None without rounding."""
        return self.engine_options.activation_storage

    @property
    def flush_subnormals(self) -> bool:
        """Whether new states that are almost 0 become 0."""
        return self.engine_options.flush_subnormals

    @property
    def layout(self) -> int:
        """The layout of calls that do not pass one: 0 for time first, 1 for batch first."""
        return self._layout

    @property
    def engine(self) -> str:
        """The name of the engine that runs the layer."""
        return self.prepared_engine.name

    def __repr__(self) -> str:
        spec = self._spec
        shown = {
            "direction": spec.direction,
            "linear_before_reset": spec.linear_before_reset,
            "clip": spec.clip,
            "activations": [str(function) for pair in spec.activations for function in pair],
            "attention": spec.attention,
            "engine": self.engine,
            "layout": self._layout,
            **present(
                weight_storage=self.engine_options.weight_storage,
                activation_storage=self.activation_storage,
                flush_subnormals=self.flush_subnormals or None,
            ),
        }
        details = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"GRU({spec.input_size} → {spec.hidden_size}, {spec.dtype}, {details})"

    def _repr_html_(self) -> str:
        """Return a card for notebooks."""
        from onegru.layers.cards import layer_card

        layout = f"{self._layout}, {('time', 'batch')[self._layout]} first"
        facts = [("layout", layout), ("engine", self.engine)]
        if self.activation_storage is not None:
            kind = "int8" if is_int8(self.weight_storage) else self.weight_storage
            facts.append(("multiplies", f"in {kind}, with activations in {self.activation_storage}"))
        return layer_card(self._spec, facts, self.weight_storage)

    def __getstate__(self) -> Any:
        return state_of(self, ("_spec", "engine_options", "prepared_engine", "_layout"))

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self).from_canonical, layout=self._layout, **self.engine_options._asdict())
        return (make, (self._spec, self.weights), self.__getstate__())

    def run(
        self,
        X: ArrayLike,
        initial_h: ArrayLike | None = None,
        *,
        sequence_lens: ArrayLike | None = None,
        attention: ArrayLike | None = None,
        layout: int | None = None,
        out: tuple[Array | None, Array | None] | None = None,
    ) -> tuple[Array, Array]:
        """Run the layer over a batch of sequences, as `layer(…)` does.

        A subclass that changes the computation must override `__call__`.

        Args:
            X: [T, B, I], or [B, T, I] under layout 1; of the layer's type.
            initial_h: [D, B, H], or [B, D, H] under layout 1. Default: None (zeros).
            sequence_lens: [B], integers, each in 0…T. Default: None (all T steps). In the padding, Y is 0.
                Y_h is each row's last state, 0 for a row of length 0.
            attention: [T, B] or [T, B, 1], batch first under layout 1; required if and only if the layer
                has attention.
            layout: 0 for time first, 1 for batch first. Default: None (the layer's own).
            out: (Y, Y_h), arrays of the right shape and type for the outputs. Default: None (new arrays). One
                of the two may also be None.

        Returns:
            Y [T, D, B, H], or [B, T, D, H] under layout 1, and Y_h [D, B, H], or [B, D, H]. These are the
            arrays in `out`, if given.

        Raises:
            SpecError: an argument is invalid.
        """
        plain = self.try_call(
            X, initial_h, sequence_lens=sequence_lens, attention=attention, layout=layout, out=out
        )
        if plain is not None:
            return plain
        values = {"X": X, "initial_h": initial_h, "sequence_lens": sequence_lens, "attention": attention}
        if out is None:
            out = (None, None)
        elif not isinstance(out, tuple) or len(out) != 2:
            raise SpecError.of("out", f"{type(out).__name__}; must be a tuple (Y, Y_h)")
        outputs = apply(self, self._ports(layout, attention), values, {"Y": out[0], "Y_h": out[1]})
        return outputs["Y"], outputs["Y_h"]

    if TYPE_CHECKING:  # at run time the native base class defines it
        __call__ = run

    def trace(
        self,
        X: ArrayLike,
        initial_h: ArrayLike | None = None,
        *,
        sequence_lens: ArrayLike | None = None,
        attention: ArrayLike | None = None,
        layout: int | None = None,
    ) -> GateTrace:
        """Return the gates z, r, n and the state h at each step.

        h is bitwise identical to Y. The gates are computed by the class's equations in float64, each step
        from the h before it, and rounded once. All have the axes [T, D, B, H], in either layout.

        Args:
            X: as in `__call__`, like all arguments.
            initial_h: as in `__call__`.
            sequence_lens: as in `__call__`.
            attention: as in `__call__`.
            layout: as in `__call__`.

        Raises:
            SpecError: an argument is invalid.
        """
        values = {"X": X, "initial_h": initial_h, "sequence_lens": sequence_lens, "attention": attention}
        from onegru.layers.gates.data import gates_of
        from onegru.layers.gates.trace import GateTrace

        return gates_of(GateTrace, self, self._ports(layout, attention), values)

    def with_storage(self, weight_storage: str | None, activation_storage: str | None = None) -> GRU:
        """Return the layer with its weights stored in another type.

        Args:
            weight_storage: as in `GRU`. Default: None (the layer's type).
            activation_storage: as in `GRU`.

        Raises:
            SpecError: an argument is invalid, or the layer is not float32.
        """
        options = engine_options(
            self.engine_options.engine, weight_storage, activation_storage, self.flush_subnormals
        )
        return GRU.from_canonical(self._spec, self.weights, layout=self._layout, **options._asdict())

    def stream(self, batch_size: int = 1) -> Stream:
        """Create a stream of `batch_size` rows through a forward layer.

        Raises:
            SpecError: batch_size is less than 1, or the layer does not run only forward.
        """
        return Stream(self, batch_size)

    def _ports(self, layout: int | None, attention: object) -> list[Port]:
        """Return the inputs and outputs of a call."""
        layout = self._layout if layout is None else integer("layout", layout, 0, 1)
        ports = [port for port in NEWEST.ports(layout) if port.role in CANONICAL_AXES]
        return ports + attention_ports(self._spec, attention, "BT" if layout else "TB")


_native.describe_call(
    GRU,
    "__call__($self, /, X, initial_h=None, *, sequence_lens=None, attention=None, layout=None, out=None)"
    "\n--\n\n" + (GRU.run.__doc__ or ""),
)


def present(**attributes: object) -> dict[str, object]:
    """Return the attributes that are not None."""
    return {name: value for name, value in attributes.items() if value is not None}
