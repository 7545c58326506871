"""`turnpoint list`, `inspect`, `verify`: they read the snapshot folder and need no server."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import filesize
from rich.console import Group
from rich.table import Table

from gym.protocol import DigestMismatch
from rl.errors import NotFound, SnapshotDamaged
from rl.snapshots.folder import SnapshotFolder
from rl.snapshots.manifest import SnapshotManifest
from workers.cli.options import AsJson, JobOption, StateDir, settings_of_job
from workers.cli.output import EXIT_FAILED, Output
from workers.cli.snapshot_contents import rollouts_in
from workers.config.settings import Settings, load_settings

_NEXT = (
    "a restore skips it and takes the next older one (`turnpoint restore`); no command deletes it. "
    "If every snapshot is damaged in its manifest, the snapshot key is another one"
)

SnapshotArgument = Annotated[
    str, typer.Argument(help="Folder (snapshot_000007), name of a named one, or `latest`.")
]


def list_snapshots(
    job_id: JobOption = None, state_dir: StateDir = None, as_json: AsJson = False
) -> None:
    """List the job's snapshots, newest first. A damaged manifest is shown as such.

    `latest` is the newest of the current line; after a restore of an older snapshot, those that
    its old line saved later are on another one. A job that is not the stack's and has no folder
    is refused (exit code 3).
    """
    output = Output(as_json)
    settings = load_settings(job_id=job_id, state_dir=state_dir)
    folder = _folder(settings)
    if not folder.path.is_dir():
        settings_of_job(job_id, state_dir)  # refuses a job that has no folder and no stack
    current = set(folder.on_current_line())
    rows = [
        {**_row(folder, name), "line": "current" if name in current else "other"}
        for name in folder.snapshots()
    ]
    table = Table(
        *("snapshot", "name", "saved", "incarnation", "line", "unfinished", "finished", "size")
    )
    for row in rows:
        counts = row.get("counts", {})
        table.add_row(
            row["snapshot"],
            row.get("name") or "",
            row.get("created_at", row.get("damaged", "")),
            str(row.get("incarnation", "")),
            row["line"],
            str(counts.get("unfinished", "")),
            str(counts.get("finished", "")),
            filesize.decimal(row["bytes"]) if "bytes" in row else "",
        )
    output.result(rows, table)
    if any("damaged" in row for row in rows):
        output.line(f"damaged: {_NEXT}")


def inspect(
    snapshot: SnapshotArgument = "latest",
    job_id: JobOption = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a snapshot's rollouts, with what a restore does with each, and its files."""
    output = Output(as_json)
    folder = _folder(load_settings(job_id=job_id, state_dir=state_dir))
    try:
        manifest = folder.manifest(_named(folder, snapshot))
        rollouts = rollouts_in(folder.path / manifest.snapshot, manifest)
    except (SnapshotDamaged, DigestMismatch) as error:
        raise _with_next_step(error) from None
    named = f" ({manifest.name})" if manifest.name else ""
    output.line(
        f"{manifest.snapshot}{named}: saved {manifest.created_at:%F %T} UTC by incarnation "
        f"{manifest.incarnation}, {manifest.counts.get('unfinished', 0)} rollouts unfinished, "
        f"{manifest.counts.get('finished', 0)} finished, {filesize.decimal(manifest.bytes)}"
    )
    files = Table("file", "bytes", "records", "sha256")
    for file in manifest.files:
        files.add_row(file.path, str(file.bytes), str(file.records or ""), file.sha256[:16])
    table = Table("rollout", "run", "state", "after a restore", "resource states", "reward")
    for rollout in rollouts:
        revisions = rollout.resource_state_revisions.items()
        table.add_row(
            rollout.rollout_id,
            str(rollout.attempt_index),
            rollout.state.value,
            rollout.outlook,
            ", ".join(f"{name} {'-' if at is None else at}" for name, at in revisions),
            "" if rollout.reward is None else f"{rollout.reward:g}",
        )
    body = manifest.model_dump(mode="json")
    body["rollouts"] = [rollout.model_dump(mode="json") for rollout in rollouts]
    output.result(body, Group(files, table))


def verify(
    snapshot: SnapshotArgument = "latest",
    job_id: JobOption = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Check a snapshot's manifest, its HMAC and the size and digest of every file."""
    output = Output(as_json)
    folder = _folder(load_settings(job_id=job_id, state_dir=state_dir))
    name = _named(folder, snapshot)
    try:
        manifest = folder.verify(name)
    except SnapshotDamaged as error:
        body = {"snapshot": name, "intact": False, **error.details, "next": _NEXT}
        output.result(body, str(_with_next_step(error)))
        raise typer.Exit(EXIT_FAILED) from None
    body = {"snapshot": name, "intact": True, "files": len(manifest.files)}
    output.result(body, f"{name}: intact, {len(manifest.files)} files")


def _with_next_step(error: SnapshotDamaged | DigestMismatch) -> SnapshotDamaged:
    return SnapshotDamaged(
        f"{error.message}; {_NEXT}", participant=error.participant, details=error.details
    )


def _folder(settings: Settings) -> SnapshotFolder:
    return SnapshotFolder(settings.snapshot_place())


def _named(folder: SnapshotFolder, wanted: str) -> str:
    return folder.candidates(wanted)[0]


def _row(folder: SnapshotFolder, name: str) -> dict[str, Any]:
    try:
        manifest: SnapshotManifest = folder.manifest(name)
    except (SnapshotDamaged, NotFound) as error:  # a key that cannot be read damages none
        return {"snapshot": name, "damaged": str(error)}
    row = manifest.model_dump(
        mode="json", include={"snapshot", "name", "incarnation", "created_at", "counts"}
    )
    return {**row, "bytes": manifest.bytes}


COMMANDS = [inspect, verify]
