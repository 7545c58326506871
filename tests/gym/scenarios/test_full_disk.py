"""A Gym server whose disk refuses, or whose environment cannot be saved: typed, and it goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gym.protocol import NoSpace, NotWritten, Phase
from tests.gym.parts import checkpoint_folder, participant_in
from tests.gym.resource_server import Scripted, served


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EFBIG, NoSpace),
        (errno.EIO, NotWritten),
        (errno.EROFS, NotWritten),
    ],
)
@pytest.mark.parametrize("step", ["write", "fsync", "rename", "open"])
async def test_a_disk_that_refuses_is_a_typed_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int, kind: type[NotWritten]
) -> None:
    """Break: hand the OSError on as it is."""
    participant, _, caller = await participant_in(Phase.PREPARED, tmp_path)
    folder = checkpoint_folder(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    (folder / "gym" / "fake").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(f"gym.durable.os.{step}", refuse)
        with pytest.raises(NotWritten) as caught:
            await participant.save.commit(caller.commit(folder))
    assert type(caught.value) is kind
    assert caught.value.participant == "fake"
    assert os.strerror(number) in caught.value.message
    assert step in ("open", "fsync") or caught.value.details["file"] == "part.jsonl"
    assert not caught.value.retryable
    assert participant.phases.phase is Phase.PREPARED
    assert list(folder.rglob("*.jsonl")) == []
    assert (await participant.save.commit(caller.commit(folder))).files
    participant.shut_down()


class Unsaveable(Scripted):
    """An environment whose state cannot be written down."""

    answer: object = None

    def export_state(self, state: list[str]) -> bytes:
        if self.answer is None:
            raise RuntimeError("secret words of a conversation")
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "why"), [(None, "raised RuntimeError"), ("text", "answered str, not bytes")]
)
async def test_a_state_that_cannot_be_exported_names_server_rollout_and_what_to_do(
    tmp_path: Path, answer: object, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Break: let what `export_state` raises become an answer 500."""
    environment = Unsaveable()
    environment.answer = answer
    async with served(environment, tmp_path) as server:
        await server.seed()
        await server.prepare()
        folder = checkpoint_folder(tmp_path)
        refused = await server.control("commit", checkpoint_id="ck", budget_s=5, folder=str(folder))
        assert (refused.status_code, refused.json()["code"]) == (409, "export_failed")
        assert why in refused.json()["message"] and "restart_only" in refused.json()["message"]
        assert refused.json()["details"] == {"rollout_id": "p0_g0"}
        assert "secret words" not in refused.text + caplog.text
        assert list(folder.rglob("*.jsonl")) == []
        # The rollout goes on, and the next save of a mended environment succeeds.
        await server.control("resume", checkpoint_id="ck")
        assert (await server.call("/append", {"name": "a"}, "call-0")).status_code == 200
        environment.answer = b"[]"
        await server.prepare("ck2")
        assert (await server.commit(folder, "ck2")).files
