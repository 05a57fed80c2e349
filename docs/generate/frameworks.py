"""The table of frameworks in docs/reference/files.md."""

from __future__ import annotations

from docs.generate.markdown import table
from onegru.frameworks.layouts import FLAX_LINEN, FLAX_NNX, KERAS, PYTORCH, Framework


def frameworks() -> str:
    """How each framework keeps a GRU."""
    header = ["framework", "reset gate", "gates", "kernels", "biases", "activations"]
    return table(
        header,
        (
            (
                framework.name,
                " or ".join(("before", "after")[after] for after in sorted(framework.forms)),
                _gates(framework),
                "[input, units]" if framework.transposed else "[units, input]",
                _biases(framework),
                ", ".join(framework.activations) if not framework.fixed_activations else "only sigmoid, tanh",
            )
            for framework in (PYTORCH, KERAS, FLAX_LINEN, FLAX_NNX)
        ),
    )


def _gates(framework: Framework) -> str:
    """The order of its gates."""
    joined = next((form.gates for form in framework.forms[True] if len(form.gates) == 3), "")
    return ", ".join(joined.replace("h", "n")) or "a tensor each"


def _biases(framework: Framework) -> str:
    """Which biases it has, by reset mode."""
    found = {}
    for after, forms in framework.forms.items():
        gates = {
            block: "".join(form.gates for form in forms if block in form.blocks) for block in ("Wb", "Rb")
        }
        words = [
            block if len(have) == 3 else f"{block} of {have.replace('h', 'n')}"
            for block, have in gates.items()
            if have
        ]
        found[after] = " and ".join(words)
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return "; ".join(f"{words} with reset {('before', 'after')[after]}" for after, words in found.items())
