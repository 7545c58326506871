"""Every command, file, link and block of the pages is real.

`tests/real/test_story.py` and the demo run the commands; this finds the one that was renamed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from asyncio import Runner
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from activities.contract import TASK_QUEUE, WORKFLOW_TYPES, RestoreInput, SaveInput
from rl.data_plane import FinishedRollout
from tests.docs.pages import PAGES, ROOT, blocks, commands, text
from workers.cli.app import app
from workers.config.settings import load_settings

ROOMS = ("activities", "docker", "docs", "examples", "gym", "rl", "tests", "workers", "workflows")
INPUTS = {"SaveSnapshot": SaveInput, "RestoreSnapshot": RestoreInput}


@pytest.mark.parametrize("line", commands("turnpoint"))
def test_a_turnpoint_command_exists_with_its_flags(line: str) -> None:
    """Break: show a flag that the command does not have."""
    words = shlex.split(line)
    done = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    for word in words[1:]:
        if word.startswith("--"):
            assert word in done.output


def test_every_turnpoint_command_is_in_the_readme() -> None:
    """Break: add a command, and do not tell."""
    named = " ".join(re.findall(r"^\| (`[a-z`, A-Z-]+`) \|", text("README.md"), re.MULTILINE))
    listed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    known = set(re.findall(r"^  ([a-z]+)  +[A-Z]", listed, re.MULTILINE))
    assert len(known) >= 12
    assert known <= set(re.findall(r"[a-z]+", named))


def test_every_make_target_exists() -> None:
    """Break: name a target that the Makefile does not have."""
    shown = {shlex.split(line)[0] for line in commands("make")}
    for page in PAGES:
        calls = re.findall(r"`(?:[A-Z_]+=\S+ )*make ([a-z-]+)[^`]*`", text(page))
        shown |= set(calls)
    assert len(shown) >= 6
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert shown <= targets


def test_contributing_says_how_long_the_targets_take_as_the_makefile_does() -> None:
    """Break: Makefile: change how long `test` takes."""
    makefile = (ROOT / "Makefile").read_text()
    rows = re.findall(r"^\| `make (check|test)` \|.*\| ([^|]*minutes) \|$", text(PAGES[1]), re.M)
    assert len(rows) == 2
    for target, time in rows:
        assert re.search(rf"^{target}:.*## .*: {time}", makefile, re.MULTILINE), target


@pytest.mark.parametrize("line", commands(".venv/bin/temporal"))
def test_a_workflow_started_by_hand_has_its_type_queue_and_input(line: str) -> None:
    """Break: show an input with a field that the workflow refuses."""
    words = shlex.split(line)
    assert words[:2] == ["workflow", "start"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert given["--type"] in WORKFLOW_TYPES and given["--task-queue"] == TASK_QUEUE
    asked = INPUTS[given["--type"]].model_validate(json.loads(given["--input"]))
    assert given["--workflow-id"].startswith(f"{asked.job_id}/")


def test_every_module_that_is_to_be_run_exists() -> None:
    """Break: name a module that is not there."""
    modules = {
        module for page in PAGES for module in re.findall(r"python -m ([a-z_.]+)", text(page))
    }
    assert modules
    for module in modules:
        assert importlib.util.find_spec(module) is not None, module


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    """Break: rename a file that a page names."""
    for name in re.findall(r"`([a-zA-Z_./-]+)`", text(page)):
        first = name.split("/")[0]
        if "/" in name and first in ROOMS and not name.startswith("gym/<"):
            assert list(ROOT.glob(name.rstrip("/"))), name


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_page_and_a_heading(page: str) -> None:
    """Break: rename a heading that another page links to."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, target


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("block", blocks("toml"))
def test_a_configuration_that_a_page_shows_is_accepted(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: show a key that does not exist."""
    (tmp_path / "turnpoint.toml").write_text(block)
    monkeypatch.chdir(tmp_path)
    load_settings(attach=False)


def test_the_demo_that_the_readme_shows_has_the_chapters_of_the_story() -> None:
    """Break: workers/demo/story.py: rename a chapter."""
    source = (ROOT / "workers/demo/story.py").read_text()
    chapters = re.findall(r'_chapter\(f?"([^"]+)"\)', source)
    shown = re.findall(r"^\d\. .+$", blocks("console", ["README.md"])[0], re.MULTILINE)
    assert len(shown) == len(chapters) == 6
    for chapter, line in zip(chapters, shown, strict=True):
        assert re.fullmatch(re.sub(r"\\{.*?\\}", r"\\d+", re.escape(chapter)), line), line


def test_the_code_that_reads_training_rows_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: rl/data_plane/training_rows.py: rename a field of a row."""
    (source,) = blocks("python", ["docs/operations.md"])
    empty = np.zeros(2, np.int32)
    row = FinishedRollout("p0_g0", 0, empty, empty, np.zeros(2, np.float32), 1.0, {}, {})

    async def rows(address: str) -> AsyncIterator[FinishedRollout]:
        yield row

    monkeypatch.setattr("rl.data_plane.read_training_rows", rows)
    with Runner() as runner:
        monkeypatch.setattr("asyncio.run", runner.run)
        exec(source, {})
    assert capsys.readouterr().out == "p0_g0 1.0 (2,) 0\n"


def test_the_pages_show_what_is_checked() -> None:
    assert len(commands("turnpoint")) >= 10
    assert commands("make")
    assert len(commands(".venv/bin/temporal")) == 2
    assert len(blocks("toml")) == 2
    assert len(blocks("mermaid", ["docs/design.md"])) == 2
