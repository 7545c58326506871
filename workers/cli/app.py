"""The command line `turnpoint`.

| file | commands |
|---|---|
| `stack` | `up`, `down`, `status`, `logs`, `doctor` |
| `run` | `run` |
| `job` | `save`, `restore`, `prune` |
| `snapshots` | `list`, `inspect`, `verify` |

Guarantees: documented exit codes; an error is one sentence with the next step, a stack trace only
for a bug. Ctrl-C ends a command, and neither the stack nor the job nor a workflow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer
from pydantic import ValidationError
from temporalio.service import RPCError

from gym.protocol import TurnpointError
from workers.cli import job as cli_job
from workers.cli import run as cli_run
from workers.cli import snapshots as cli_snapshots
from workers.cli import stack as cli_stack
from workers.cli.output import (
    EXIT_CODES,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOT_REACHABLE,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_USAGE,
    Output,
    flush,
)
from workers.errors import TemporalRefused, WorkerRoomError


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("turnpoint"))
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show and end.")
]

app = typer.Typer(
    name="turnpoint",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(epilog=EXIT_CODES)
def _turnpoint(version: VersionOption = False) -> None:
    """Saves and restores a running agentic-RL job at turn boundaries."""


for _module in (cli_stack, cli_run, cli_job, cli_snapshots):
    for _command in _module.COMMANDS:
        app.command(epilog=EXIT_CODES)(_command)
app.command("list", epilog=EXIT_CODES)(cli_snapshots.list_snapshots)

_EXIT_CODE_OF = {
    **dict.fromkeys(
        (
            *("server_unreachable", "servers_missing", "ray_unreachable"),
            *("actor_lost", "controller_lost"),
        ),
        EXIT_NOT_REACHABLE,
    ),
    **dict.fromkeys(("job_alive", "other_job", "restore_not_finished"), EXIT_REFUSED),
    "dataset_invalid": EXIT_USAGE,
}
"""Exit codes by an error's stable code, from whatever process; others have their class's."""


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: Without the program's name.

    Returns:
        The exit code.
    """
    output = Output("--json" in arguments)
    try:
        # Typer answers a command's own `typer.Exit` code here, and 130 for Ctrl-C.
        code = app(list(arguments) or ["--help"], standalone_mode=False)
        if code == EXIT_INTERRUPTED:
            raise typer.Abort
        return code if isinstance(code, int) else EXIT_OK
    except ValidationError as error:
        # The models of workflow inputs are checked here as well as in the workflow.
        wrong: dict[str, list[str]] = {}
        for item in error.errors():
            wrong.setdefault(".".join(map(str, item["loc"][:1])), []).append(item["msg"])
        text = "; ".join(f"{key}: {', or '.join(reasons)}" for key, reasons in wrong.items())
        output.error("usage", f"{text}; see `--help`")
        return EXIT_USAGE
    except typer.TyperException as error:
        output.error("usage", f"{error.format_message().rstrip('.')}; see `--help`")
        return EXIT_USAGE
    except typer.Abort:
        output.error(
            "interrupted", "interrupted; the stack, the job and its workflows go on as they are"
        )
        return EXIT_INTERRUPTED
    except (WorkerRoomError, TurnpointError) as error:
        output.error(error.code, str(error))
        return _EXIT_CODE_OF.get(error.code, getattr(error, "exit_code", EXIT_FAILED))
    except OSError as error:
        where = error.filename or "a file, or the current folder"
        why = error.strerror or type(error).__name__
        output.error("os_error", f"{where}: {why}; look at that path and who may use it")
        return EXIT_FAILED
    except RPCError as error:
        refused = TemporalRefused(error.status.name)
        output.error(refused.code, str(refused))
        return refused.exit_code


def main() -> None:
    """Run the program's arguments, and end the process (see `workers.__main__`)."""
    code = EXIT_FAILED
    try:
        code = run(sys.argv[1:])
        flush()
    except BrokenPipeError:
        pass  # `turnpoint list | head -1`: its reader has read enough
    except OSError:
        code = code or EXIT_FAILED  # a full disk: the result was not printed
    # Not sys.exit: with Temporal's runtime loaded, the interpreter's own shutdown can abort
    # (SIGABRT, sdk-python issue 300) and would replace the exit code.
    os._exit(code)
