"""Public names of a package that are imported when first used, so that `import parallelsearch` costs nothing.

The base install has no torch, and importing a family must import nothing heavy. A package says where its names live and
says them a second time, for type checkers and editors, under `TYPE_CHECKING`; a contract test holds the two together.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package that finds its public names in its modules."""

    _homes: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        home = self.__dict__["_homes"].get(name)
        if home is None:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"{self.__name__}.{home}"), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python sets every imported module on its package. Where a module has the name of the public function in it
        # (`rollout`), the function keeps the name: what `from parallelsearch import rollout` gives must not depend on
        # who imported what before.
        if not (isinstance(value, ModuleType) and name in self.__dict__["_homes"]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.__dict__["_homes"]})


def export(package: str, names: Mapping[str, Sequence[str]]) -> None:
    """Make `names`, by module, the public names of the package. It may have set names of its own in `__all__` before."""
    module = sys.modules[package]
    homes = {name: home for home, group in names.items() for name in group}
    module.__dict__["_homes"] = homes
    module.__dict__["__all__"] = [*module.__dict__.get("__all__", ()), *homes]
    module.__class__ = _Package
