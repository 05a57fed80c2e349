"""Write files with int8 weights as `onegru.quantize` does, without its measurements."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from onegru.core.arguments import node_names
from onegru.core.dtypes import check_group_size
from onegru.formats.opened import open_model
from onegru.reports import Rewriting
from onegru.rewriting.check import wanted_check
from onegru.rewriting.rewrite import rewrite_file


def store_in_int8(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    quantize: bool | Collection[str] = True,
    group_size: int | None = None,
    check: object = True,
    **options: Any,
) -> Rewriting:
    """Write a file with int8 W and R of GRU nodes, and with other fields of `RewriteOptions`."""
    names, group = node_names("quantize", quantize), check_group_size(group_size)
    file = open_model("source", source)
    return rewrite_file(file, target, wanted_check(check), quantize=names, group_size=group, **options)
