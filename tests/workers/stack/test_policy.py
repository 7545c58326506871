"""`up --policy URL`: what is wrong with it is said before anything starts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from workers.cli import app as cli
from workers.cli.output import EXIT_NOT_REACHABLE, EXIT_USAGE
from workers.config.settings import load_settings
from workers.stack.policy import require_policy


class _Answers(BaseHTTPRequestHandler):
    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/v1/models" else 404)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), _Answers) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield http
        http.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "exit_code", "said"),
    [
        (500, b"Traceback hunter2", EXIT_NOT_REACHABLE, "HTTP 500 from http://127.0.0.1"),
        (200, b"<html>hunter2</html>", EXIT_USAGE, "is no list of models"),
        (401, b'{"error": "hunter2"}', EXIT_USAGE, "HTTP 401"),
        (200, b'{"data": [{"id": "other"}]}', EXIT_USAGE, "policy_model: policy is not served"),
    ],
)
def test_a_server_that_is_no_policy_is_refused_before_anything_starts(
    server: HTTPServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
    body: bytes,
    exit_code: int,
    said: str,
) -> None:
    """Break: leave `require_policy` out of `up`: it starts, and each rollout fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_Answers, "status", status)
    monkeypatch.setattr(_Answers, "body", body)
    url = f"http://127.0.0.1:{server.server_port}"
    assert cli.run(["up", "--policy", url, "--json"]) == exit_code
    error = json.loads(capsys.readouterr().out)["error"]
    assert said in error["message"] and "hunter2" not in error["message"]
    assert not (tmp_path / ".turnpoint" / "stack.json").exists()


def test_a_policy_that_does_not_answer_is_exit_code_4_with_address_and_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["up", "--policy", "http://127.0.0.1:1/v1", "--json"]) == EXIT_NOT_REACHABLE
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "not_running"
    assert "http://127.0.0.1:1/v1/models" in error["message"]
    assert "--policy scripted" in error["message"]


@pytest.mark.parametrize("url", ["http//x", "http://user:hunter2@host", "http://host?key=hunter2"])
def test_a_malformed_url_is_exit_code_2_and_not_shown(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["up", "--policy", url, "--json"]) == EXIT_USAGE
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "settings"
    assert error["message"].startswith("policy: ") and "(flag --policy)" in error["message"]
    assert "hunter2" not in error["message"]


def test_one_that_serves_the_model_is_taken(
    server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Answers, "body", b'{"data": [{"id": "policy"}]}')
    for path in ("", "/", "/v1", "/v1/"):
        url = f"http://127.0.0.1:{server.server_port}{path}"
        require_policy(load_settings(attach=False, state_dir=tmp_path, policy=url))
