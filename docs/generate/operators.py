"""Tables of docs/operators/."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import onegru
from docs.generate.markdown import NONE, code, listed, table
from onegru.core.activations import ACTIVATIONS
from onegru.operators.onnx import AUGRU, GRU_VERSIONS, NEWEST
from onegru.operators.openvino import OPERATORS
from onegru.operators.schema import Attribute, OpSchema, Port, Role
from onegru.runtimes.known_issues import MEASURED, RULES

ALL: Mapping[str, OpSchema] = {item.name: item for item in (NEWEST, AUGRU, *OPERATORS.values())}

_SIZES = {"G": "3H", "N": "6H"}
_RUNTIMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "onnx": "ONNX's reference evaluator"}
_EFFECTS = {"refuses": "rejected", "miscomputes": "wrong result"}


def operators() -> str:
    """The supported features of each operator."""
    header = ["operator", "versions", "function", "directions", "reset gate", "activations", "clip"]
    return table(
        [*header, "lengths", "attention"],
        (
            (
                f"{_dialect(operator)} {operator.name}",
                _versions(operator),
                code(f"onegru.{_function(operator)}"),
                _directions(operator),
                "before" if _choices(operator, "linear_before_reset") == (False,) else "before or after",
                f"all {len(ACTIVATIONS)}"
                if len(operator.activations) == len(ACTIVATIONS)
                else ", ".join(operator.activations),
                "yes" if _clips(operator) else "no",
                "yes" if operator.input("sequence_lens") else "no",
                "yes" if operator.attention else "no",
            )
            for operator in ALL.values()
        ),
    )


def _dialect(operator: OpSchema) -> str:
    return "ONNX" if operator is NEWEST else "onegru" if operator is AUGRU else "OpenVINO"


def _function(operator: OpSchema) -> str:
    """The function or layer that runs an operator."""
    if operator is AUGRU:
        return "GRU(attention=True)"
    name = re.sub("(Cell|Sequence)", r"_\1", operator.name).lower()
    assert hasattr(onegru, name), name
    return name


def _versions(operator: OpSchema) -> str:
    if operator is NEWEST:
        return ", ".join(map(str, GRU_VERSIONS))
    return str(operator.version) if operator.version else "internal"


def _choices(operator: OpSchema, name: str) -> tuple[object, ...] | None:
    return operator.attributes[name].choices


def _clips(operator: OpSchema) -> bool:
    return _choices(operator, "clip") != (0.0,)


def _directions(operator: OpSchema) -> str:
    if "direction" not in operator.attributes:
        return "one step"
    choices = _choices(operator, "direction")
    assert choices is not None
    return "forward" if len(choices) == 1 else f"all {len(choices)}"


def versions() -> str:
    """The changes of each version of ONNX's GRU."""
    rows = [["1", f"adds {listed(GRU_VERSIONS[1].attributes)}"]]
    for before, after in pairwise(GRU_VERSIONS):
        rows.append([str(after), "; ".join(_changes(GRU_VERSIONS[before], GRU_VERSIONS[after]))])
    return table(["version", "changes"], rows)


def _changes(old: OpSchema, new: OpSchema) -> Iterable[str]:
    if added := [name for name in new.attributes if name not in old.attributes]:
        yield f"adds {listed(added)}"
    if removed := [name for name in old.attributes if name not in new.attributes]:
        yield f"removes {listed(removed)}"
    for name in old.attributes.keys() & new.attributes.keys():
        kept = new.attributes[name].choices or ()
        if lost := [choice for choice in old.attributes[name].choices or () if choice not in kept]:
            yield f"{code(name)} no longer accepts {listed(map(repr, lost))}"
    required = {port.name for port in old.outputs if port.required}
    if freed := [port.name for port in new.outputs if port.name in required and not port.required]:
        yield f"output {listed(freed)} becomes optional"
    if types := [name for name in new.element_types if name not in old.element_types]:
        yield f"adds the type {', '.join(types)}"


def activations() -> str:
    """Every activation function."""
    return table(
        ["function", "formula", "alpha", "beta"],
        (
            (
                code(kind.name),
                code(kind.formula),
                *(
                    NONE
                    if name not in kind.parameters
                    else f"{value:g}"
                    if (value := dict(kind.defaults).get(name)) is not None
                    else "required"
                    for name in ("alpha", "beta")
                ),
            )
            for kind in ACTIVATIONS.values()
        ),
    )


def equations(name: str) -> str:
    """One step of an operator."""
    operator = ALL[name]
    biases = {"separate": " + Wb{0} + Rb{0}", "summed": " + B{0}"}[operator.biases]
    clip = "clip({})" if _clips(operator) else "{}"
    both = _choices(operator, "linear_before_reset") != (False,)

    def line(result: str, function: str, products: str, when: str = "") -> str:
        text = f"{result} = {function}({clip.format(products)})"
        return f"{text:54}{when}".rstrip()

    lines = [line(gate, "f", f"x·W{gate}ᵀ + h·R{gate}ᵀ{biases.format(gate)}") for gate in ("z", "r")]
    before = f"x·Whᵀ + (r∘h)·Rhᵀ{biases.format('h')}"
    lines.append(line("n", "g", before, "linear_before_reset = 0" if both else ""))
    if both:
        lines.append(line("n", "g", "x·Whᵀ + r∘(h·Rhᵀ + Rbh) + Wbh", "linear_before_reset = 1"))
    if "attention" in operator.attributes:
        lines.append(f'{"z = (1 - a)·z":54}attention = "openvino"')
        lines.append(f'{"z = 1 - a·(1 - z)":54}attention = "dien"')
    elif operator.attention:
        lines.append("z = (1 - a)·z")
    lines.append("h = (1 - z)∘n + z∘h")
    return "```text\n" + "\n".join(lines) + "\n```"


_WORDS: Mapping[Role, str] = {
    "X": "input",
    "initial_h": "initial state",
    "sequence_lens": "length of each row",
    "W": "input weights for z, r, h",
    "R": "recurrence weights for z, r, h",
    "B": "biases",
    "A": "attention scores",
    "Y": "state after every step",
    "Y_h": "last state of each row",
}
_WORDS_OF_A_STEP: Mapping[Role, str] = {**_WORDS, "initial_h": "state", "Y_h": "new state"}


def ports(name: str) -> str:
    """The inputs and outputs of an operator, with their shapes."""
    operator = ALL[name]
    return "\n\n".join(
        _ports(operator, *kind) for kind in (("input", operator.inputs), ("output", operator.outputs))
    )


def _ports(operator: OpSchema, kind: str, of: Sequence[Port]) -> str:
    words = _WORDS if operator.input("sequence_lens") else _WORDS_OF_A_STEP
    two = any(port.batch_first for port in operator.ports())
    header = [kind, "meaning", "shape", *(["shape with layout 1"] if two else [])]
    rows = []
    for port in of:
        shapes = [_shape(operator, port.axes)]
        if two:
            shapes.append(_shape(operator, port.batch_first) if port.batch_first else "same")
        notes = [words[port.role], *([" or ".join(port.types)] if port.types else [])]
        rows.append([code(port.name), ", ".join([*notes, *([] if port.required else ["optional"])]), *shapes])
    return table(header, rows)


def _shape(operator: OpSchema, axes: str) -> str:
    sizes = dict(_SIZES)
    if operator.biases == "summed":
        after = _choices(operator, "linear_before_reset") != (False,)
        sizes["N"] = "3H or 4H" if after else "3H"
    return f"[{', '.join(sizes.get(axis, axis) for axis in axes)}]"


def attributes(name: str) -> str:
    """The attributes of an operator, with their defaults and values."""
    operator = ALL[name]
    history = tuple(GRU_VERSIONS.values()) if operator is NEWEST else (operator,)
    # The newest description of each.
    found = {item.name: item for version in history for item in version.attributes.values()}
    header = ["attribute", *(["versions"] if operator is NEWEST else []), "default", "values"]
    return table(
        header,
        (
            [
                code(item.name),
                *([_lifetime(item.name)] if operator is NEWEST else []),
                *_range(item, in_onnx=operator.biases == "separate"),
            ]
            for item in sorted(found.values(), key=lambda item: item.name)
        ),
    )


def _lifetime(attribute: str) -> str:
    """The versions of ONNX's GRU with an attribute."""
    having = [number for number, version in GRU_VERSIONS.items() if attribute in version.attributes]
    if having == list(GRU_VERSIONS):
        return "all"
    return f"from {having[0]}" if having[-1] == NEWEST.version else listed(having).replace("`", "")


def _range(attribute: Attribute, *, in_onnx: bool) -> tuple[str, str]:
    """The default, and the valid values."""
    if attribute.kind == "flag" and in_onnx:
        return code(int(bool(attribute.default))), "an integer, 0 is false"
    return _default(attribute), _values(attribute)


def _default(attribute: Attribute) -> str:
    if attribute.required:
        return "required"
    if attribute.default is None or attribute.default == ():
        return _ABSENT.get(attribute.name, "none")
    default = attribute.default
    return listed(default) if isinstance(default, tuple) else code(default)


_ABSENT: Mapping[str, str] = {
    "activations": "`Sigmoid`, `Tanh` for each direction",
    "hidden_size": "from R",
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


def issues(name: str) -> str:
    """Known problems of other runtimes with an operator."""
    return "\n\n".join(_issues(name))


def _issues(name: str) -> Iterator[str]:
    for runtime, version in MEASURED.items():
        rules = [rule for rule in RULES if rule.runtime == runtime and name in rule.operators]
        if rules:
            yield f"**{_RUNTIMES[runtime]} {version}**"
            yield "\n".join(f"- *{_EFFECTS[rule.effect]}*: {_named(rule.reason)}" for rule in rules)


def _named(reason: str) -> str:
    """The reason, with names that contain an underscore as code."""
    return re.sub(r"\b[A-Za-z.]+(?:_[a-z]+)+(?:\(\))?", lambda match: f"`{match[0]}`", reason)
