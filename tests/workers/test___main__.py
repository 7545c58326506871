"""The program before its first import: an interrupt there is one sentence, too."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


PROGRAM = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]["turnpoint"].split(":")[0]


@pytest.mark.parametrize("words", [["save"], ["save", "--json"]])
def test_an_interrupt_during_the_imports_is_130_and_one_line(words: list[str]) -> None:
    """Break: name `workers.cli.app:main` as the program."""
    program = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'workers.cli.output':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        f"sys.argv[1:] = {words}\n"
        f"from {PROGRAM} import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    said = "interrupted before anything was done"
    assert done.returncode == 130
    if "--json" in words:
        assert json.loads(done.stdout) == {"error": {"code": "interrupted", "message": said}}
        assert done.stderr == ""
    else:
        assert (done.stdout, done.stderr) == ("", f"turnpoint: {said}\n")
