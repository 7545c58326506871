"""Entry point of the program `turnpoint`, under a name that no other project has.

Guarantees: the packages of Turnpoint, whose names are plain words, are imported from where this
module lies, whatever folders of these names stand on PYTHONPATH or in the current folder. No such
package is imported before that holds. `workers.stack.python_path` does the same for the processes
of a stack.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

ROOT = os.path.dirname(os.path.realpath(__file__))
PACKAGES = frozenset({"activities", "gym", "rl", "workers", "workflows"})


class OwnPackages(MetaPathFinder):
    """Finds Turnpoint's packages beside this module, and nothing else."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's place; None leaves it to the other finders."""
        return PathFinder.find_spec(name, [ROOT], target) if name in PACKAGES else None


def main() -> None:
    """Run the command line."""
    sys.meta_path.insert(0, OwnPackages())
    from workers.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
