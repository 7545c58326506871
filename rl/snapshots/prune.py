"""Deletion of old snapshots: a job keeps its newest periodic ones and all that have a name."""

from __future__ import annotations

from typing import NamedTuple

from rl.errors import NoSnapshot, RestoreNotFinished
from rl.snapshots import incarnations
from rl.snapshots.names import number_of
from rl.snapshots.published import PublishedSnapshots


class Pruned(NamedTuple):
    """Names of snapshots, newest first."""

    removed: list[str]
    kept: list[str]


def prune(
    folder: PublishedSnapshots,
    keep_latest_k: int,
    *,
    incarnation: int | None = None,
    other_lines: bool = False,
) -> Pruned:
    """Delete old periodic snapshots of the current line.

    Kept: the newest `keep_latest_k` periodic ones of the line (so also the one that the
    current incarnation was restored from, until the line has a newer one); every named
    one; those of other lines, unless `other_lines`; those whose manifest is damaged (it
    cannot say that they have no name).

    Raises:
        NoSnapshot: The job has never run.
        Superseded: `incarnation` is given and not the newest.
        RestoreNotFinished: The newest incarnation has no origin yet: a restore that is
            under way may want any of them.
    """
    if keep_latest_k < 1:
        raise ValueError("keep_latest_k: at least 1")
    newest = incarnations.newest(folder.path)
    if not newest:
        raise NoSnapshot(
            f"nothing to prune: job {folder.path.name} has never run; `turnpoint run` starts it"
        )
    if incarnation is not None:
        incarnations.require_newest(folder.path, incarnation)
    if incarnations.origin(folder.path, newest) is None:
        raise RestoreNotFinished(f"incarnation {newest} has not named the snapshot it goes on from")
    line = incarnations.current_line(folder.path)
    periodic: list[str] = []
    foreign: list[str] = []
    for name in folder.snapshots():
        manifest = folder.readable(name)
        if manifest is not None and manifest.name is None:
            on_line = line.holds(manifest.incarnation, number_of(name))
            (periodic if on_line else foreign).append(name)
    doomed = periodic[keep_latest_k:] + (foreign if other_lines else [])
    removed = []
    for name in sorted(doomed, key=number_of):
        # A claim in between wants the choice that it finds: asked before each.
        incarnations.require_newest(folder.path, newest)
        if folder.names.to_trash([name]):
            removed.append(name)
    folder.names.empty_trash()
    return Pruned(removed[::-1], folder.snapshots())
