"""The start of processes: one that cannot be started, ends early, or is not waited for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.workers.named_servers import JUDGE, TAXI, settings_of
from workers.cli.doctor import examine
from workers.config.settings import Settings, load_settings
from workers.errors import ProcessFailed
from workers.stack import process_specs as stack_parts
from workers.stack.processes import marked, names_left
from workers.stack.stack import Stack

PART = {"temporal", "ray"}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    found = Stack(_settings(tmp_path))
    yield found
    found.down(kill=True)


def _settings(folder: Path, **more: object) -> Settings:
    return load_settings(
        attach=False, state_dir=folder / "state", policy="scripted", port_base=26_400, **more
    )


def test_failed_up_names_process_and_log_and_leaves_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [sys.executable, "-c", "import sys; sys.exit('no room on this machine')"]
    monkeypatch.setattr(stack_parts.temporal_server, "command", lambda *_: words)
    with pytest.raises(ProcessFailed, match=r"(?s)temporal has ended.*no room on.*logs temporal"):
        stack.up(only=PART)
    record = stack.record()
    assert record is not None
    assert marked(record.stack_id) == []
    assert not record.ray_folder.exists()


def test_the_wait_for_a_process_can_be_given_up(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`turnpoint run` ends within its grace period, and a `down` gets the stack.

    Break: workers/stack/stack.py: wait until all is ready, up to `ready_timeout_s`.
    """
    words = [sys.executable, "-c", "import time; time.sleep(100)"]
    monkeypatch.setattr(stack_parts.temporal_server, "command", lambda *_: words)
    monkeypatch.setattr(stack_parts.temporal_server, "is_ready", lambda _: False)
    starting = threading.Thread(target=stack.up, kwargs={"only": {"temporal"}}, daemon=True)
    starting.start()
    while (record := stack.record()) is None or not record.processes:
        assert starting.is_alive()
        time.sleep(0.05)
    stack.let_go()
    starting.join(10)
    assert not starting.is_alive()
    assert names_left(record.stack_id) == {"temporal"}, "it goes on getting ready"
    assert Stack(_settings(tmp_path)).down(kill=True) == 1


def test_a_program_that_is_not_there_is_named_with_what_to_correct(tmp_path: Path) -> None:
    """Break: let the system's error rise."""
    url = f"http://127.0.0.1:{free_port()}"
    settings = settings_of(tmp_path, {**TAXI, "url": url, "command": ["no-such-program"]})
    with pytest.raises(ProcessFailed, match=r"taxi cannot be started.*no-such-program.*`command`"):
        Stack(settings).up(only={"taxi"})
    problems = {finding.check: finding.problem for finding in examine(settings)}
    assert "no program 'no-such-program'" in (problems["server taxi"] or "")
    assert {f.check: f.problem for f in examine(settings_of(tmp_path, TAXI, JUDGE))}[
        "server taxi"
    ] is None
