"""Writes the tables of README.md and docs/*.md from the package's own data.

    python -m docs.generate            rewrite what lies between the markers
    python -m docs.generate --check    exit with 1 if that would change a file

A table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import onegru
from docs import conformance_tables as kit
from onegru.core.activations import ACTIVATIONS
from onegru.frameworks.layouts import FLAX_LINEN, FLAX_NNX, KERAS, PYTORCH, Framework
from onegru.operators.onnx import AUGRU, GRU_VERSIONS, NEWEST
from onegru.operators.openvino import OPERATORS
from onegru.operators.schema import Attribute, Operator, Role

ROOT = Path(__file__).resolve().parents[1]
FILES = ("README.md", "docs/operators.md", "docs/conversion.md", "docs/conformance.md")

ALL = (NEWEST, AUGRU, *OPERATORS.values())

_SIZES = {"G": "3H", "N": "6H"}
_NONE = "–"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code(text: object) -> str:
    """`text` as code, in a cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def function(operator: Operator) -> str:
    """The function or layer that runs an operator."""
    if operator is AUGRU:
        return "GRU(attention=True)"
    name = re.sub("(Cell|Sequence)", r"_\1", operator.name).lower()
    assert hasattr(onegru, name), name
    return name


def dialect(operator: Operator) -> str:
    """Whose operator it is."""
    return "ONNX" if operator is NEWEST else "onegru's" if operator is AUGRU else "OpenVINO"


# ---- README.md


def operators() -> str:
    """What each operator can do."""
    header = ["operator", "versions", "function", "directions", "reset gate", "activations", "clip"]
    return table(
        [*header, "lengths", "attention"],
        (
            (
                f"{dialect(operator)} {operator.name}",
                _versions(operator),
                code(f"onegru.{function(operator)}"),
                _directions(operator),
                _reset(operator),
                f"all {len(ACTIVATIONS)}"
                if len(operator.activations) == len(ACTIVATIONS)
                else ", ".join(operator.activations),
                "no" if _choices(operator, "clip") == (0.0,) else "yes",
                "yes" if operator.input("sequence_lens") else "no",
                "yes" if operator.attention else "no",
            )
            for operator in ALL
        ),
    )


def _versions(operator: Operator) -> str:
    if operator is NEWEST:
        return ", ".join(map(str, GRU_VERSIONS))
    return str(operator.version) if operator.version else "internal"


def _choices(operator: Operator, name: str) -> tuple[object, ...] | None:
    return operator.attributes[name].choices


def _directions(operator: Operator) -> str:
    if "direction" not in operator.attributes:
        return "one step"
    choices = _choices(operator, "direction")
    assert choices is not None
    return "forward" if len(choices) == 1 else f"all {len(choices)}"


def _reset(operator: Operator) -> str:
    return "before" if _choices(operator, "linear_before_reset") == (False,) else "before or after"


# ---- docs/operators.md


def versions() -> str:
    """What each version of ONNX's GRU changes."""
    rows = [["1", _list(GRU_VERSIONS[1].attributes)]]
    for before, after in pairwise(GRU_VERSIONS):
        rows.append([str(after), "; ".join(_changes(GRU_VERSIONS[before], GRU_VERSIONS[after]))])
    return table(["version", "attributes, and what changes"], rows)


def _changes(old: Operator, new: Operator) -> Iterable[str]:
    if added := [name for name in new.attributes if name not in old.attributes]:
        yield f"adds {_list(added)}"
    if removed := [name for name in old.attributes if name not in new.attributes]:
        yield f"removes {_list(removed)}"
    for name in old.attributes.keys() & new.attributes.keys():
        kept = new.attributes[name].choices or ()
        if lost := [choice for choice in old.attributes[name].choices or () if choice not in kept]:
            yield f"{code(name)} may no longer be {_list(map(repr, lost))}"
    required = {port.name for port in old.outputs if port.required}
    if freed := [port.name for port in new.outputs if port.name in required and not port.required]:
        yield f"output {_list(freed)} becomes optional"
    if types := [name for name in new.element_types if name not in old.element_types]:
        yield f"adds {', '.join(types)}"


def activations() -> str:
    """Every activation function."""
    return table(
        ["function", "formula", "alpha", "beta"],
        (
            (
                code(kind.name),
                code(kind.formula),
                *(
                    _NONE
                    if name not in kind.takes
                    else f"{value:g}"
                    if (value := dict(kind.defaults).get(name)) is not None
                    else "must be given"
                    for name in ("alpha", "beta")
                ),
            )
            for kind in ACTIVATIONS.values()
        ),
    )


def tensors() -> str:
    """The inputs and outputs of each operator, with their shapes."""
    roles: tuple[Role, ...] = ("X", "initial_h", "sequence_lens", "W", "R", "B", "A", "Y", "Y_h")
    header = ["", *(code(operator.name) for operator in ALL)]
    words = {
        "X": "input",
        "initial_h": "first state",
        "sequence_lens": "lengths",
        "W": "input weights",
        "R": "recurrence weights",
        "B": "biases",
        "A": "attention",
        "Y": "every state",
        "Y_h": "last state",
    }
    return table(header, ([words[role], *(_port(operator, role) for operator in ALL)] for role in roles))


def _port(operator: Operator, role: Role) -> str:
    port = next((port for port in operator.ports() if port.role == role), None)
    if port is None:
        return _NONE
    shape = f"{code(port.name)} {_shape(operator, port.axes)}"
    if port.batch_first:
        shape += f", layout 1: {_shape(operator, port.batch_first)}"
    return shape if port.required else f"{shape}, optional"


def _shape(operator: Operator, axes: str) -> str:
    sizes = dict(_SIZES)
    if operator.biases == "summed":
        after = _choices(operator, "linear_before_reset") != (False,)
        sizes["N"] = "3H or 4H" if after else "3H"
    return f"[{', '.join(sizes.get(axis, axis) for axis in axes)}]"


def attributes() -> str:
    """Every attribute with its default and what it may be."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for operator in (GRU_VERSIONS[1], *ALL):
        for attribute in operator.attributes.values():
            key = (attribute.name, _default(attribute), _values(attribute))
            name = "GRU" if operator in (NEWEST, GRU_VERSIONS[1]) else operator.name
            if operator is GRU_VERSIONS[1] and attribute.name in NEWEST.attributes:
                continue
            names = rows.setdefault(key, [])
            names.append(f"{name} before 7" if operator is GRU_VERSIONS[1] else name)
    return table(
        ["attribute", "operators", "default", "may be"],
        ([code(key[0]), ", ".join(names), *key[1:]] for key, names in sorted(rows.items())),
    )


def _default(attribute: Attribute) -> str:
    if attribute.required:
        return "none, required"
    if attribute.default is None or attribute.default == ():
        return _ABSENT.get(attribute.name, "none")
    default = attribute.default
    return ", ".join(map(code, default)) if isinstance(default, tuple) else code(default)


_ABSENT: Mapping[str, str] = {
    "activations": "`Sigmoid`, `Tanh` for each direction",
    "hidden_size": "read off R",
}

_KINDS = {
    "int": "an integer",
    "flag": "a boolean",
    "float": "a number",
    "floats": "numbers",
    "string": "a string",
    "strings": "names",
}


def _values(attribute: Attribute) -> str:
    if attribute.choices is None:
        return _KINDS[attribute.kind]
    return ", ".join("empty" if choice == () else code(choice) for choice in attribute.choices)


def _list(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in names)


# ---- docs/conversion.md


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
                ", ".join(framework.activations)
                if not framework.fixed_activations
                else "sigmoid, tanh alone",
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


# ---- docs/conformance.md


def _of_kit(made: Callable[[], kit.Table]) -> Callable[[], str]:
    return lambda: table(*made())


TABLES: Mapping[str, Callable[[], str]] = {
    item.__name__: item for item in (operators, versions, activations, tensors, attributes, frameworks)
} | {item.__name__: _of_kit(item) for item in (kit.coverage, kit.factors, kit.runtimes, kit.features)}


def update(text: str) -> str:
    """`text` with every table made anew."""

    def fill(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def main() -> int:
    """Update the files, or only say which are out of date."""
    stale = []
    for name in FILES:
        path = ROOT / name
        old = path.read_text(encoding="utf-8")
        new = update(old)
        if new == old:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'out of date' if '--check' in sys.argv else 'updated'}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
