"""Claims and origins: `<snapshot_root>/<job_id>/incarnations/` (design section 2).

`<k>.json` is created exclusively before anything of incarnation k is touched; `<k>.from.json`
exclusively before its first `resume`. Both are complete, synced and never changed, so they
survive any crash; of two claimants of one number exactly one gets it.

Not guaranteed: that the newest incarnation still is the newest when the caller acts on it.
Publish, prune and reserve ask again right before the step that counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from gym.durable import create_exclusively, refusal_of_the_disk, sync_folder
from gym.protocol import SCHEMA_VERSION, Wire, canonical_json
from rl.errors import IncarnationDamaged, OriginConflict, Superseded
from rl.messages import SnapshotFolderName
from rl.snapshots.manifest import read_manifest
from rl.snapshots.names import number_of

FOLDER = "incarnations"
_CLAIM = re.compile(r"^([1-9][0-9]*)\.json$")
_ORIGIN = re.compile(r"^([1-9][0-9]*)\.from\.json$")


class Claim(Wire):
    """`<k>.json`: who raised the incarnation."""

    schema_version: Literal[1] = SCHEMA_VERSION
    incarnation: int = Field(ge=1)
    owner: dict[str, Any]
    """Ids only, `run_id` among them: a repeat recognises its own claim by it."""


class Origin(Wire):
    """`<k>.from.json`: where the incarnation's line begins."""

    schema_version: Literal[1] = SCHEMA_VERSION
    incarnation: int = Field(ge=1)
    snapshot: SnapshotFolderName | None
    """Null: a fresh start, a line without a parent."""
    snapshot_incarnation: int | None = Field(default=None, ge=1)
    """The incarnation that saved it; kept here, so that the line survives its deletion."""


def newest(job_folder: Path) -> int:
    """Number of the newest incarnation; 0 if the job never lived."""
    return max(_numbers(job_folder, _CLAIM), default=0)


def not_begun(job_folder: Path) -> int | None:
    """The newest incarnation if it is claimed and has no line of its own yet, else None."""
    number = newest(job_folder)
    return number if number and number not in _numbers(job_folder, _ORIGIN) else None


def require_newest(job_folder: Path, incarnation: int) -> None:
    """Raise `Superseded` unless `incarnation` is the newest."""
    found = newest(job_folder)
    if found != incarnation:
        raise Superseded(
            f"incarnation {incarnation} is not the newest any more, {found} is",
            details={"incarnation": incarnation, "newest": found},
        )


def owned_by(job_folder: Path, run_id: str) -> int | None:
    """The newest incarnation that the owner `run_id` has claimed, or None."""
    for number in sorted(_numbers(job_folder, _CLAIM), reverse=True):
        if _owner_run(job_folder, number) == run_id:
            return number
    return None


def owner(job_folder: Path, incarnation: int) -> dict[str, Any]:
    """Ids of an incarnation's claimant; empty if there is none or the claim does not parse."""
    path = job_folder / FOLDER / f"{incarnation}.json"
    try:
        return Claim.model_validate_json(path.read_bytes()).owner
    except (FileNotFoundError, ValidationError):
        return {}


def claim(job_folder: Path, owner: Mapping[str, Any], *, after: int | None = None) -> int:
    """Raise the incarnation: create `<k+1>.json`, before anything else is touched.

    Args:
        job_folder: The job's folder; it and `incarnations/` are created if missing.
        owner: Ids of the claimant; `run_id` must be among them and name one run of one
            workflow or command.
        after: The incarnation k that the caller has looked at (and found dead). Given, only
            k+1 is claimed; without it the newest there is.

    Returns:
        The claimed incarnation. A repeat by the same `run_id` gets the same number, as long
        as it is the newest.

    Raises:
        Superseded: Another claimant was faster; nothing was touched.
        NoSpace, NotWritten: The disk refuses the claim; nothing was touched.
    """
    run_id = owner.get("run_id")
    if not isinstance(run_id, str) or not run_id:
        raise ValueError("owner needs a run_id: a repeat is recognised by it")
    folder = job_folder / FOLDER
    try:
        return _claim(job_folder, folder, owner, run_id, after)
    except OSError as error:
        raise refusal_of_the_disk(error, participant=job_folder.name) from error


def _claim(
    job_folder: Path, folder: Path, owner: Mapping[str, Any], run_id: str, after: int | None
) -> int:
    _make_folders(folder)
    # Read before asking for an own claim: a twin's claim in between must not be counted past.
    looked_at = newest(job_folder) if after is None else after
    mine = owned_by(job_folder, run_id)
    if mine is None:
        mine = looked_at + 1
        record = Claim(incarnation=mine, owner=dict(owner))
        try:
            create_exclusively(folder / f"{mine}.json", canonical_json(record.model_dump()))
        except FileExistsError:
            # The same run on another worker may have been the faster one.
            if _owner_run(job_folder, mine) != run_id:
                raise _taken(mine, newest(job_folder)) from None
    # A try that died between creating and syncing may be the one that is repeated here.
    sync_folder(folder)
    require_newest(job_folder, mine)
    return mine


def record_origin(job_folder: Path, incarnation: int, snapshot: str | None) -> None:
    """Create `<k>.from.json`, before the first `resume`: from here k has a line of its own.

    Args:
        job_folder: The job's folder.
        incarnation: k; must be the newest.
        snapshot: Name of the snapshot it was restored from; None for a fresh start.

    Raises:
        Superseded: A newer incarnation exists.
        OriginConflict: k has named another origin before.
        SnapshotDamaged: The snapshot's manifest does not say who saved it.
    """
    require_newest(job_folder, incarnation)
    saved_by = None if snapshot is None else read_manifest(job_folder / snapshot).incarnation
    record = Origin(incarnation=incarnation, snapshot=snapshot, snapshot_incarnation=saved_by)
    path = job_folder / FOLDER / f"{incarnation}.from.json"
    try:
        create_exclusively(path, canonical_json(record.model_dump()))
    except FileExistsError:
        if origin(job_folder, incarnation) != record:
            raise OriginConflict(
                f"incarnation {incarnation} has named another origin before",
                details={"incarnation": incarnation, "snapshot": snapshot},
            ) from None
        sync_folder(path.parent)
    except OSError as error:
        raise refusal_of_the_disk(error, participant=job_folder.name) from error


def origin(job_folder: Path, incarnation: int) -> Origin | None:
    """Content of `<k>.from.json`; None for an incarnation without a line of its own."""
    path = job_folder / FOLDER / f"{incarnation}.from.json"
    try:
        return Origin.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise IncarnationDamaged(
            f"this file below {FOLDER}/ does not parse: put it back from a copy of the folder",
            participant=path.name,
            details={"file": path.name},
        ) from None


def head(job_folder: Path) -> Origin | None:
    """Origin of the newest incarnation that has one: the current line grows from there."""
    numbers = _numbers(job_folder, _ORIGIN)
    return origin(job_folder, max(numbers)) if numbers else None


class Line:
    """One line of descent: what each incarnation on it saved, up to where the next branched off.

    Args:
        job_folder: The job's folder.
        incarnation: The line's youngest incarnation; None for a job that has no line.
        up_to: Highest snapshot number of that incarnation that belongs to the line; None for all.
    """

    def __init__(self, job_folder: Path, incarnation: int | None, up_to: int | None = None) -> None:
        # From the youngest incarnation back to the one that started fresh.
        self._limits: dict[int, int | None] = {}
        while incarnation is not None and incarnation not in self._limits:
            self._limits[incarnation] = up_to
            parent = origin(job_folder, incarnation)
            if parent is None or parent.snapshot is None:
                break
            incarnation, up_to = parent.snapshot_incarnation, number_of(parent.snapshot)

    def holds(self, incarnation: int, number: int) -> bool:
        """True if the snapshot `number`, saved by `incarnation`, is on the line."""
        if incarnation not in self._limits:
            return False
        limit = self._limits[incarnation]
        return limit is None or number <= limit


def current_line(job_folder: Path) -> Line:
    """The line that the next save or restore of the job goes on with."""
    start = head(job_folder)
    return Line(job_folder, None if start is None else start.incarnation)


def _numbers(job_folder: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = [entry.name for entry in (job_folder / FOLDER).iterdir()]
    except FileNotFoundError:
        return []
    return [int(found.group(1)) for name in names if (found := pattern.match(name))]


def _owner_run(job_folder: Path, number: int) -> str | None:
    # Files are complete by construction. The number of a damaged one still
    # counts, and it belongs to no run; refusing here would forbid every later restore.
    found = owner(job_folder, number).get("run_id")
    return found if isinstance(found, str) else None


def _make_folders(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def _taken(number: int, found: int) -> Superseded:
    return Superseded(
        f"incarnation {number} is taken by another claimant",
        details={"incarnation": number, "newest": found},
    )
