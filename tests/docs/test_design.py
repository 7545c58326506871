"""`docs/design.md` and the code say the same: sections, tables, order, phases, invariants."""

from __future__ import annotations

import re
from pathlib import Path

from gym.protocol import Phase
from gym.protocol.control import ControlRequest, JoinRequest
from rl.nemo_gym import restore, save
from tests.docs.pages import ROOT, blocks, rows, text
from workflows import restore_snapshot, save_snapshot

PAGE = "docs/design.md"
CODE = [
    path
    for room in ("activities", "examples", "gym", "rl", "tests", "workers", "workflows")
    for path in (ROOT / room).rglob("*.py")
]
CITED = re.compile(r"(?:design,?(?:'s)?\s+|\()sections?\s+([0-9][0-9, and]*)")


def _sections() -> dict[int, str]:
    found = re.findall(r"^## (\d+)\. (.+)$", text(PAGE), re.MULTILINE)
    return {int(number): title for number, title in found}


def test_every_section_that_the_code_cites_is_there() -> None:
    """Break: cite a section that does not exist, or delete one."""
    cited: dict[int, list[Path]] = {}
    for path in CODE:
        for numbers in CITED.findall(path.read_text()):
            for number in re.findall(r"\d+", numbers):
                cited.setdefault(int(number), []).append(path)
    assert len(cited) >= 8
    assert cited.keys() <= _sections().keys()
    assert list(_sections()) == list(range(1, 12))


def test_every_invariant_that_the_code_cites_is_there() -> None:
    """Break: delete the last invariant."""
    listed = text(PAGE).partition("## 10. Invariants")[2].partition("## 11.")[0]
    numbers = [int(row) for row in re.findall(r"^(\d+)\. ", listed, re.MULTILINE)]
    assert numbers == list(range(1, 14))
    for path in CODE:
        for number in re.findall(r"\binvariants? (\d+)", path.read_text()):
            assert int(number) in numbers, path


def test_the_tables_have_the_activities_in_the_order_of_the_workflows() -> None:
    """Break: workflows/save_snapshot.py: swap two phases in PHASES."""
    saving = [row[1].strip("`") for row in rows(PAGE, "4. Saving")[: len(save_snapshot.PHASES)]]
    assert saving == save_snapshot.PHASES
    restoring = [row[1].strip("`") for row in rows(PAGE, "5. Restoring")]
    assert restoring == restore_snapshot.PHASES
    readme = [row[0].strip("`") for row in rows("README.md", "How it works")]
    assert readme == save_snapshot.PHASES


def test_the_pictures_have_the_kinds_in_the_order_of_the_code() -> None:
    """Break: rl/nemo_gym/save.py: swap two kinds in COMMIT."""
    saving, restoring = blocks("mermaid", [PAGE])

    def order(picture: str, verb: str) -> list[str]:
        found = re.findall(rf"^ +N->>([MAR]): (?:POST )?{verb}\b", picture, re.MULTILINE)
        return list(dict.fromkeys(found))

    short = {"model": "M", "agent": "A", "resource": "R"}
    for verb, kinds in (
        ("prepare", save.PREPARE),
        ("commit", save.COMMIT),
        ("resume", save.RESUME),
    ):
        assert order(saving, verb) == [short[kind] for kind in kinds]
    for verb, kinds in (
        ("restore", restore.RESTORE),
        ("discard", restore.DROP),
        ("resume", restore.RESUME),
    ):
        assert order(restoring, verb) == [short[kind] for kind in kinds]


def test_the_pictures_have_every_activity() -> None:
    """Break: leave an activity out of a picture."""
    saving, restoring = blocks("mermaid", [PAGE])
    for phase in save_snapshot.PHASES:
        assert re.search(rf"^ +W->>\w: {phase}\b", saving, re.MULTILINE), phase
    for phase in restore_snapshot.PHASES:
        assert re.search(rf"^ +W->>\w: {phase}\b", restoring, re.MULTILINE), phase


def test_every_phase_of_a_server_is_named() -> None:
    """Break: gym/protocol/records.py: add a phase."""
    (picture,) = blocks("text", [PAGE])
    drawn = set(re.findall(r"\w+", picture))
    assert {phase.value for phase in Phase} == drawn


def test_every_control_route_is_listed() -> None:
    """Break: gym/protocol/control.py: add a request."""
    requests = [JoinRequest, *ControlRequest.__subclasses__()]
    served = {f"POST {kind.__name__.removesuffix('Request').lower()}" for kind in requests}
    listed = {row[0].replace("`", "") for row in rows(PAGE, "6. Control protocol")}
    assert len(served) >= 10
    assert served | {"GET capabilities", "GET status"} == listed
