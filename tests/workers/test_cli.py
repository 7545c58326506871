"""The command line: exit codes, one JSON value on stdout, sentences instead of stack traces."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

import pytest

from rl.errors import RayUnreachable
from rl.messages import ControllerStatus
from rl.snapshots.folder import SnapshotFolder
from tests.rl.folder_cases import config_of, start_job
from tests.rl.folder_cases import save as save_folder
from tests.workers.observations import status
from workers.cli import app as cli
from workers.cli.output import EXIT_FAILED, EXIT_NOT_REACHABLE, EXIT_OK, EXIT_REFUSED, EXIT_USAGE
from workers.config.settings import Settings, load_settings
from workers.job import commands as job_runs
from workers.stack.record import StackRecord
from workers.stack.resolve import ports_needed
from workers.stack.stack import Stack

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
PROGRAM = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]["turnpoint"].split(":")[0]
STACK = ["up", "down", "status", "logs", "doctor"]
COMMANDS = [*STACK, "run", "save", "restore", "prune", "list", "inspect", "verify"]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TURNPOINT_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ended_stack(tmp_path: Path) -> Path:
    """The state folder of a stack that ran once and is down."""
    state = tmp_path / "state"
    state.mkdir()
    servers = [{"name": "counter", "kind": "resource", "url": "http://127.0.0.1:26901"}]
    record = StackRecord(
        stack_id="none",
        settings={
            "state_dir": str(state),
            "servers": servers,
            "policy_url": "http://127.0.0.1:26902/v1",
            "generation_port": 26903,
            "temporal_address": "127.0.0.1:26904",
        },
        ports={},
        ray_folder=tmp_path / "ray",
        expect_restore=False,
        ray_address=None,
        temporal_ui=None,
    )
    (state / "stack.json").write_text(record.model_dump_json())
    (state / "logs").mkdir()
    (state / "logs" / "counter.log").write_text("first\nlast\n")
    return state


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == EXIT_OK
    assert capsys.readouterr().out == f"{metadata.version('turnpoint')}\n"


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == EXIT_OK
    shown = capsys.readouterr()
    assert shown.out.lstrip().startswith("Usage:") and not shown.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_documents_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([command, "--help"]) == EXIT_OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 done; 1 failed; 2 wrong usage" in shown
    assert "--json" in shown


@pytest.mark.parametrize(
    "words", [["frob"], ["up", "--nope"], ["run", "--generations", "0"], ["logs"]]
)
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(words) == EXIT_USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("turnpoint: ")


@pytest.mark.parametrize("name", [*ports_needed(Settings()), "generation_port"])
def test_each_fixed_port_in_use_is_named_with_its_setting_and_starts_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: leave a name out of `ports_needed`, or `generation_port` out of `fixed_ports`."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        if name == "generation_port":
            monkeypatch.setenv("TURNPOINT_GENERATION_PORT", str(port))
        else:
            monkeypatch.setenv("TURNPOINT_PORTS", json.dumps({name: port}))
        assert cli.run(["up", "--policy", "scripted", "--json"]) == EXIT_FAILED
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "port_in_use"
    key = "generation_port" if name.startswith("generation") else f"ports.{name}"
    assert f"{name.removesuffix('_port')}: port {port} is in use" in error["message"]
    assert f"({key})" in error["message"]
    assert not (tmp_path / ".turnpoint" / "stack.json").exists()


@pytest.mark.parametrize(
    "command",
    [
        *("status", "status --follow", "run", "run --detach", "save", "restore"),
        *("restore --replace", "prune", "list", "inspect", "verify"),
    ],
)
def test_without_a_stack_every_command_says_at_once_how_to_start_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: leave it to the first look into Ray (60 s), or to Temporal's default address."""
    began = time.monotonic()
    assert cli.run([*command.split(), "--json"]) == EXIT_NOT_REACHABLE
    assert time.monotonic() - began < 5
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "not_running"
    assert error["message"].startswith(
        f"no stack in {tmp_path / '.turnpoint'}; start one with `turnpoint up`"
    )
    assert not (tmp_path / ".turnpoint").exists()


def test_a_snapshot_root_is_enough_to_look_at_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: ask for the whole configuration of the job."""
    config = config_of(tmp_path)
    start_job(config)
    save_folder(SnapshotFolder(config), "00000001")
    monkeypatch.setenv("TURNPOINT_SNAPSHOT_ROOT", str(config.snapshot_root))
    for command in ("list", "verify"):
        assert cli.run([command, "--json", "--job-id", config.job_id]) == EXIT_OK
        assert "snapshot_000001" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_status_of_a_stack_that_is_down_says_so_first_and_asks_nobody(
    words: list[str], ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: show its table, and every server that does not answer."""
    assert cli.run(["status", "--state-dir", str(ended_stack), *words]) == EXIT_NOT_REACHABLE
    shown = capsys.readouterr()
    if words:
        body = json.loads(shown.out)
        assert (body["running"], body["job"]["problems"]) == ({}, {})
    else:
        assert shown.out == f"the stack in {ended_stack} is down; `turnpoint up` starts it\n"
        assert shown.err == "job demo: not running; newest snapshot: none\n"


def test_a_restore_without_ray_says_that_the_stack_is_down_else_which_address_is_silent(
    ended_stack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: let Ray's own refusal rise."""

    async def nobody_there(*_: object) -> None:
        raise RayUnreachable("nobody listens at RAY_ADDRESS")

    monkeypatch.setattr(job_runs, "controller_status", nobody_there)
    words = ["restore", "--json", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_NOT_REACHABLE
    assert json.loads(capsys.readouterr().out)["error"] == {
        "code": "not_running",
        "message": f"the stack in {ended_stack} is down; `turnpoint up` starts it",
    }
    record = json.loads((ended_stack / "stack.json").read_text())
    (ended_stack / "stack.json").unlink()
    for name in ("servers", "policy_url", "generation_port"):
        value = record["settings"][name]
        given = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setenv(f"TURNPOINT_{name.upper()}", given)
    monkeypatch.setenv("TURNPOINT_RAY_ADDRESS", "127.0.0.1:26905")
    assert cli.run(words) == EXIT_NOT_REACHABLE
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "ray_unreachable" and "127.0.0.1:26905" in error["message"]


def test_down_of_nothing_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["down", "--json"]) == EXIT_OK
    assert json.loads(capsys.readouterr().out) == {"ended": 0}


def test_save_without_temporal_is_4(ended_stack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["save", "--json", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_NOT_REACHABLE
    assert "127.0.0.1:26904" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize("name", ["latest", "snapshot_000001"])
def test_a_save_cannot_be_called_what_means_another_snapshot(
    name: str, ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["save", "--name", name, "--json", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_USAGE
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    assert message.startswith("name: ") and "mean something else" in message


@pytest.mark.parametrize("command", ["run", "save", "restore", "prune", "list"])
def test_a_second_job_on_a_stack_is_3_names_both_and_touches_nothing(
    command: str, ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: take the job from the flag, everything else from the stack."""
    words = [command, "--job-id", "other", "--json", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_REFUSED
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "other_job"
    assert "'demo'" in error["message"] and "turnpoint up --job-id other" in error["message"]
    assert sorted(path.name for path in ended_stack.iterdir()) == ["logs", "stack.json"]


def test_the_snapshots_of_another_job_are_listed_if_it_has_a_folder(
    ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: refuse every job but the stack's."""
    folder = load_settings(state_dir=ended_stack, job_id="other").job_config().job_folder
    folder.mkdir(parents=True)
    words = ["list", "--job-id", "other", "--json", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_OK
    assert json.loads(capsys.readouterr().out) == []


def test_a_restore_into_the_running_job_is_refused_and_names_the_ways_out(
    ended_stack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def running(*_: object) -> ControllerStatus:
        return status()

    monkeypatch.setattr(job_runs, "controller_status", running)
    assert cli.run(["restore", "--json", "--state-dir", str(ended_stack)]) == EXIT_REFUSED
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "refused" and "incarnation 3" in error["message"]
    for way in ("restore --replace", "down", "save"):
        assert f"`turnpoint {way}`" in error["message"]


def test_bad_configuration_is_2_and_names_the_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNPOINT_LEASE_S", "soon")
    assert cli.run(["list"]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert "lease_s" in error and "soon" not in error


def test_list_of_no_snapshots_is_empty(
    ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["list", "--json", "--state-dir", str(ended_stack)]) == EXIT_OK
    assert json.loads(capsys.readouterr().out) == []
    assert cli.run(["verify", "--json", "--state-dir", str(ended_stack)]) == EXIT_FAILED
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "no_snapshot"


def test_list_tells_the_current_line_from_others(
    ended_stack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: let `Line.holds` look at incarnations alone."""
    config = config_of(ended_stack)
    folder = SnapshotFolder(config)
    start_job(config)
    for number in (1, 2):
        save_folder(folder, f"{number:08d}")
    start_job(config, "snapshot_000001")
    monkeypatch.setenv("TURNPOINT_SNAPSHOT_ROOT", str(config.snapshot_root))
    words = ["list", "--json", "--job-id", config.job_id, "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_OK
    rows = json.loads(capsys.readouterr().out)
    assert [(row["snapshot"], row["line"]) for row in rows] == [
        ("snapshot_000002", "other"),
        ("snapshot_000001", "current"),
    ]


def test_logs_prints_the_end_and_names_what_there_is(
    ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--state-dir", str(ended_stack)]
    assert cli.run(["logs", "counter", "-n", "1", *where]) == EXIT_OK
    assert capsys.readouterr().out == "last\n"
    assert cli.run(["logs", "agent", *where]) == EXIT_USAGE
    assert "there are: counter" in capsys.readouterr().err


def test_without_a_supervisor_its_log_says_who_would_supervise(
    ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: treat it as a wrong name."""
    words = ["logs", "supervisor", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_NOT_REACHABLE
    said = capsys.readouterr().err
    assert "nobody has supervised the job" in said and "without --detach" in said


def test_interrupt_is_130_and_says_that_everything_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Stack, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stack, "down", interrupted)
    assert cli.run(["down"]) == 130
    assert "go on as they are" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["save"], ["restore", "--replace"]])
@pytest.mark.parametrize("ui", ["http://127.0.0.1:26906", None])
def test_an_interrupted_save_or_restore_names_the_workflow_that_goes_on(
    words: list[str],
    ui: str | None,
    ended_stack: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Break: leave it to the sentence that holds for every command."""
    ids: list[str] = []

    async def connected(*_: object) -> None:
        pass

    async def begun(client: object, workflow: str, given: object, id: str) -> None:
        ids.append(id)

    async def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(job_runs, "connect", connected)
    monkeypatch.setattr(job_runs, "start", begun)
    monkeypatch.setattr(job_runs, "follow", interrupted)
    if ui is not None:
        monkeypatch.setenv("TURNPOINT_TEMPORAL_UI", ui)
    assert cli.run([*words, "--json", "--state-dir", str(ended_stack)]) == 130
    error = json.loads(capsys.readouterr().out)["error"]
    page = f"{ui}/namespaces/default/workflows/{quote(ids[0], safe='')}"
    where = "look at it, or cancel it, in the Temporal UI" if ui is None else page
    assert error == {
        "code": "interrupted",
        "message": f"interrupted; workflow {ids[0]} goes on: {where}",
    }


@pytest.mark.parametrize("words", [["save"], ["save", "--json"]])
def test_an_interrupt_during_the_imports_is_130_and_one_line(words: list[str]) -> None:
    """Break: name `workers.cli.app:main` as the program."""
    program = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'workers.cli.output':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        f"sys.argv[1:] = {words}\n"
        f"from {PROGRAM} import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    said = "interrupted before anything was done"
    assert done.returncode == 130
    if "--json" in words:
        assert json.loads(done.stdout) == {"error": {"code": "interrupted", "message": said}}
        assert done.stderr == ""
    else:
        assert (done.stdout, done.stderr) == ("", f"turnpoint: {said}\n")
