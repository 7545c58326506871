"""Sessions of a resource server: exactly once, bound to runs, exported and restored."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from gym.environments.counter import Counter
from gym.peer import Reply
from gym.protocol import Answer, CommitAnswer, Identity, Mode, RestoreAnswer, WrittenFile
from gym.protocol.control import BASE_PATH
from gym.resource import (
    Environment,
    Refused,
    Session,
    Tool,
    environment_app,
    inner_identity,
    tool,
)
from tests.gym.parts import JOB, checkpoint_folder, settings

ROW = {"initial_count": 3, "expected_count": 6, "responses_create_params": {"input": "add"}}
RESPONSE = {"id": "resp_1", "object": "response", "output": []}
COOKIE = "Counter___counter"


class Scripted(Environment[list[str]]):
    """Tools that wait, refuse or fail, as the tests need them."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.inner: Identity | None = None

    async def seed(self, row: dict[str, Any]) -> list[str]:
        if row.get("fail"):
            raise RuntimeError("secret words of a conversation")
        return []

    @tool
    async def append(self, session: Session[list[str]], name: str = "") -> dict[str, Any]:
        self.inner = inner_identity()
        self.entered.set()
        await self.gate.wait()
        session.state.append(name)
        return {"all": list(session.state)}

    @tool
    async def refuse(self, session: Session[list[str]]) -> dict[str, Any]:
        raise Refused("not today", status=400)

    @tool
    async def fail(self, session: Session[list[str]]) -> dict[str, Any]:
        session.state.append("half")
        raise RuntimeError("secret words of a conversation")

    @tool
    async def lose(self, session: Session[list[str]]) -> dict[str, Any]:
        session.state.append("half")
        lost: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        lost.cancel()  # as a connection that is closed does with what waits for it
        return await lost

    @tool
    async def unserialisable(self, session: Session[list[str]]) -> dict[str, Any]:
        return {"bad": object()}

    async def verify(
        self, session: Session[list[str]], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        return {"reward": 1.0}

    def export_state(self, state: list[str]) -> bytes:
        return json.dumps(state).encode()

    def import_state(self, data: bytes) -> list[str]:
        return list(json.loads(data))


class Harmless(Scripted):
    errors_free_of_effect = True


class RestartOnly(Scripted):
    export_state = Environment.export_state
    import_state = Environment.import_state


class Server:
    """One resource server in this process, and calls to it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.instance_id = ""
        self.incarnation = 1

    async def control(self, operation: str, **body: Any) -> httpx.Response:
        return await self.http.post(
            f"{BASE_PATH}/{operation}",
            json={"incarnation": self.incarnation, "instance_id": self.instance_id, **body},
            headers={"authorization": "Bearer token"},
        )

    async def join(self) -> None:
        answer = await self.http.post(
            f"{BASE_PATH}/join",
            json={"job_id": JOB, "incarnation": self.incarnation},
            headers={"authorization": "Bearer token"},
        )
        self.instance_id = Answer.model_validate(answer.json()).instance_id

    async def call(
        self,
        path: str,
        body: Any,
        place: str,
        number: int = 0,
        *,
        run: int = 0,
        rollout: str = "p0_g0",
        cookies: dict[str, str] | None = None,
    ) -> httpx.Response:
        identity = Identity(incarnation=self.incarnation, rollout_id=rollout, attempt=run)
        headers = identity.mutation(place, number).headers()
        if cookies:
            headers["cookie"] = "; ".join(f"{k}={v}" for k, v in cookies.items())
        self.http.cookies.clear()
        return await self.http.post(path, json=body, headers=headers)

    async def seed(self, row: Any = ROW, **which: Any) -> httpx.Response:
        return await self.call("/seed_session", row, "seed", **which)

    async def prepare(self, ckpt: str = "ck") -> None:
        answer = await self.control("prepare", checkpoint_id=ckpt, budget_s=2, lease_s=30)
        assert answer.json()["ready"], answer.text

    async def commit(self, folder: Path, ckpt: str = "ck") -> CommitAnswer:
        answer = await self.control("commit", checkpoint_id=ckpt, budget_s=5, folder=str(folder))
        assert answer.status_code == 200, answer.text
        return CommitAnswer.model_validate(answer.json())

    async def restore(self, folder: Path, files: list[WrittenFile]) -> httpx.Response:
        return await self.control(
            "restore",
            restore_id="rs",
            source_checkpoint_id="ck",
            folder=str(folder),
            files=[file.model_dump() for file in files],
        )


@asynccontextmanager
async def served(
    environment: Environment[Any],
    root: Path,
    *,
    expect_restore: bool = False,
    name: str = "counter",
    incarnation: int = 1,
) -> AsyncIterator[Server]:
    app = environment_app(environment, settings(root, name=name, expect_restore=expect_restore))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        server = Server(http)
        server.incarnation = incarnation
        await server.join()
        yield server


def revision(answer: httpx.Response) -> int:
    return int(answer.headers["x-turnpoint-resource-revision"])


async def test_the_counter_counts_and_verifies_as_the_example_does(tmp_path: Path) -> None:
    async with served(Counter(), tmp_path) as server:
        seeded = await server.seed()
        assert (seeded.status_code, seeded.json(), revision(seeded)) == (200, {}, 1)
        added = await server.call("/increment_counter", {"count": 3}, "call-0")
        assert (added.json(), revision(added)) == ({"success": True}, 2)
        asked = await server.call("/get_counter_value", {}, "call-1")
        assert (asked.json(), revision(asked)) == ({"count": 6}, 3)
        verified = await server.call("/verify", {**ROW, "response": RESPONSE}, "verify")
        assert verified.json() == {**ROW, "response": RESPONSE, "reward": 1.0, "final_count": 6}


async def test_the_cookie_has_no_age_limit_and_is_sent_with_every_answer(tmp_path: Path) -> None:
    async with served(Counter(), tmp_path) as server:
        first = await server.seed()
        assert "max-age" not in first.headers["set-cookie"].lower()
        assert "expires" not in first.headers["set-cookie"].lower()
        cookies = {COOKIE: first.cookies[COOKIE]}
        second = await server.call("/get_counter_value", {}, "call-0", cookies=cookies)
        assert (second.status_code, second.json()) == (200, {"count": 3})
        assert COOKIE in second.cookies
        other = await server.seed(rollout="p0_g1")
        wrong = {COOKIE: other.cookies[COOKIE]}
        lost = await server.call("/get_counter_value", {}, "call-1", cookies=wrong)
        assert (lost.status_code, lost.json()["code"]) == (410, "session_lost")


async def test_the_same_request_id_has_one_effect_and_the_same_answer(tmp_path: Path) -> None:
    """Invariant 4. Break: gym/resource/session.py: record no receipt in `_run`; seen red."""
    async with served(Counter(), tmp_path) as server:
        await server.seed()
        answers = [
            await server.call("/increment_counter", {"count": 2}, "call-0") for _ in range(3)
        ]
        assert {answer.content for answer in answers} == {answers[0].content}
        assert {revision(answer) for answer in answers} == {2}
        value = await server.call("/get_counter_value", {}, "call-1")
        assert value.json() == {"count": 5}
        other = await server.call("/increment_counter", {"count": 9}, "call-0")
        assert (other.status_code, other.json()["code"]) == (409, "request_conflict")
        elsewhere = await server.call("/get_counter_value", {"count": 2}, "call-0")
        assert elsewhere.json()["code"] == "request_conflict"


async def test_errors_are_receipts_too_and_raise_no_revision(tmp_path: Path) -> None:
    async with served(Scripted(), tmp_path) as server:
        await server.seed()
        for _ in range(2):
            refused = await server.call("/refuse", {}, "call-0")
            assert (refused.status_code, refused.json()) == (400, {"detail": "not today"})
            invalid = await server.call("/append", {"name": 17}, "call-0", 1)
            assert (invalid.status_code, invalid.json()["code"]) == (422, "invalid_request")
            assert invalid.json()["details"] == {"fields": ["name"]}
            assert "17" not in invalid.text
            assert revision(invalid) == revision(refused) == 1
        conflict = await server.call("/refuse", {"name": "x"}, "call-0")
        assert conflict.json()["code"] == "request_conflict"
        assert (await server.call("/append", {"name": "a"}, "call-1")).json() == {"all": ["a"]}


@pytest.mark.parametrize("tool", ["fail", "lose", "unserialisable"])
async def test_a_handler_that_raises_makes_the_session_uncertain(
    tool: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Break: gym/resource/session.py: catch `Exception` alone.

    What was cancelled takes effect twice.
    """
    async with served(Scripted(), tmp_path) as server:
        await server.seed()
        for _ in range(2):
            answer = await server.call(f"/{tool}", {}, "call-0")
            assert (answer.status_code, answer.json()["code"]) == (409, "session_uncertain")
            assert revision(answer) == -1
        after = await server.call("/append", {}, "call-1")
        assert after.json()["code"] == "session_uncertain"
        # It is not exported, and the inventory says -1.
        await server.seed(rollout="p0_g1")
        await server.prepare()
        committed = await server.commit(checkpoint_folder(tmp_path))
        assert {entry.rollout_id: entry.revision for entry in committed.sessions} == {
            "p0_g0": -1,
            "p0_g1": 1,
        }
        assert committed.files[0].records == 1
    assert "secret words" not in caplog.text


async def test_errors_declared_free_of_effect_leave_the_session_certain(tmp_path: Path) -> None:
    """Break: gym/resource/session.py: answer them in this protocol's shape.

    The agent fails the run.
    """
    async with served(Harmless(), tmp_path) as server:
        await server.seed()
        for _ in range(2):
            failed = await server.call("/fail", {}, "call-0")
            assert (failed.status_code, failed.json()) == (500, {"detail": "RuntimeError"})
            assert Reply("counter", failed).error is None  # shown to the model
        after = await server.call("/append", {"name": "b"}, "call-1")
        assert after.json() == {"all": ["half", "b"]}  # once, not twice
        assert revision(after) == 2


async def test_arguments_nested_too_deeply_are_refused_like_others(tmp_path: Path) -> None:
    """What the agent could read, the server, further down its stack, perhaps cannot.

    Break: gym/resource/server.py: catch no `RecursionError` in `_parsed`.
    """
    async with served(Scripted(), tmp_path) as server:
        await server.seed()
        headers = Identity(incarnation=1, rollout_id="p0_g0", attempt=0).mutation("call-0")
        body = '{"name": ' + "[" * 2_000 + "]" * 2_000 + "}"
        deep = await server.http.post("/append", content=body, headers=headers.headers())
        assert (deep.status_code, deep.json()["code"]) == (422, "invalid_request")
        assert (await server.call("/append", {"name": "a"}, "call-0")).json() == {"all": ["a"]}


async def test_a_seed_that_fails_leaves_no_session(tmp_path: Path) -> None:
    async with served(Counter(), tmp_path) as server:
        bad = await server.seed({"initial_count": "many"})
        assert (bad.status_code, bad.json()["details"]) == (422, {"fields": ["initial_count"]})
        lost = await server.call("/increment_counter", {"count": 1}, "call-0")
        assert (lost.status_code, lost.json()["code"]) == (410, "session_lost")
        await server.prepare()
        committed = await server.commit(checkpoint_folder(tmp_path))
        assert committed.sessions == []
        assert committed.files[0].records == 0


async def test_one_mutation_at_a_time_and_to_its_end_though_the_caller_leaves(
    tmp_path: Path,
) -> None:
    environment = Scripted()
    async with served(environment, tmp_path) as server:
        await server.seed()
        environment.gate.clear()
        first = asyncio.ensure_future(server.call("/append", {"name": "a"}, "call-0"))
        await environment.entered.wait()
        second = asyncio.ensure_future(server.call("/append", {"name": "b"}, "call-0", 1))
        joined = asyncio.ensure_future(server.call("/append", {"name": "a"}, "call-0"))
        await asyncio.sleep(0.02)
        status = await server.http.get(
            f"{BASE_PATH}/status",
            params={"incarnation": 1, "instance_id": server.instance_id},
            headers={"authorization": "Bearer token"},
        )
        assert status.json()["counts"]["in_flight"] == 2
        first.cancel()
        await asyncio.sleep(0)
        # Resources close last: a step that arrives while `preparing` is admitted.
        preparing = asyncio.ensure_future(server.prepare())
        await asyncio.sleep(0.02)
        third = asyncio.ensure_future(server.call("/append", {"name": "c"}, "call-0", 2))
        await asyncio.sleep(0.02)
        assert not preparing.done()
        environment.gate.set()
        assert (await joined).json() == {"all": ["a"]}
        assert (await second).json() == {"all": ["a", "b"]}
        assert (await third).json() == {"all": ["a", "b", "c"]}
        await preparing
        parked = await server.call("/append", {"name": "d"}, "call-1")
        assert (parked.status_code, parked.json()["code"]) == (409, "checkpoint_parked")
        assert int(parked.headers["retry-after"]) >= 1
        await server.control("resume", checkpoint_id="ck")
        after = await server.call("/append", {"name": "d"}, "call-1")
        assert after.json() == {"all": ["a", "b", "c", "d"]}


async def test_the_first_call_of_a_newer_run_ends_the_older_one(tmp_path: Path) -> None:
    """Invariant 7. Break: gym/checkpoint/fences.py: refuse no older run; seen red."""
    environment = Scripted()
    async with served(environment, tmp_path) as server:
        await server.seed()
        environment.gate.clear()
        running = asyncio.ensure_future(server.call("/append", {"name": "old"}, "call-0"))
        await environment.entered.wait()
        queued = asyncio.ensure_future(server.call("/append", {"name": "queued"}, "call-0", 1))
        await asyncio.sleep(0.01)
        assert (await server.seed(run=1)).status_code == 200
        environment.gate.set()
        assert (await running).status_code == 200
        assert (await queued).json()["code"] == "stale_attempt"
        late = await server.call("/append", {"name": "late"}, "call-1")
        assert (late.status_code, late.json()["code"]) == (409, "stale_attempt")
        fresh = await server.call("/append", {"name": "new"}, "call-0", run=1)
        assert fresh.json() == {"all": ["new"]}
        # Run 2 ends run 1 even by a call that finds no session.
        lost = await server.call("/append", {"name": "x"}, "call-0", run=2)
        assert lost.json()["code"] == "session_lost"
        assert (await server.seed(run=1)).json()["code"] == "stale_attempt"


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("/append", {"x-turnpoint-request-id": "p0_g0/call-1/0"}),
        ("/append", {"x-turnpoint-request-id": "p0_g0/call-0/01"}),
        ("/append", {"x-turnpoint-request-id": "p0_g0-a1/call-0/0"}),
        ("/append", {"x-turnpoint-request-id": None}),
        ("/append", {"x-turnpoint-model-call-id": None}),
        ("/append", {"x-turnpoint-attempt": None}),
        ("/seed_session", {}),
        ("/verify", {"x-turnpoint-request-id": "p0_g0/seed/0", "x-turnpoint-model-call-id": None}),
    ],
)
async def test_headers_that_do_not_fit_the_route_are_refused(
    path: str, changed: dict[str, str | None], tmp_path: Path
) -> None:
    async with served(Scripted(), tmp_path) as server:
        await server.seed()
        identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0).mutation("call-0")
        headers = {k: v for k, v in (identity.headers() | changed).items() if v is not None}
        answer = await server.http.post(path, json={}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (409, "identity_mismatch")


async def test_a_judge_inside_a_step_has_the_steps_request_id_and_no_model_call_id(
    tmp_path: Path,
) -> None:
    environment = Scripted()
    async with served(environment, tmp_path) as server:
        await server.seed()
        await server.call("/append", {"name": "a"}, "call-0")
        assert environment.inner is not None
        assert environment.inner.request_id == "p0_g0/call-0/0"
        assert environment.inner.model_call_id is None


async def saved(environment: Environment[Any], root: Path) -> tuple[Path, CommitAnswer, str]:
    """A snapshot of two sessions; also the cookie of the first."""
    async with served(environment, root) as server:
        seeded = await server.seed()
        cookie = seeded.cookies[f"{type(environment).__name__}___counter"]
        await server.call("/append", {"name": "a"}, "call-0")
        await server.call("/refuse", {}, "call-0", 1)
        await server.seed(rollout="p1_g0")
        await server.prepare()
        folder = checkpoint_folder(root)
        return folder, await server.commit(folder), cookie


async def test_a_restored_session_goes_on_as_the_next_run(tmp_path: Path) -> None:
    folder, committed, cookie = await saved(Scripted(), tmp_path)
    assert [file.path for file in committed.files] == ["gym/counter/sessions.jsonl"]
    line = json.loads((folder / committed.files[0].path).read_text().splitlines()[0])
    assert set(line) == {
        "schema_version", "rollout_id", "attempt_index", "session_id", "revision", "state",
        "receipts",
    }  # fmt: skip
    assert [receipt["status"] for receipt in line["receipts"]] == [200, 200, 400]
    async with served(Scripted(), tmp_path, expect_restore=True, incarnation=2) as server:
        parked = await server.call("/append", {"name": "x"}, "call-1", run=1)
        assert parked.json()["code"] == "checkpoint_parked"
        restored = RestoreAnswer.model_validate(
            (await server.restore(folder, committed.files)).json()
        )
        assert [(e.rollout_id, e.attempt_index, e.revision) for e in restored.sessions] == [
            ("p0_g0", 1, 2),
            ("p1_g0", 1, 1),
        ]
        await server.control("discard", restore_id="rs", rollout_ids=["p1_g0"])
        await server.control("resume", checkpoint_id="rs")
        old = await server.call("/append", {"name": "old"}, "call-1")
        assert old.json()["code"] == "stale_attempt"
        cookies = {"Scripted___counter": cookie}
        on = await server.call("/append", {"name": "b"}, "call-1", run=1, cookies=cookies)
        assert (on.json(), revision(on)) == ({"all": ["a", "b"]}, 3)
        again = await server.seed(run=1)
        assert again.json()["code"] == "request_conflict"
        # The discarded one starts over as run 1; without a seed it is lost, not fresh.
        lost = await server.call("/append", {"name": "x"}, "call-0", run=1, rollout="p1_g0")
        assert (lost.status_code, lost.json()["code"]) == (410, "session_lost")
        assert (await server.seed(run=1, rollout="p1_g0")).status_code == 200
        await server.control("forget", rollout_ids=["p0_g0"])
        gone = await server.call("/append", {"name": "x"}, "call-2", run=1)
        assert gone.json()["code"] == "session_lost"


async def test_a_line_or_state_that_does_not_parse_is_named_and_nothing_is_restored(
    tmp_path: Path,
) -> None:
    import hashlib

    folder, committed, _ = await saved(Scripted(), tmp_path)
    at = folder / committed.files[0].path
    good = at.read_bytes()
    lines = good.splitlines(keepends=True)
    for bad, named in (
        (good.replace(b'"revision":1', b'"revision":"one"'), "line 2: revision"),
        (good + b"{", "line 3"),
        (good.replace(b'"state":"W10="', b'"state":"W10"'), "line 2"),
        (good.replace(b'"state":"W10="', b'"state":"eHg="'), "line 2: import_state"),
        (good + lines[0], "twice"),
    ):
        assert bad != good
        at.write_bytes(bad)
        file = committed.files[0].model_copy(
            update={"bytes": len(bad), "sha256": hashlib.sha256(bad).hexdigest()}
        )
        async with served(Scripted(), tmp_path, expect_restore=True) as server:
            answer = await server.restore(folder, [file])
            assert (answer.status_code, answer.json()["code"]) == (409, "unsupported_schema")
            assert named in answer.json()["message"]
            assert answer.json()["details"]["file"] == file.path
            status = await server.http.get(
                f"{BASE_PATH}/status",
                params={"incarnation": 1, "instance_id": server.instance_id},
                headers={"authorization": "Bearer token"},
            )
            assert status.json()["counts"]["sessions"] == 0
            assert status.json()["phase"] == "awaiting_restore"


async def test_a_step_right_after_an_early_resume_waits_for_one_sessions_export_only(
    tmp_path: Path,
) -> None:
    import threading

    class Slow(Scripted):
        exporting = threading.Event()
        gate_export = threading.Event()
        seen: list[str] | None = None

        def export_state(self, state: list[str]) -> bytes:
            self.exporting.set()
            assert self.gate_export.wait(10)
            self.seen = list(state)
            return super().export_state(state)

    environment = Slow()
    async with served(environment, tmp_path) as server:
        await server.seed()
        await server.seed(rollout="p1_g0")
        await server.prepare()
        committing = asyncio.ensure_future(
            server.control(
                "commit", checkpoint_id="ck", budget_s=5, folder=str(checkpoint_folder(tmp_path))
            )
        )
        assert await asyncio.to_thread(environment.exporting.wait, 5)
        await server.control("resume", checkpoint_id="ck")
        other = await server.call("/append", {"name": "b"}, "call-0", rollout="p1_g0")
        assert other.json() == {"all": ["b"]}
        same = asyncio.ensure_future(server.call("/append", {"name": "a"}, "call-0"))
        await asyncio.sleep(0.02)
        assert not same.done()
        environment.gate_export.set()
        assert (await same).json() == {"all": ["a"]}
        assert environment.seen == []
        assert (await committing).json()["code"] == "stale_checkpoint"


async def test_a_server_without_the_two_methods_is_restart_only(tmp_path: Path) -> None:
    async with served(RestartOnly(), tmp_path) as server:
        capabilities = await server.http.get(
            f"{BASE_PATH}/capabilities", headers={"authorization": "Bearer token"}
        )
        assert capabilities.json()["mode"] == "restart_only"
        seeded = await server.seed()
        assert "x-turnpoint-resource-revision" not in seeded.headers
        await server.prepare()
        committed = await server.commit(checkpoint_folder(tmp_path))
        assert (committed.files, committed.sessions) == ([], [])

    class Half(Scripted):
        import_state = Environment.import_state

    with pytest.raises(TypeError):
        environment_app(Half(), settings(tmp_path))
    assert Counter().mode is Mode.EXPORT_RESTORE


@pytest.mark.parametrize("name", ["verify", "health", "reset", "close", "my tool", "a.b"])
def test_a_tool_that_no_agent_would_call_is_refused_at_the_start(name: str, tmp_path: Path) -> None:
    """Break: gym/resource/environment.py: refuse the server's own routes alone."""

    class Named(Scripted):
        def tools(self) -> Mapping[str, Tool[list[str]]]:
            return {name: Tool(BaseModel, self._apply)}

        async def _apply(self, session: Session[list[str]], _: BaseModel) -> dict[str, Any]:
            return {}

    with pytest.raises(ValueError, match=f"cannot be called {name}"):
        environment_app(Named(), settings(tmp_path))


async def test_an_effective_mutation_is_logged_once_and_without_arguments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="turnpoint.gym")
    async with served(Scripted(), tmp_path) as server:
        await server.seed()
        for _ in range(2):
            await server.call("/append", {"name": "private"}, "call-0")
    logged = [r.__dict__ for r in caplog.records if r.__dict__.get("event") == "mutation"]
    assert [(r["request_id"], r["revision"]) for r in logged] == [
        ("p0_g0/seed/0", 1),
        ("p0_g0/call-0/0", 2),
    ]
    assert "private" not in str(logged)
