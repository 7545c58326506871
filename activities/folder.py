"""Activities of the snapshot folder: publish, unpublish, select, prune.

Guarantees: of a publish and an unpublish of one checkpoint exactly one wins, on whatever worker
each runs; a snapshot is selected only after every file's size and digest have been checked.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from temporalio import activity
from temporalio.client import Client

from activities.contract import PruneInput, PruneResult, restore, save
from activities.group import ActivityGroup
from rl.config import JobConfig
from rl.errors import NoSnapshot, SnapshotDamaged, TopologyMismatch
from rl.snapshots.folder import SnapshotFolder
from rl.snapshots.incarnations import require_newest
from rl.snapshots.manifest import SnapshotManifest
from rl.snapshots.prune import prune
from rl.snapshots.topology import require_fit, topology_of


class FolderActivities(ActivityGroup):
    """The requests of saves, restores and prunes to the disk."""

    def __init__(self, client: Client, config: JobConfig) -> None:
        super().__init__(client, config)
        self._folder = SnapshotFolder(config)

    @activity.defn
    async def publish_snapshot(self, request: save.PublishRequest) -> save.PublishResult:
        """Step 4: every file synced and checked, manifest last, one rename.

        It is not begun without time left; once begun the rename decides, whatever the clock says.

        Raises:
            DeadlineExceeded: No time was left; nothing was touched.
            PublishRefused: The folder is not what the servers and the controller answered.
            Unpublished: Compensation or a sweep has won the rename.
        """
        async with self._driving(request) as clock:
            clock.timeout_s()
            manifest = SnapshotManifest(
                job_id=request.job_id,
                snapshot=request.snapshot,
                checkpoint_id=request.checkpoint_id,
                name=request.name,
                incarnation=request.incarnation,
                created_at=datetime.now(UTC),
                topology=request.topology,
                counts=request.counts,
                files=request.files,
            )
            published = await asyncio.to_thread(
                self._folder.publish, request.folder, request.snapshot, manifest, request.files
            )
            return save.PublishResult(
                published=True,
                snapshot=published.snapshot,
                bytes=published.bytes,
                ms=clock.elapsed_ms(),
            )

    @activity.defn
    async def unpublish_snapshot(self, request: save.CheckpointKey) -> save.UnpublishResult:
        """Compensation: rename the folder away; if the publish had won, its snapshot."""
        async with self._driving(request):
            trashed = await asyncio.to_thread(self._folder.discard, request.checkpoint_id)
            snapshot = await asyncio.to_thread(self._folder.find_published, request.checkpoint_id)
            manifest = (
                await asyncio.to_thread(self._folder.manifest, snapshot) if snapshot else None
            )
        return save.UnpublishResult(
            published=manifest is not None,
            snapshot=snapshot,
            bytes=manifest.bytes if manifest is not None else 0,
            trashed=trashed,
        )

    @activity.defn
    async def prune_snapshots(self, request: PruneInput) -> PruneResult:
        """Step 6: delete the snapshots that no restore needs any more."""
        async with self._driving(request):
            removed, kept = await asyncio.to_thread(
                prune,
                self._folder,
                request.keep_latest_k,
                incarnation=request.incarnation,
                other_lines=request.other_lines,
            )
        return PruneResult(removed=removed, kept=kept)

    @activity.defn
    async def select_snapshot(self, request: restore.SelectRequest) -> restore.SelectResult:
        """Restore, step 1: the newest of the line that checks out, before anything is loaded.

        Raises:
            NoSnapshot: None is left; each one's reason is in the details.
            SnapshotDamaged: With `strict`, the first one is damaged; the file is named.
            TopologyMismatch: With `strict`, another fleet saved it.
        """
        skipped: list[str] = []
        async with self._driving(request) as clock:
            require_newest(self._config.job_folder, request.incarnation)
            found = topology_of(self._config, request.servers, {})
            for name in await asyncio.to_thread(self._folder.candidates, request.snapshot):
                if name in request.excluded:
                    continue
                try:
                    manifest = await asyncio.to_thread(self._folder.verify, name)
                    require_fit(manifest.topology, found, snapshot=name)
                except (SnapshotDamaged, TopologyMismatch) as error:
                    if request.strict:
                        raise
                    skipped.append(f"{name}: {error.code}: {error.message}")
                    continue
                return restore.SelectResult(
                    snapshot=name,
                    source_checkpoint_id=manifest.checkpoint_id,
                    source_incarnation=manifest.incarnation,
                    skipped=skipped,
                    bytes=manifest.bytes,
                    files=manifest.files,
                    ms=clock.elapsed_ms(),
                )
        reasons = [*request.reasons, *skipped]
        raise NoSnapshot(
            f"no snapshot is usable: {'; '.join(reasons) or 'there is none'}",
            participant=self._config.job_id,
            details={"reasons": reasons},
        )
