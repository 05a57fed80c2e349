"""docs/reference/cli.md: the command line, as typer has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from docs.generate.markdown import table
from onegru.cli.app import app


def commands() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    return "\n\n".join(part for name, command in group.commands.items() for part in _command(name, command))


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name == "option" and not item.hidden]
    yield f"## onegru {name}"
    usage = " ".join(["onegru", name, *(item.metavar for item in arguments), "[OPTIONS]"])
    yield f"```text\n{usage}\n```"
    for paragraph in command.help.split("\n\n"):
        first, _, example = paragraph.partition("Example: ")
        yield f"```text\n{example}\n```" if example and not first else " ".join(paragraph.split())
    if arguments:
        yield table(["argument", "what it is"], ((f"`{item.metavar}`", item.help) for item in arguments))
    if options:
        yield table(["option", "what it does"], map(_option, options))


def _option(option: Any) -> tuple[str, str]:
    names = ", ".join(f"`{name}`" for name in option.opts)
    if option.secondary_opts:
        names += " / " + ", ".join(f"`{name}`" for name in option.secondary_opts)
    if not option.is_flag:
        names += f" `{option.metavar or option.name.upper()}`"
    more = " May be given several times." if option.multiple else ""
    if option.default not in (None, "") and not option.is_flag:
        more += f" Default `{option.default}`."
    return names, f"{option.help}{more}"
