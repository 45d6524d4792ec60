"""tilesieve: operators, costs and a study bench for models that select before they compute.

    score -> select -> plan -> compute -> combine

`import tilesieve` is cheap: no torch is imported before a name that needs it is used.
The operators are `tilesieve.<name>` (their folders: `tilesieve.ops.<name>`), the nouns they take and
return `tilesieve.<Noun>` (`tilesieve.types`).
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_TYPES = ("Groups", "KVCache", "Pages", "Partial", "Projection", "Rows", "ScoreCache", "Selection", "Slots")
_RUN = ("checked", "observe", "workspace_bytes")


def __getattr__(name: str) -> Any:
    if name in _TYPES:
        return getattr(import_module("tilesieve.types"), name)
    if name in _RUN:
        return getattr(import_module("tilesieve.ops.run"), name)
    catalogue = import_module("tilesieve.ops.catalogue")
    if name in catalogue.NAMES:
        return catalogue.operator(name)
    raise AttributeError(f"module 'tilesieve' has no attribute {name!r}")


def __dir__() -> list[str]:
    catalogue = import_module("tilesieve.ops.catalogue")
    return sorted([*globals(), *_TYPES, *_RUN, *catalogue.NAMES])
