"""ONNX Runtime's execution provider for GRU nodes.

    onegru.execution_provider.register()
    session = onnxruntime.InferenceSession(
        "model.onnx", providers=["OnegruExecutionProvider", "CPUExecutionProvider"]
    )

The provider also runs AUGRU nodes, which have attention (docs/operators/augru.md). If the file does not
contain their function, a session that names the provider needs
`options.register_custom_ops_library(onegru.execution_provider.get_library_path())`. With
`options.add_provider_for_devices` it needs nothing. The model and the rest of the program stay unchanged.

ONNX Runtime decides two things. It computes a GRU node with only constant inputs before it asks any
provider, unless the session gets `disabled_optimizers=["ConstantFolding"]`. If the provider rejects a node
or an option, ONNX Runtime prints that and uses its own kernels, unless the session gets
`enable_fallback=0`. `onegru.InferenceSession` handles both. It does not run opsets below 7 with other
nodes; `onegru.load` does.

Options, given as `("OnegruExecutionProvider", {"threads": "1"})`:

    threads: the number of threads of a GRU node, 0…64. Default: 0 (`onegru.get_num_threads()`). A node uses
        the session's threads, and never more than the session has.
    engine: "auto", "native", or "reference" for the float64 reference.
    weight_storage: "float16" or "bfloat16" to store the weights of float32 nodes in half the memory; "int8"
        to store them in a quarter of the memory and multiply integers, as described in `onegru.GRU`.
    activation_storage: "int16" (the default) or "int8" with int8 weights, "bfloat16" with bfloat16 weights.
    flush_subnormals: "1" to replace states that are almost 0 by 0, as described in `onegru.GRU`.

The storage options may name nodes, one per line, as "first=int8" and "second=bfloat16". Other nodes keep
float32. Unknown options and nodes are rejected.

Constant weights are packed once. If nodes compute weights from constants, ONNX Runtime's own kernels compute
them when the session is created. The nodes then do nothing in a run. This covers DequantizeLinear and
QuantizeLinear of any type, Cast, Concat, and nodes that cut (Slice, Split) or move axes (Transpose, Reshape
and similar), in the main graph, subgraphs and functions. Two cases are computed in each run: results that
need far more memory than their constants, and nodes in different subgraphs that share all their names.
Defaults of inputs are packed once, until a run passes other arrays. If weights change in each run, onegru
warns once, with a `SpecWarning` in Python and in ONNX Runtime's log elsewhere. Each run then compares the
weights, and packs them again when they have changed.
"""

from __future__ import annotations

from onegru.runtimes.execution_provider import (
    add_observer,
    get_ep_name,
    get_ep_names,
    get_library_path,
    register,
    remove_observer,
)

__all__ = ["add_observer", "get_ep_name", "get_ep_names", "get_library_path", "register", "remove_observer"]
