"""Import one module of another project without the rest of it.

A planner is often one file of pure Python inside a package whose ``__init__`` needs GPUs. Packages
on the way to it are stood in for, as are the modules it imports and does not use when it plans.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


class NotInstalledError(Exception):
    """The module is in none of the folders."""


class _StandIn(ModuleType):
    """Has whatever is imported from it: a class that nobody calls when planning."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def import_alone(name: str, folders: Sequence[Path], stand_ins: Sequence[str] = ()) -> Any:
    """Import a module of a checkout or an installed package, but no ``__init__`` above it.

    Args:
        name: the module's full name.
        folders: those that hold the top package; the interpreter's own come after them.
        stand_ins: modules and packages beside it whose own code stays unloaded.

    Raises:
        NotInstalledError: there is no such module.
    """
    packages = name.split(".")[:-1]
    path = Path(*packages, name.split(".")[-1] + ".py")
    every = [*folders, *map(Path, sys.path)]
    root = next((folder for folder in every if (folder / path).is_file()), None)
    if root is None:
        raise NotInstalledError(name)
    for depth in range(1, len(packages) + 1):
        _stand_in(".".join(packages[:depth]), root.joinpath(*packages[:depth]))
    for other in stand_ins:
        _stand_in(other, root.joinpath(*other.split(".")))
    return import_module(name)


def _stand_in(name: str, folder: Path) -> None:
    """Put a module without content where an import finds it, unless the real one is loaded.

    Where it is a package, modules below it can still be imported.
    """
    if name in sys.modules:
        return
    module = _StandIn(name)
    if folder.is_dir():
        module.__path__ = [str(folder)]
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], own, module)
