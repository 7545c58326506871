"""Names of modules in docstrings are real, and every package says where to begin."""

from __future__ import annotations

import ast
import re

from tests.docs.pages import ROOT

ROOMS = ("activities", "examples", "gym", "rl", "workers", "workflows")
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
DOTTED = re.compile(rf"`((?:{'|'.join(ROOMS)})(?:\.\w+)+)`")


def _exists(name: str) -> bool:
    """True for a module, or a name in the source of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:length])
        file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if file.is_file():
            return all(re.search(rf"\b{part}\b", file.read_text()) for part in parts[length:])
    return False


def test_every_module_that_a_docstring_names_is_there() -> None:
    """Break: rename a module, and leave a docstring."""
    for path in FILES:
        for name in DOTTED.findall(path.read_text()):
            assert _exists(name), f"{path.relative_to(ROOT)}: {name}"


def test_every_package_says_in_a_sentence_what_is_in_it() -> None:
    """Break: empty the docstring of a package."""
    for path in FILES:
        if path.name == "__init__.py":
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert len(docstring) > 40, path


def test_a_name_that_is_not_there_is_found() -> None:
    assert _exists("gym.protocol.control") and _exists("rl.nemo_gym.save.PREPARE")
    assert not _exists("gym.nowhere") and not _exists("rl.nemo_gym.save.NOTHING")
