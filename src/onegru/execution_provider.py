"""ONNX Runtime's execution provider for GRU nodes.

    onegru.execution_provider.register()
    session = onnxruntime.InferenceSession(
        "model.onnx", providers=["OnegruExecutionProvider", "CPUExecutionProvider"]
    )

AUGRU nodes, which have attention (docs/operators/augru.md), are run as well; of a file without their function
a session that gets the provider by name is configured by
`options.register_custom_ops_library(onegru.execution_provider.get_library_path())`, while
`options.add_provider_for_devices` needs nothing. The model is as it was, and so is the program around the
session. Two things are ONNX Runtime's own. A GRU node whose inputs are all
constants is computed by it before it asks any provider, unless the session gets
`disabled_optimizers=["ConstantFolding"]`. And where a node or an option is refused, it prints so and goes on
with its own kernels, unless the session gets `enable_fallback=0`. `onegru.InferenceSession` sees to both. It
does not run opsets below 7 with other nodes; `onegru.load` does.

Options, given as `("OnegruExecutionProvider", {"threads": "1"})`:

    threads: how many threads a GRU node may use, 0…64; 0, the default, for `onegru.get_num_threads()`. They
        are those of the session: it never uses more than it has.
    engine: "auto", "native", or "reference" for the float64 reference.
    weight_storage: "float16" or "bfloat16" to store the weights of float32 nodes in half the memory; "int8"
        to store them in a quarter and to multiply in integers, as `onegru.GRU` describes.
    activation_storage: "int16" (the default) or "int8" with weights in int8, "bfloat16" with bfloat16.
    flush_subnormals: "1" to have states that are almost 0 count as 0, as `onegru.GRU` describes.

The storages may name nodes, one per line, as "first=int8" and "second=bfloat16"; the others keep
float32. Options and nodes that the provider does not know are refused.

Weights are packed once where they do not change. Those that nodes make of constants are computed as the
session is made, by ONNX Runtime's own kernels, and the nodes have nothing to do in a run: DequantizeLinear
and QuantizeLinear of any type, Cast, Concat, and what cuts (Slice, Split) or moves axes (Transpose, Reshape
and the like), in the main graph, in bodies and in functions. Only what would take far more memory than the
constants, and nodes in different bodies that share all their names, are left to each run. Defaults of inputs
are packed once, until a run passes others. If weights change in each run, onegru warns once with a
`SpecWarning` in Python and in ONNX Runtime's log elsewhere: each run compares them, and packs them again
when they have changed.
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
