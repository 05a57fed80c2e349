"""Export a layer as an ONNX node, with both exporters of `torch.onnx.export`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from onegru.core.errors import SpecError
from onegru.operators.onnx import AUGRU, AUGRU_DOMAINS
from onegru.torch.arguments import TorchGruConfig
from onegru.torch.autograd.memory import Tensors

_OPSET = 14  # the first opset with GRU-14


def export_layer(
    form: TorchGruConfig,
    tensors: Tensors,
    compute: Callable[[Sequence[Tensor]], tuple[Tensor, Tensor]] | None,
) -> tuple[Tensor, Tensor]:
    """Export a GRU node, or for attention an AUGRU node of onegru's domain."""
    X, initial_h, attention, lengths, resets, *weights = tensors
    if resets is not None:
        raise SpecError.of("resets", "given; ONNX's GRU has no resets, so remove them to export it")
    D, each = form.num_directions, len(weights) // form.num_directions
    directions = [weights[d * each : (d + 1) * each] for d in range(D)]
    W, R = (torch.stack([_in_order(own[index]) for own in directions]) for index in (0, 1))
    biases = [[_in_order(bias) for bias in own[2:] if bias is not None] for own in directions]
    B = torch.stack([torch.cat(pair) for pair in biases]) if all(biases) else None
    H = int(R.shape[2])
    lengths = None if lengths is None else lengths.to(torch.int32)
    inputs = [X, W, R, B, lengths, initial_h, *([] if attention is None else [attention.unsqueeze(2)])]
    attributes: dict[str, Any] = {"hidden_size": H, "direction": form.direction}
    attributes["linear_before_reset"] = int(form.linear_before_reset)
    if form.activations != ("Sigmoid", "Tanh") * D:
        attributes["activations"] = list(form.activations)
    for name in ("activation_alpha", "activation_beta"):
        if getattr(form, name):
            attributes[name] = list(getattr(form, name))
    if form.clip:
        attributes["clip"] = form.clip
    if attention is not None and form.attention != "openvino":
        attributes["attention"] = form.attention
    operator = "GRU" if attention is None else f"{AUGRU_DOMAINS[0]}::{AUGRU.name}"
    T, rows = X.shape[:2]
    if compute is not None:
        present = [tensor is not None for tensor in inputs]
        given = [tensor for tensor in (*inputs, *tensors) if tensor is not None]
        Y, Y_h = _Node.apply(compute, operator, attributes, present, *given)
    elif not hasattr(torch.onnx, "ops"):
        raise SpecError(f"export: PyTorch {torch.__version__}; must be 2.8 or newer for dynamo=True")
    else:
        Y, Y_h = torch.onnx.ops.symbolic_multi_out(
            operator,
            inputs,
            attributes,
            dtypes=(X.dtype, X.dtype),
            shapes=((T, D, rows, H), (D, rows, H)),
            version=_OPSET if attention is None else AUGRU.version,
        )
    return (Y.squeeze(1) if D == 1 else Y.transpose(1, 2).flatten(2)), Y_h


def _in_order(weight: Tensor | None) -> Tensor:
    """Return a weight in ONNX's gate order z, r, n instead of PyTorch's r, z, n."""
    assert weight is not None
    r, z, n = weight.chunk(3)
    return torch.cat((z, r, n))


class _Node(torch.autograd.Function):
    """Autograd function that the older exporter records instead of the call."""

    # The first tensors are the node's inputs. `compute` uses the others.

    @staticmethod
    def forward(ctx: Any, compute: Any, operator: str, attributes: Any, present: Any, *given: Tensor) -> Any:
        return compute(given[sum(present) :])

    @staticmethod
    def symbolic(g: Any, _: Any, operator: str, attributes: Any, present: Any, *given: Any) -> Any:
        kinds = {int: "i", float: "f", str: "s"}
        marked = {
            f"{name}_{kinds[type(value[0] if isinstance(value, list) else value)]}": value
            for name, value in attributes.items()
        }
        rest = iter(given)
        inputs = [next(rest) if is_there else _nothing(g) for is_there in present]
        return g.op(operator, *inputs, **marked, outputs=2)


def _nothing(g: Any) -> Any:
    """Return an omitted input."""
    value = g.op("prim::Constant")
    value.setType(torch._C.OptionalType.ofTensor())
    return value
