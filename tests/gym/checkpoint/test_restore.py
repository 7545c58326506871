"""Restores: all or nothing, ended by a reset, and never mixed with another one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from gym.protocol import (
    CheckpointConflict,
    DigestMismatch,
    FolderOutsideRoot,
    InvalidPhase,
    Phase,
    StaleCheckpoint,
    TurnpointError,
    WrittenFile,
)
from tests.gym.parts import checkpoint_folder, participant_in


async def test_a_restore_has_no_lease(tmp_path: Path) -> None:
    participant, _, caller = await participant_in(Phase.RESTORED, tmp_path)
    assert participant.status(caller.status()).lease_left_s is None
    assert not participant.save.renew(caller.renew("rs")).held


async def test_reset_stops_a_running_restore_waits_for_it_and_ends_its_id(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.RESTORING, tmp_path)
    again = asyncio.ensure_future(
        participant.restore.load(caller.restore(checkpoint_folder(tmp_path)))
    )
    await asyncio.sleep(0.01)
    resets = [asyncio.ensure_future(participant.restore.reset(caller.reset())) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert participant.phases.phase is Phase.RESTORING
    assert not any(reset.done() for reset in resets)
    part.read_gate.set()
    for reset in resets:
        assert (await asyncio.wait_for(reset, 1)).phase is Phase.AWAITING_RESTORE
    with pytest.raises(StaleCheckpoint):
        await again
    assert "install" not in part.events
    for late in (
        participant.restore.load(caller.restore(checkpoint_folder(tmp_path))),
        participant.restore.reset(caller.reset()),
    ):
        with contextlib.suppress(StaleCheckpoint):
            await late
    with pytest.raises(StaleCheckpoint):
        participant.restore.discard(caller.discard())
    assert participant.phases.phase is Phase.AWAITING_RESTORE


async def test_a_late_reset_does_not_drop_the_next_restore(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.RESTORED, tmp_path)
    await participant.restore.reset(caller.reset())
    await participant.restore.load(caller.restore(checkpoint_folder(tmp_path), "next"))
    drops = part.events.count("drop")
    assert (await participant.restore.reset(caller.reset())).phase is Phase.RESTORED
    with pytest.raises(CheckpointConflict):
        await participant.restore.reset(caller.reset("unheard-of"))
    assert part.events.count("drop") == drops


async def written(folder: Path, participant_root: Path) -> list[WrittenFile]:
    """Two files of the server `fake` in a checkpoint folder."""
    from gym.checkpoint.folder import CheckpointFolder
    from gym.checkpoint.part_files import PartWriter

    writer = PartWriter(CheckpointFolder(participant_root, str(folder)), "fake", threading.Event())
    writer.bytes("a.bin", b"first")
    writer.bytes("b.bin", b"second")
    return writer.files


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "symlink"])
async def test_a_damaged_file_is_named_and_nothing_is_restored(damage: str, tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.AWAITING_RESTORE, tmp_path)
    folder = checkpoint_folder(tmp_path)
    files = await written(folder, tmp_path)
    bad = folder / files[1].path
    if damage == "flip":
        bad.write_bytes(b"sEcond")
    elif damage == "truncate":
        bad.write_bytes(b"secon")
    else:
        bad.unlink()
    if damage == "symlink":
        (tmp_path / "elsewhere").write_bytes(b"second")
        bad.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TurnpointError) as refusal:
        await participant.restore.load(caller.restore(folder, files=files))
    expected = FolderOutsideRoot if damage == "symlink" else DigestMismatch
    assert isinstance(refusal.value, expected)
    assert refusal.value.details["file"] == "gym/fake/b.bin"
    assert part.state == []
    assert participant.phases.phase is Phase.AWAITING_RESTORE
    # Repaired, the same restore id goes through.
    bad.unlink(missing_ok=True)
    bad.write_bytes(b"second")
    await participant.restore.load(caller.restore(folder, files=files))
    assert part.state == ["first", "second"]


async def test_an_install_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.AWAITING_RESTORE, tmp_path)
    folder = checkpoint_folder(tmp_path)
    part.install_fails = True
    with pytest.raises(RuntimeError):
        await participant.restore.load(
            caller.restore(folder, files=await written(folder, tmp_path))
        )
    assert part.state == []
    assert participant.phases.phase is Phase.AWAITING_RESTORE


async def test_restore_refuses_another_servers_files(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.AWAITING_RESTORE, tmp_path)
    folder = checkpoint_folder(tmp_path)
    (folder / "gym/other").mkdir()
    (folder / "gym/other/a.bin").write_bytes(b"first")
    (files, _) = await written(folder, tmp_path)
    for path in ("gym/other/a.bin", "gym/fake/../other/a.bin", "rl/a.bin"):
        with pytest.raises(FolderOutsideRoot):
            await participant.restore.load(
                caller.restore(folder, files=[files.model_copy(update={"path": path})])
            )
    assert part.events == ["drop"] * 3


async def test_discard_is_only_for_what_is_restored_and_resume_opens(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.RESTORED, tmp_path)
    participant.restore.discard(caller.discard(rollouts=("p1_g0", "p0_g1")))
    assert "discard ['p0_g1', 'p1_g0']" in part.events
    participant.save.resume(caller.resume("rs"))
    assert participant.phases.is_open
    with pytest.raises(StaleCheckpoint):
        participant.restore.discard(caller.discard())
    with pytest.raises(InvalidPhase):
        await participant.restore.load(caller.restore(checkpoint_folder(tmp_path), "another"))
