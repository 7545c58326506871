"""Options that several commands share, and the settings of a command that works on a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl.errors import OtherJob
from workers.config.settings import Settings, load_settings
from workers.stack.stack import Stack, settings_of

StateDir = Annotated[
    Path | None, typer.Option(help="Folder of the stack. [default: .turnpoint]", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for scripts.")]
JobOption = Annotated[
    str | None, typer.Option("--job-id", help="The job. [default: demo]", show_default=False)
]


def settings_of_job(job_id: str | None, state_dir: Path | None) -> Settings:
    """The settings of a command that works on a job: on the one of this folder's stack.

    Raises:
        OtherJob: The stack was started for another job; nothing was touched.
    """
    settings = load_settings(job_id=job_id, state_dir=state_dir)
    record = Stack(settings).record()
    if record is not None and (theirs := settings_of(record).job_id) != settings.job_id:
        raise OtherJob(
            f"the stack in {settings.state_dir} is that of job {theirs!r}, and one stack has one "
            f"job: start another for {settings.job_id!r} with `turnpoint up --job-id "
            f"{settings.job_id} --state-dir FOLDER`",
            participant=theirs,
        )
    return settings
