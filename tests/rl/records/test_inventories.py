"""Every disagreement of design section 7 is found; records that agree are accepted."""

import pytest

from gym.protocol import Continuation, Mode, SessionEntry, StorageReference
from rl.errors import InventoryMismatch
from rl.messages import Inventory
from rl.records.inventories import MatchedInventory, compare, compare_restored, rollouts_to_restart
from rl.records.recovery_ledger import RecoveryLedger
from rl.records.snapshot_part import for_snapshot
from tests.rl.fakes import AGENT, COUNTER, MODEL, line, servers

SHA = "a" * 64


def _ledger() -> RecoveryLedger:
    """p0 finished (one staging row), p1 under way, p2 sent and not accepted, p3 redispatched."""
    ledger = RecoveryLedger()
    for name in ("p0_g0", "p1_g0", "p2_g0", "p3_g0"):
        ledger.reserve(name, AGENT, 1)
        ledger.started(name, 0)
    ledger.finish("p0_g0", 0, reward=1, result_digest=SHA, staging_keys=["1/p0_g0/call-0"])
    ledger.paid("p0_g0", SHA)
    ledger.fail("p3_g0", 0, "session_uncertain")
    ledger.next_run("p3_g0", 1)
    return ledger


def _reference(name: str, call: int = 0) -> StorageReference:
    return StorageReference(
        rollout_id=name, model_call_id=f"call-{call}", key=f"1/{name}/call-{call}"
    )


def _session(name: str, attempt: int = 0, revision: int = 3) -> SessionEntry:
    return SessionEntry(rollout_id=name, attempt_index=attempt, revision=revision)


def _compare(
    lines: list[Continuation] | None = None,
    sessions: list[SessionEntry] | None = None,
    storage: list[StorageReference] | None = None,
    *,
    counted: int | None = None,
    agent: str = AGENT,
    staging: set[str] | None = None,
    training: set[str] | None = None,
) -> MatchedInventory:
    lines = [line("p1_g0", revisions={COUNTER: 3})] if lines is None else lines
    inventory = Inventory(
        continuations={agent: lines},
        sessions={COUNTER: [_session("p1_g0")] if sessions is None else sessions},
        storage={MODEL: [_reference("p1_g0")] if storage is None else storage},
        line_counts={agent: len(lines) if counted is None else counted},
    )
    return compare(
        _ledger(),
        inventory,
        staging_keys={"1/p0_g0/call-0", "1/p1_g0/call-0"} if staging is None else staging,
        training_keys={"p0_g0"} if training is None else training,
    )


def test_what_agrees_passes() -> None:
    matched = _compare()
    assert list(matched.continuations) == ["p1_g0"]
    assert matched.storage == {"p1_g0": ["1/p1_g0/call-0"]}
    assert matched.sessions["p1_g0"][COUNTER].revision == 3
    assert not matched.leftovers


@pytest.mark.parametrize(
    ("problem", "change"),
    [
        ("its status counts 2", {"counted": 2}),
        ("p9_g0, which the ledger does not know", {"lines": [line("p9_g0")]}),
        ("continuation of p0_g0, which is over", {"lines": [line("p0_g0")]}),
        ("p1_g0 in run 1, not 0", {"lines": [line("p1_g0", 1)]}),
        ("which went to simple_agent", {"agent": "another"}),
        ("a second continuation", {"lines": [line("p1_g0"), line("p1_g0")]}),
        ("session of p0_g0, which is over", {"sessions": [_session("p0_g0")]}),
        ("session of p1_g0 in run 2", {"sessions": [_session("p1_g0", 2)]}),
        ("session of p9_g0", {"sessions": [_session("p9_g0")]}),
        ("a second session", {"sessions": [_session("p1_g0"), _session("p1_g0")]}),
        ("p1_g0 goes on after call-0", {"storage": []}),
        ("names p2_g0, which no agent holds", {"storage": [_reference("p2_g0")]}),
        ("names call-0 of p1_g0 twice", {"storage": [_reference("p1_g0"), _reference("p1_g0")]}),
        ("staging row of call-0 of p1_g0 is missing", {"staging": {"1/p0_g0/call-0"}}),
        ("1 staging rows of p0_g0 are missing", {"staging": {"1/p1_g0/call-0"}}),
        ("training row of p0_g0 is missing", {"training": set()}),
        ("training row of p2_g0, which is not over", {"training": {"p0_g0", "p2_g0"}}),
    ],
)
def test_a_disagreement_is_listed(problem: str, change: dict) -> None:
    with pytest.raises(InventoryMismatch) as caught:
        _compare(**change)
    assert any(problem in found for found in caught.value.details["problems"])


def test_every_disagreement_is_listed() -> None:
    with pytest.raises(InventoryMismatch) as caught:
        _compare(counted=5, training=set(), storage=[])
    assert len(caught.value.details["problems"]) == 3


def test_a_failed_run_that_a_server_still_holds_is_no_disagreement() -> None:
    matched = _compare(
        lines=[line("p1_g0"), line("p3_g0")],
        sessions=[_session("p3_g0")],
        storage=[_reference("p1_g0"), _reference("p3_g0")],
    )
    assert matched.leftovers == {"p3_g0"}
    assert list(matched.continuations) == ["p1_g0"] and list(matched.storage) == ["p1_g0"]
    assert "failed" in rollouts_to_restart(matched, servers())["p3_g0"]


def test_what_a_server_holds_of_a_failed_rollout_is_no_disagreement() -> None:
    ledger = RecoveryLedger()
    ledger.reserve("p0_g0", AGENT, 1)
    ledger.fail("p0_g0", 0, "session_uncertain")
    inventory = Inventory(
        continuations={AGENT: []},
        sessions={COUNTER: [_session("p0_g0", 0, -1)]},
        storage={},
        line_counts={AGENT: 0},
    )
    matched = compare(ledger, inventory, staging_keys=set(), training_keys={"p0_g0"})
    assert matched.leftovers == {"p0_g0"} and not matched.sessions


def _restored(**changes: object) -> tuple[dict, MatchedInventory]:
    """The file's records and what the servers restored: p1 as run 1."""
    saved = for_snapshot(_ledger(), {"p1_g0": ["1/p1_g0/call-0"]})
    matched = MatchedInventory(
        continuations={"p1_g0": line("p1_g0", 1)}, storage={"p1_g0": ["1/p1_g0/call-0"]}
    )
    for name, value in changes.items():
        setattr(matched, name, value)
    return saved, matched


def test_the_other_way_round_what_the_file_names_is_held() -> None:
    compare_restored(*_restored())
    with pytest.raises(InventoryMismatch, match="no agent has restored it"):
        compare_restored(*_restored(continuations={}))
    with pytest.raises(InventoryMismatch, match="one has restored it"):
        both = {"p1_g0": line("p1_g0", 1), "p2_g0": line("p2_g0", 1, calls=0)}
        compare_restored(*_restored(continuations=both))
    with pytest.raises(InventoryMismatch, match="other staging rows"):
        compare_restored(*_restored(storage={}))


@pytest.mark.parametrize(
    ("named", "session", "mode", "reason"),
    [
        ({COUNTER: 3}, 3, Mode.EXPORT_RESTORE, None),
        ({}, None, Mode.EXPORT_RESTORE, None),
        ({COUNTER: None}, None, Mode.STATELESS, None),
        ({COUNTER: None}, None, Mode.RESTART_ONLY, "used counter, which is restart_only"),
        ({COUNTER: 3}, None, Mode.RESTART_ONLY, "used counter, which is restart_only"),
        ({"gone": 1}, None, Mode.EXPORT_RESTORE, "used gone, which is not there any more"),
        ({COUNTER: -1}, None, Mode.EXPORT_RESTORE, "its session on counter was uncertain"),
        ({COUNTER: 3}, -1, Mode.EXPORT_RESTORE, "its session on counter was uncertain"),
        ({COUNTER: 3}, None, Mode.EXPORT_RESTORE, "its session on counter is missing"),
        ({COUNTER: 3}, 4, Mode.EXPORT_RESTORE, "has another revision"),
        ({COUNTER: None}, 4, Mode.EXPORT_RESTORE, "has another revision"),
        ({}, 4, Mode.EXPORT_RESTORE, "session on counter, which it does not name"),
        (None, 4, Mode.EXPORT_RESTORE, "session on counter without a continuation"),
    ],
)
def test_rollouts_to_restart(
    named: dict | None, session: int | None, mode: Mode, reason: str | None
) -> None:
    """Invariant 9. Break: rl/records/inventories.py: let stateless servers restart it; seen red."""
    matched = MatchedInventory()
    if named is not None:
        matched.continuations["p1_g0"] = line("p1_g0", 1, revisions=named)
    if session is not None:
        matched.sessions["p1_g0"] = {COUNTER: _session("p1_g0", 1, session)}
    found = rollouts_to_restart(matched, servers(mode))
    if reason is None:
        assert found == {}
    else:
        assert reason in found["p1_g0"]
