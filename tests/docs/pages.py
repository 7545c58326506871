"""The pages for readers, and the blocks of code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]


def text(page: str) -> str:
    """The whole page."""
    return (ROOT / page).read_text()


def blocks(language: str, pages: list[str] | None = None) -> list[str]:
    """All fenced blocks of a language, in the order of the pages."""
    fence = rf"^ *```{language}\n(.*?)^ *```$"
    found: list[str] = []
    for page in PAGES if pages is None else pages:
        found += re.findall(fence, text(page), re.DOTALL | re.MULTILINE)
    return found


def commands(program: str) -> list[str]:
    """Arguments of every call of a program in a console block, with comments left out."""
    found = []
    for block in blocks("console"):
        joined = re.sub(r"\\\n\s*", "", block)
        call = rf"^\s*\$ (?:[A-Z_]+=\S+ )*{re.escape(program)} (.*?)(?:\s+#.*)?$"
        found += re.findall(call, joined, re.MULTILINE)
    return sorted(set(found))


def rows(page: str, section: str, level: int = 2) -> list[list[str]]:
    """Cells of the tables of one section, without their heads."""
    mark = "#" * level
    start = re.compile(rf"^{mark} {re.escape(section)}$(.*?)(?=^#{{1,{level}}} |\Z)", re.M | re.S)
    (body,) = start.findall(text(page))
    lines = [line for line in body.splitlines() if line.startswith("|")]
    heads = {number - 1 for number, line in enumerate(lines) if set(line) <= set("|-: ")}
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for number, line in enumerate(lines)
        if number not in heads and number - 1 not in heads
    ]
