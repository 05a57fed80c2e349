"""Tables of the native core, generated from the Python package."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from onegru.core.activations import ACTIVATIONS, ActivationKind
from onegru.core.dtypes import ACTIVATION_STORAGES, ELEMENT_TYPES, WEIGHT_STORAGES
from onegru.core.spec import ATTENTIONS, DIRECTIONS
from onegru.engines.native import INTERFACE, MOST_THREADS
from onegru.engines.select import ENGINES
from onegru.formats.onnx.dequantized import CARRIERS
from onegru.operators.onnx import AUGRU, AUGRU_DOMAINS, GRU_VERSIONS
from onegru.operators.schema import Attribute, OpSchema

_STUB = Path(__file__).resolve().parents[2] / "src/onegru/_native.pyi"

_TYPES = {
    "floats": "std::vector<float>",
    "strings": "std::optional<std::vector<std::string>>",
    "float": "std::optional<float>",
    "string": "std::optional<std::string>",
    "int": "std::optional<std::int64_t>",
    "flag": "std::optional<std::int64_t>",
}


# The storage types: a layer has one of the first, and its weights can also have the last.
_STORED = (*ELEMENT_TYPES, "int8")


def native_types() -> str:
    """The element types and their names."""
    kinds = ", ".join("kBFloat16" if name == "bfloat16" else f"k{name.title()}" for name in _STORED)
    return f"enum class ElementType : std::uint8_t {{ {kinds} }};\n{_words('kTypeNames', _STORED)}"


def c_types() -> str:
    """The element types, directions and equations of attention in C."""
    return "\n\n".join(
        (
            _c_enum("onegru_dtype", dict.fromkeys(_STORED, "") | {"int8": "only for weight_storage"}),
            _c_enum("onegru_direction", dict.fromkeys(DIRECTIONS, "")),
            "/* How an attention score a changes the update gate z. */\n"
            + _c_enum(
                "onegru_attention",
                {
                    "no attention": "",
                    "attention openvino": "z = (1 - a)·z, as in OpenVINO's AUGRUCell",
                    "attention dien": "z = 1 - a·(1 - z), as in the paper on DIEN",
                },
            ),
        )
    )


def javascript_types() -> str:
    """The numbers of the element types, and the names of directions and equations in JavaScript."""
    numbers = ", ".join(f"{name.upper()} = {_STORED.index(name)}" for name in ("float32", "int8"))
    directions, attentions = (json.dumps(words) for words in (DIRECTIONS, (None, *ATTENTIONS)))
    return f"const {numbers};\nconst DIRECTIONS = {directions}, ATTENTIONS = {attentions};"


def native_functions() -> str:
    """An enumeration of the activation functions."""
    names = "".join(f"  k{name},\n" for name in ACTIVATIONS)
    count = f"inline constexpr std::size_t kFunctions = {len(ACTIVATIONS)};"
    return f"enum class Function : std::uint8_t {{\n{names}}};\n{count}"


def c_functions() -> str:
    """The activation functions in C."""
    names = (re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() for name in ACTIVATIONS)
    lines = ",\n".join(f"  ONEGRU_{name} = {number}" for number, name in enumerate(names))
    return f"typedef enum onegru_function {{\n{lines}\n}} onegru_function;"


def javascript_functions() -> str:
    """The activation functions in JavaScript."""
    return _wrapped("const ACTIVATIONS = [", (f'"{name}",' for name in ACTIVATIONS)) + "\n];"


def typescript_functions() -> str:
    """The activation functions in TypeScript."""
    return _wrapped("export type ActivationName =", (f'| "{name}"' for name in ACTIVATIONS)) + ";"


def native_activations() -> str:
    """The parameters of each activation function, and their defaults."""

    def value(kind: ActivationKind, parameter: str) -> str:
        if parameter not in kind.parameters:
            return "0"
        default = dict(kind.defaults).get(parameter)
        return "kNoDefault" if default is None else f"{default}f"

    return _rows(
        "FunctionFacts kFunctionFacts[kFunctions]",
        (
            f'{{"{name}", {len(kind.parameters)}, {value(kind, "alpha")}, {value(kind, "beta")}}}'
            for name, kind in ACTIVATIONS.items()
        ),
    )


def native_operators() -> str:
    """Every version of every operator, with its domain."""

    def row(operator: OpSchema, domain: str) -> str:
        flags = (
            operator.attention,
            "bfloat16" in operator.element_types,
            operator.attributes["direction"].choices != DIRECTIONS,
        )
        words = ", ".join(str(flag).lower() for flag in flags)
        return f'{{"{operator.name}", "{domain}", {operator.version}, {words}}}'

    grus = [row(operator, "") for operator in GRU_VERSIONS.values()]
    rows = _rows("OnnxOperator kOnnxOperators[]", [*grus, *(row(AUGRU, name) for name in AUGRU_DOMAINS)])
    newest = f"&kNewestGru = kOnnxOperators[{len(grus) - 1}], &kAugru = kOnnxOperators[{len(grus)}]"
    return f"{rows}\ninline constexpr const OnnxOperator {newest};"


def native_attributes() -> str:
    """The attributes of all versions, a function that visits them, and those that AUGRU lacks."""
    attributes: dict[str, Attribute] = dict(AUGRU.attributes)
    for operator in GRU_VERSIONS.values():
        attributes |= {name: item for name, item in operator.attributes.items() if name not in attributes}
    fields = "".join(f"  {_TYPES[item.kind]} {name};\n" for name, item in attributes.items())
    visits = "".join(f'  visit("{name}", attributes.{name});\n' for name in attributes)
    return (
        f"struct OnnxGruAttributes {{\n{fields}}};\n\n"
        "// Calls visit(name, value) for each attribute.\n"
        "template <class Attributes, class F>\n"
        f"void ForEachAttribute(Attributes& attributes, F&& visit) {{\n{visits}}}\n\n"
        + _words("kAttributesOnlyOfGru", (name for name in attributes if name not in AUGRU.attributes))
    )


def native_inputs() -> str:
    """The inputs of a node, in order."""
    names = [port.name for port in AUGRU.inputs]
    parts = ([part[0].upper() + part[1:] for part in name.split("_")] for name in names)
    constants = ", ".join("".join(("k", *words)) for words in parts)
    return f"enum Input {{ {constants} }};\n{_words('kInputNames', names)}"


def native_choices() -> str:
    """The values of the execution provider's options."""
    choices = {
        "kEngines": ("auto", *ENGINES),
        "kWeightStorages": WEIGHT_STORAGES,
        "kActivationStorages": ACTIVATION_STORAGES,
    }
    return "\n".join(_words(name, words) for name, words in choices.items())


def native_carriers() -> str:
    """The operators that keep a constant constant."""
    return _rows("const char* kCarriers[]", (f'"{name}"' for name in sorted(CARRIERS)))


def native_threads() -> str:
    """The maximum number of threads of a call."""
    return f"inline constexpr std::size_t kMaxThreads = {MOST_THREADS};"


def _digest() -> str:
    text = _STUB.read_text(encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def native_digest() -> str:
    """A digest of the module's stub."""
    return f'_DIGEST = "{_digest()}"'


def native_interface() -> str:
    """The interface that Python expects of the module, with the current digest."""
    words = " ".join((_digest(), *INTERFACE.split(" ")[1:]))
    lines = "\n".join(f'    "{line}"' for line in textwrap.wrap(words, 100, drop_whitespace=False))
    return f"constexpr const char kInterface[] =\n{lines};"


def _c_enum(kind: str, comments: Mapping[str, str]) -> str:
    """Return an enumeration whose constants have these names, with comments, as clang-format writes it."""
    constants = [f"ONEGRU_{name.replace(' ', '_').upper()} = {index}" for index, name in enumerate(comments)]
    if not any(comments.values()):
        return f"typedef enum {kind} {{ {', '.join(constants)} }} {kind};"
    lines = [f"{constant}," for constant in constants[:-1]] + constants[-1:]
    width = max(len(line) for line, comment in zip(lines, comments.values(), strict=True) if comment)
    rows = (
        f"  {line.ljust(width)} /* {comment} */\n" if comment else f"  {line}\n"
        for line, comment in zip(lines, comments.values(), strict=True)
    )
    return f"typedef enum {kind} {{\n{''.join(rows)}}} {kind};"


def _wrapped(first: str, words: Iterable[str]) -> str:
    lines = textwrap.wrap(" ".join(words), 100, initial_indent="  ", subsequent_indent="  ")
    return "\n".join((first, *lines))


def _words(name: str, words: Iterable[str]) -> str:
    quoted = ", ".join(f'"{word}"' for word in words)
    return f"constexpr const char* {name}[] = {{{quoted}}};"


def _rows(what: str, rows: Iterable[str]) -> str:
    lines = "".join(f"    {row},\n" for row in rows)
    return f"inline constexpr {what} = {{\n{lines}}};"
