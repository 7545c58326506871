"""Ways to break what a restore or a retry guarantees; the twin must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gym.environments.counter import Counter
from gym.resource.session import Session
from rl.controller import restore as restoring
from rl.controller.acknowledgements import Acknowledgements
from rl.controller.rollout_pump import RolloutPump
from rl.data_plane.names import STAGING
from rl.records.loader import Loader
from rl.records.rollout_record import RolloutRecord
from rl.snapshots.folder import SnapshotFolder
from tests.twin.in_process.fake_data_plane import FakeDataPlane

Break = Callable[[pytest.MonkeyPatch], None]


def drop_owed_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    """After a restore no acknowledgement is sent."""
    send = Acknowledgements.send

    def dropped(self: Acknowledgements, record: RolloutRecord) -> None:
        if record.run.attempt_index == 0:
            send(self, record)

    patch.setattr(Acknowledgements, "send", dropped)


def begin_the_loader_again(patch: pytest.MonkeyPatch) -> None:
    """The loader's place is not restored."""
    patch.setattr(Loader, "resume", lambda saved: Loader.open(saved.workload))


def skip_a_prompt(patch: pytest.MonkeyPatch) -> None:
    """A restored loader gives one rollout too few, and says that it gave it."""
    start = RolloutPump.start

    def skipping(self: RolloutPump) -> int:
        if self._job.incarnation > 2:
            self._job.loader.next()
        return start(self)

    patch.setattr(RolloutPump, "start", skipping)


def keep_stale_staging_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows of calls that no restored run has made stay, and may be taken for answers."""
    clear = FakeDataPlane.clear

    async def kept(self: FakeDataPlane, partition: str, keys: Any) -> None:
        if partition != STAGING:
            await clear(self, partition, keys)

    patch.setattr(FakeDataPlane, "clear", kept)


def apply_mutations_twice(patch: pytest.MonkeyPatch) -> None:
    """A mutation that is sent again takes effect again."""
    apply = Session.apply

    async def forgetful(self: Session[Any], *given: Any, **more: Any) -> Any:
        for receipt in self.receipts:
            self.forget(receipt.request_id)
        return await apply(self, *given, **more)

    patch.setattr(Session, "apply", forgetful)


def restore_another_state(patch: pytest.MonkeyPatch) -> None:
    """A restored counter stands one higher."""
    patch.setattr(Counter, "import_state", lambda self, data: int(data) + 1)


def keep_claims(patch: pytest.MonkeyPatch) -> None:
    """What was claimed before a crash stays claimed."""

    async def kept(self: FakeDataPlane, partition: str) -> None:
        pass

    patch.setattr(FakeDataPlane, "reset_claims", kept)


def continue_restart_only(patch: pytest.MonkeyPatch) -> None:
    """Rollouts of a server that cannot be restored are not told to start over."""
    patch.setattr(restoring, "rollouts_to_restart", lambda matched, servers: {})


def send_nothing_again(patch: pytest.MonkeyPatch) -> None:
    """Restored rollouts are forgotten."""

    async def forgetful(self: RolloutPump, again: list[str]) -> None:
        await feed(self, [])

    feed = RolloutPump._feed
    patch.setattr(RolloutPump, "_feed", forgetful)


def forget_what_is_published(patch: pytest.MonkeyPatch) -> None:
    """A repeated publish and a search on the disk do not find the snapshot of their save."""
    patch.setattr(SnapshotFolder, "_published_as", lambda self, snapshot, checkpoint_id: None)
    patch.setattr(SnapshotFolder, "find_published", lambda self, checkpoint_id: None)


BREAKS: dict[Break, str] = {
    drop_owed_acknowledgements: "not acknowledged|result of",
    begin_the_loader_again: "the loader has given out other rollouts",
    skip_a_prompt: "the loader has given out other rollouts|no row",
    keep_stale_staging_rows: "staging rows of no record",
    apply_mutations_twice: "result differs|sent again without a restore or a failed run",
    restore_another_state: "result differs",
    keep_claims: "never given to the consumer",
    continue_restart_only: "sent again without a restore or a failed run",
    send_nothing_again: "no row",
    forget_what_is_published: "a save has failed",
}
"""Each with a pattern of the sentence that the twin must report."""
