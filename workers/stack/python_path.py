"""Turnpoint's packages come first in the Python processes of a stack.

`gym`, `rl`, `workers`, `workflows` and `activities` are plain names, and a project may have folders
or modules of these names. Links to the five packages lie in `<state_dir>/python`; this folder
stands first on PYTHONPATH, and processes that only run Turnpoint's code have it as their current
folder, which Ray hands on to its workers. (The folder in which the packages are installed would
hide the project's other modules too.)

Guarantees: a Python process of this environment imports Turnpoint's packages; every other module
of the project is found where it is found without Turnpoint.
Not guaranteed: the same for a command of another program (a shell, another environment's
interpreter): its environment is left as it is.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

PACKAGES = ("activities", "gym", "rl", "workers", "workflows")
"""As in `turnpoint_program`, which imports nothing of Turnpoint before it has seen to its names."""
_ROOT = Path(__file__).resolve().parents[2]
_VARIABLE = "PYTHONPATH"


def package_folder(state_dir: Path) -> Path:
    """The folder of links to Turnpoint's packages; it is made if it is not there."""
    folder = state_dir / "python"
    folder.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        link, target = folder / name, str(_ROOT / name)
        if not link.is_symlink() or os.readlink(link) != target:
            attempt = folder / f".{name}.{uuid4().hex}"
            attempt.symlink_to(target)
            attempt.replace(link)
    return folder


def with_packages(env: Mapping[str, str], state_dir: Path, *folders: Path) -> dict[str, str]:
    """An environment in which Turnpoint's packages come first.

    Args:
        env: The process's other variables; what is on their PYTHONPATH stays on it, as the last.
        state_dir: The stack's state folder.
        folders: Folders of a project, before those that are on PYTHONPATH.
    """
    entries = [*map(str, (package_folder(state_dir), *folders)), env.get(_VARIABLE, "")]
    return {**env, _VARIABLE: os.pathsep.join(entry for entry in entries if entry)}


def project_command(
    command: Sequence[str], env: Mapping[str, str], folder: Path, state_dir: Path
) -> tuple[list[str], dict[str, str]]:
    """A project's command and its environment, with Turnpoint's packages first.

    Args:
        command: Program and arguments; one of another environment is left as it is.
        env: The process's variables; programs are looked for on their PATH.
        folder: Working folder of the command: modules in it are importable, as without Turnpoint.
        state_dir: The stack's state folder.
    """
    name = str(folder / command[0]) if "/" in command[0] else command[0]
    program = Path(shutil.which(name, path=env["PATH"]) or name)
    if program.parent.resolve() != Path(sys.executable).parent.resolve():
        return list(command), dict(env)
    if not program.name.startswith("python"):  # a script of this environment, as `uvicorn`
        return list(command), with_packages(env, state_dir)
    script = next((word for word in command[1:] if not word.startswith("-")), "")
    first = (folder / script).parent if script.endswith(".py") else folder
    # -P: without it the folder would stand before PYTHONPATH.
    return [command[0], "-P", *command[1:]], with_packages(env, state_dir, first)
