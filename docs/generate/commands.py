"""Table of docs/reference/cli.md: commands with their arguments and options, from typer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from docs.generate.markdown import table
from onegru.cli.app import app

#: The help of an option that is longer than this, in words, is not repeated for other commands.
_SHORT = 12


def commands() -> str:
    """Every command with its arguments and options."""
    known: dict[tuple[str, str], str] = {}
    group: Any = typer.main.get_command(app)
    return "\n\n".join(part for name, item in _all(group) for part in _command(name, item, known))


def _all(group: Any, before: str = "onegru") -> Iterator[tuple[str, Any]]:
    """Every command and subcommand with its full name."""
    for name, command in group.commands.items():
        yield f"{before} {name}", command
        if hasattr(command, "commands"):
            yield from _all(command, f"{before} {name}")


def _command(name: str, command: Any, known: dict[tuple[str, str], str]) -> Iterator[str]:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name == "option" and not item.hidden]
    yield f"## {name}"
    ending = ["COMMAND"] if hasattr(command, "commands") else []
    usage = " ".join([name, *(item.metavar for item in arguments), *ending, "[OPTIONS]"])
    yield f"```text\n{usage}\n```"
    for paragraph in command.help.split("\n\n"):
        first, _, example = paragraph.partition("Example: ")
        yield f"```text\n{example}\n```" if example and not first else " ".join(paragraph.split())
    if arguments:
        yield table(["argument", "description"], ((f"`{item.metavar}`", item.help) for item in arguments))
    if options:
        yield table(["option", "description"], (_option(option, name, known) for option in options))


def _option(option: Any, command: str, known: dict[tuple[str, str], str]) -> tuple[str, str]:
    """The names of an option, and its help, or a link to the first command with the same help."""
    names = ", ".join(f"`{name}`" for name in option.opts)
    if option.secondary_opts:
        names += " / " + ", ".join(f"`{name}`" for name in option.secondary_opts)
    if not option.is_flag:
        names += f" `{option.metavar or option.name.upper()}`"
    text = option.help
    if option.multiple and "repeat" not in text.lower():
        text += " Repeat for several."
    if option.default not in (None, "") and not option.is_flag:
        text += f" Default `{option.default}`."
    first = known.setdefault((names, text), command)
    if first != command and len(text.split()) > _SHORT:
        return names, f"See [{first}](#{first.replace(' ', '-')})."
    return names, text
