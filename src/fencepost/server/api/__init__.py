"""One file per API, named by its key: the listing of this folder is the list of supported APIs.

Every module `kNN_name.py` defines `API`. A module in this folder needs no other registration.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from fencepost.server.net.router import Api


def _load() -> dict[int, Api]:
    apis: list[Api] = [import_module(f"{__name__}.{module.name}").API for module in iter_modules(__path__)]
    return {api.key: api for api in sorted(apis, key=lambda api: api.key)}


APIS: Final[Mapping[int, Api]] = _load()
