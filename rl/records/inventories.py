"""Comparison of RL's ledger with the Gym servers and TransferQueue (design section 7, inventories).

Pure functions. Guarantees: all disagreements are listed, not only the first one; records and
inventories that `compare` accepts can be restored without losing or inventing a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gym.protocol import UNCERTAIN_REVISION, Continuation, Mode, SessionEntry
from rl.errors import InventoryMismatch
from rl.messages import Inventory, JoinedServer
from rl.records.rollout_record import RolloutRecord, RunPhase

_MOST_LISTED = 100


@dataclass
class MatchedInventory:
    """The servers' data of unfinished rollouts, matched with the ledger."""

    continuations: dict[str, Continuation] = field(default_factory=dict)
    """Of the newest run, by rollout."""
    sessions: dict[str, dict[str, SessionEntry]] = field(default_factory=dict)
    """By rollout, then by resource server."""
    storage: dict[str, list[str]] = field(default_factory=dict)
    """Staging keys that the continuations need, by rollout, in the servers' order."""
    leftovers: set[str] = field(default_factory=set)
    """Rollouts of which a server holds a failed run: no part of that run continues."""


def compare(
    records: Mapping[str, RolloutRecord],
    inventory: Inventory,
    *,
    staging_keys: set[str],
    training_keys: set[str],
) -> MatchedInventory:
    """Compare the ledger with the servers' inventories and with TransferQueue's keys.

    Args:
        records: The ledger.
        inventory: The servers' answers at commit or at restore.
        staging_keys: All keys of the partition of model calls.
        training_keys: All keys of the partition of finished rollouts.

    Raises:
        InventoryMismatch: They disagree; `details["problems"]` lists up to 100 differences.
    """
    comparison = _Comparison(records, inventory, staging_keys, training_keys)
    _require_none(
        [
            *comparison.continuations(),
            *comparison.sessions(),
            *comparison.storage(),
            *comparison.finished(),
        ]
    )
    return comparison.matched


def compare_restored(before: Mapping[str, RolloutRecord], matched: MatchedInventory) -> None:
    """The reverse check, on restore: the servers hold everything that the ledger file names.

    Args:
        before: The ledger as the file has it, before the runs n+1.
        matched: Answer of `compare` with the runs n+1.

    Raises:
        InventoryMismatch: They disagree.
    """
    problems = []
    for record in before.values():
        if not record.unfinished:
            continue
        started = record.run.state is RunPhase.STARTED
        name = record.rollout_id
        if started and name not in matched.continuations:
            problems.append(f"{name} was held by an agent and no agent has restored it")
        if not started and name in matched.continuations:
            problems.append(f"{name} was held by no agent and one has restored it")
        if set(record.staging_keys) != set(matched.storage.get(name, [])):
            problems.append(f"{name}: ledger and token-storage index name other staging rows")
    _require_none(problems)


def rollouts_to_restart(
    matched: MatchedInventory, servers: Iterable[JoinedServer]
) -> dict[str, str]:
    """The restored rollouts that cannot continue, each with the reason (invariants 8 and 9).

    They include rollouts that finished as failed of which a server still holds something.
    """
    modes = {server.name: server.mode for server in servers}
    reasons = dict.fromkeys(sorted(matched.leftovers), "its run had failed")
    for rollout_id in sorted(matched.continuations.keys() | matched.sessions.keys()):
        reason = _reason(
            matched.continuations.get(rollout_id), matched.sessions.get(rollout_id, {}), modes
        )
        if reason is not None:
            reasons.setdefault(rollout_id, reason)
    return reasons


def _reason(
    continuation: Continuation | None,
    sessions: Mapping[str, SessionEntry],
    modes: Mapping[str, Mode],
) -> str | None:
    if continuation is None:
        return f"session on {min(sessions)} without a continuation"
    named = continuation.resource_state_revisions
    for server, revision in sorted(named.items()):
        mode = modes.get(server)
        if mode is Mode.STATELESS:
            continue
        if mode is not Mode.EXPORT_RESTORE:
            return f"used {server}, which is {mode.value if mode else 'not there any more'}"
        session = sessions.get(server)
        if UNCERTAIN_REVISION in (revision, session.revision if session else None):
            return f"its session on {server} was uncertain"
        if session is None:
            return f"its session on {server} is missing"
        if session.revision != revision:
            return f"its session on {server} has another revision than it names"
    unnamed = sorted(sessions.keys() - named.keys())
    return f"session on {unnamed[0]}, which it does not name" if unnamed else None


@dataclass
class _Comparison:
    """One comparison; each method yields problems and fills `matched`."""

    records: Mapping[str, RolloutRecord]
    inventory: Inventory
    staging_keys: set[str]
    training_keys: set[str]
    matched: MatchedInventory = field(default_factory=MatchedInventory)

    def continuations(self) -> Iterable[str]:
        found = self.matched.continuations
        for agent, lines in self.inventory.continuations.items():
            counted = self.inventory.line_counts.get(agent)
            if counted != len(lines):
                yield f"{agent}: {len(lines)} lines, and its status counts {counted}"
            for line in lines:
                name = line.rollout_id
                problem, current = self._belongs(name, line.attempt_index)
                if problem is not None:
                    yield f"{agent}: continuation of {problem}"
                elif current and (sent_to := self.records[name].agent) != agent:
                    yield f"{agent}: continuation of {name}, which went to {sent_to}"
                elif current and name in found:
                    yield f"{agent}: a second continuation of {name}"
                elif current:
                    found[name] = line

    def sessions(self) -> Iterable[str]:
        for server, entries in self.inventory.sessions.items():
            for entry in entries:
                name = entry.rollout_id
                problem, current = self._belongs(name, entry.attempt_index)
                if problem is not None:
                    yield f"{server}: session of {problem}"
                elif current and server in self.matched.sessions.setdefault(name, {}):
                    yield f"{server}: a second session of {name}"
                elif current:
                    self.matched.sessions[name][server] = entry

    def storage(self) -> Iterable[str]:
        held, leftovers = self.matched.continuations, self.matched.leftovers
        calls: set[tuple[str, str]] = set()
        for server, references in self.inventory.storage.items():
            for reference in references:
                name, call = reference.rollout_id, reference.model_call_id
                if name in leftovers and name not in held:
                    continue  # cleared with the failed run
                if name not in held:
                    yield f"{server}: token-storage index names {name}, which no agent holds"
                elif (name, call) in calls:
                    yield f"{server}: token-storage index names {call} of {name} twice"
                elif reference.key not in self.staging_keys:
                    yield f"the staging row of {call} of {name} is missing"
                else:
                    calls.add((name, call))
                    self.matched.storage.setdefault(name, []).append(reference.key)
        for name, line in held.items():
            last = line.last_committed_model_call_id
            if last is not None and (name, last) not in calls:
                yield f"{name} goes on after {last}, which the model's ledger does not know"

    def finished(self) -> Iterable[str]:
        over = {name for name, record in self.records.items() if not record.unfinished}
        for name in sorted(over - self.training_keys):
            yield f"the training row of {name} is missing"
        for name in sorted(self.training_keys - over):
            yield f"a training row of {name}, which is not over"
        for name in sorted(over):
            owned = self.records[name].staging_keys
            if missing := [key for key in owned if key not in self.staging_keys]:
                yield f"{len(missing)} staging rows of {name} are missing"

    def _belongs(self, rollout_id: str, attempt: int) -> tuple[str | None, bool]:
        """The problem of an entry of this run, if any, and True if the run is the newest."""
        record = self.records.get(rollout_id)
        if record is None:
            return f"{rollout_id}, which the ledger does not know", False
        if record.finished:
            return f"{rollout_id}, which is over", False
        newest = record.run.attempt_index
        # A failed rollout has no result, so no acknowledgement ever had the server forget it; of
        # one that goes on, run n+1 is recorded before a server has seen it and dropped run n.
        if record.failed or (attempt < newest and record.failed_runs):
            self.matched.leftovers.add(rollout_id)
            return None, False
        if attempt != newest:
            return f"{rollout_id} in run {attempt}, not {newest}", False
        return None, True


def _require_none(problems: list[str]) -> None:
    if problems:
        raise InventoryMismatch(
            f"{len(problems)} disagreements, the first: {problems[0]}",
            details={"problems": problems[:_MOST_LISTED]},
        )
