"""Each invariant of the design (section 10) has a test that was seen red with the code broken.

Such a test says so in its docstring:

    Invariant 4. Break: gym/resource/session.py: forget the receipts; seen red.

No program breaks the code anew: an engineer does, after a change to such a test or its code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INVARIANTS = range(1, 14)
NAMED = re.compile(r"\bInvariant (\d+)\. Break: (\S+\.py): [^;]+; seen red\.")


def named(root: Path) -> Iterator[tuple[int, str, str]]:
    """The invariant, the broken file and the test of every docstring that names them."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if not node.name.startswith("test_"):
                    continue
                told = " ".join((ast.get_docstring(node) or "").split())
                for invariant, file in NAMED.findall(told):
                    yield int(invariant), file, f"{path.relative_to(root)}::{node.name}"


@cache
def named_here() -> list[tuple[int, str, str]]:
    return list(named(ROOT))


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_every_invariant_has_a_test_that_was_seen_red(invariant: int) -> None:
    assert [test for number, _, test in named_here() if number == invariant]


def test_the_broken_files_are_code_of_this_project() -> None:
    for invariant, file, test in named_here():
        assert invariant in INVARIANTS, test
        assert file.split("/")[0] in ("activities", "gym", "rl", "workers", "workflows"), test
        assert (ROOT / file).is_file(), f"{test} names {file}, which is not there any more"


def test_a_docstring_of_another_form_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    forms = [
        "Invariant 3. Break: gym/lease.py: arm no timer; seen red.",
        "Invariant 4. Break: gym/resource/session.py: forget\\n    the receipts; seen red.",
        "Invariant 5. Break: forget the receipts; seen red.",
        "Invariant 6. Break: gym/resource/session.py: forget the receipts.",
        "Invariant 7.",
    ]
    tests = [
        f'def test_{n}():\n    """{form}"""'.replace("\\n", "\n") for n, form in enumerate(forms)
    ]
    (tmp_path / "tests" / "test_x.py").write_text("\n\n\n".join(tests) + "\n")
    assert [(number, test) for number, _, test in named(tmp_path)] == [
        (3, "tests/test_x.py::test_0"),
        (4, "tests/test_x.py::test_1"),
    ]
