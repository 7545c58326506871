"""A rollout in every state at the save: saved, killed with everything else, restored, compared.

One job, whose rollouts stand in all states at once (`state_story`); one test for each state, from
the table in `state_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.live import AGENT, MODEL, RESOURCE
from tests.real.state_rows import (
    EXPECTED,
    LAST,
    ROLLOUTS,
    State,
    mutations_of,
    revision_after,
)
from tests.real.state_story import (
    UNTIL_AGENT_CLOSES,
    UNTIL_MODEL_CLOSES,
    Story,
    play,
)
from tests.twin.rows import differences

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
every_state = pytest.mark.parametrize("state", State, ids=lambda state: state.name.lower())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Run it once."""
    with play(tmp_path_factory.mktemp("states")) as played:
        yield played


def test_the_rows_equal_those_of_the_undisturbed_job(story: Story) -> None:
    assert set(story.undisturbed) == set(ROLLOUTS.values())
    assert all(row["reward"] == 1 for row in story.undisturbed.values())
    assert differences(story.undisturbed, story.rows) == []


@every_state
def test_the_rollout_was_in_its_state_when_the_save_began(story: Story, state: State) -> None:
    """Asked of the servers while the save closed admission, before anything was let go."""
    expected, rollout = EXPECTED[state], ROLLOUTS[state]
    busy = {name: story.saved.busy[name].get(rollout) for name in (AGENT, MODEL, RESOURCE)}
    assert busy == {AGENT: expected.agent, MODEL: expected.model, RESOURCE: expected.counter}
    if state is State.NOT_GIVEN:
        return
    # And the phase that has to meet it there had begun, and had not ended, when it was let go.
    server = AGENT if state in UNTIL_AGENT_CLOSES else MODEL
    if state in UNTIL_AGENT_CLOSES or state in UNTIL_MODEL_CLOSES:
        began = story.control(server, story.saved.checkpoint_id, "prepare", "begin")
        assert began < story.saved.released[state]
    if expected.model or state in UNTIL_AGENT_CLOSES:
        ended = story.control(server, story.saved.checkpoint_id, "prepare", "end")
        assert story.saved.released[state] < ended
    if state is State.NOT_ARRIVED:
        prepared = story.control(AGENT, story.saved.checkpoint_id, "prepare", "end")
        assert prepared < story.saved.released[state]
    if state is State.UNACKNOWLEDGED:
        begun = story.control(MODEL, story.saved.checkpoint_id, "prepare", "begin")
        assert story.saved.released[state] < begun


def test_a_result_owed_when_admission_closes_is_acknowledged_before_prepare_begins(
    story: Story,
) -> None:
    """Issue 2, point 5. Its acknowledgement was held until admission had closed.

    Break: rl/controller/save.py: close admission without waiting for what is owed.
    """
    rollout = ROLLOUTS[State.UNACKNOWLEDGED]
    assert story.saved.owed == 1
    [at] = story.live.acknowledged(story.began, story.crashes[0])[rollout]
    prepared = story.control(MODEL, story.saved.checkpoint_id, "prepare", "begin")
    assert story.saved.released[State.UNACKNOWLEDGED] < at < prepared
    assert rollout not in story.first.lines
    assert story.rows[rollout]["tag"]["attempt_index"] == 0


@every_state
def test_the_snapshot_holds_what_the_table_says(story: Story, state: State) -> None:
    expected, rollout, snapshot = EXPECTED[state], ROLLOUTS[state], story.first
    record = snapshot.captured.records.get(rollout)
    runs = () if record is None else tuple(run.state.value for run in record.runs)
    assert runs == expected.runs
    if state is State.FAILING:
        return  # its run is over: servers may have dropped what they held of it, or not yet
    assert (rollout in snapshot.lines) == (expected.saved is not None)
    if expected.saved is None:
        # Nothing of it is left on the servers: it was not accepted, or it is over.
        assert rollout not in snapshot.states
        assert rollout not in snapshot.sessions
        return
    line, saved = snapshot.lines[rollout], expected.saved
    last = None if saved.last_call is None else f"call-{saved.last_call}"
    revision = revision_after(rollout, saved.last_call)
    assert line["attempt_index"] == saved.attempt
    assert line["last_committed_model_call_id"] == last
    assert snapshot.states[rollout]["stage"] == saved.stage
    assert snapshot.sessions[rollout]["revision"] == revision
    assert snapshot.sessions[rollout]["attempt_index"] == saved.attempt
    assert line["resource_state_revisions"] == {RESOURCE: revision}
    assert record is not None
    calls = 0 if saved.last_call is None else saved.last_call + 1
    assert len(record.staging_keys) == calls


def test_the_loader_stands_before_the_rollout_that_was_not_given_out(story: Story) -> None:
    assert story.first.captured.place.place == len(State) - 1
    assert f"p{len(State) - 1}_g0" == LAST


@every_state
def test_the_restore_gives_it_the_next_run_where_it_stood(story: Story, state: State) -> None:
    expected, rollout = EXPECTED[state], ROLLOUTS[state]
    given = {one.rollout_id: one for one in story.restored.continued}.get(rollout)
    assert (None if given is None else given.attempt_index) == expected.run
    if given is None:
        return
    assert given.restarted_because == expected.restarted_because
    last = None
    if expected.saved is not None and expected.restarted_because is None:
        last = story.first.lines[rollout]["last_committed_model_call_id"]
    assert given.last_committed_model_call_id == last


@every_state
def test_it_ends_with_this_run(story: Story, state: State) -> None:
    assert story.rows[ROLLOUTS[state]]["tag"]["attempt_index"] == EXPECTED[state].ends_with


@every_state
def test_each_mutation_took_effect_once_on_the_state_that_went_on(
    story: Story, state: State
) -> None:
    rollout = ROLLOUTS[state]
    went_on = lineage(story, state)
    assert [line["revision"] for line in went_on] == list(range(1, mutations_of(rollout) + 1))
    places = [line["request_id"].partition("/")[2] for line in went_on]
    assert len(set(places)) == len(places)
    assert story.rows[rollout]["tag"]["mutations"] == mutations_of(rollout)


def lineage(story: Story, state: State) -> list[dict[str, Any]]:
    """The mutations that the rollout's final state is made of, over the lives of the job."""
    expected = EXPECTED[state]
    first, second, third = story.mutations(ROLLOUTS[state])
    if expected.runs == ("finished",):
        assert second == third == []
        return first
    if state is State.BETWEEN_TURNS:
        assert second == [], "it was not sent again before the second save"
        second = third
    else:
        assert third == []
    saved = expected.saved
    if saved is None or expected.restarted_because is not None:
        return second
    kept = revision_after(ROLLOUTS[state], saved.last_call)
    return [
        line for line in first if line["attempt"] == saved.attempt and line["revision"] <= kept
    ] + second


def test_the_crash_cost_turns_that_were_done_again(story: Story) -> None:
    """Else the tests above would compare a job that lost nothing."""
    lost = [
        rollout
        for rollout, line in story.first.sessions.items()
        if any(m["revision"] > line["revision"] for m in story.mutations(rollout)[0])
    ]
    assert lost


def test_a_record_restored_and_not_sent_again_is_saved_as_it_was_restored(story: Story) -> None:
    """Break: have the agent leave restored records out of its export."""
    rollout = ROLLOUTS[State.BETWEEN_TURNS]
    before, after = story.first.lines[rollout], story.second.lines[rollout]
    assert list(story.second.lines) == [rollout]
    assert after == before | {"attempt_index": 1}
    state = story.first.states[rollout]
    assert story.second.states[rollout] == state | {"attempt_index": 1}
    session = story.first.sessions[rollout]
    assert story.second.sessions[rollout] == session | {"attempt_index": 1}
    assert [run.state.value for run in story.second.captured.records[rollout].runs] == [
        "superseded",
        "started",
    ]
    sent = [
        line["ts"]
        for line in story.live.log(AGENT, "run_continued")
        if (line["rollout_id"], line["attempt"]) == (rollout, 1)
    ]
    prepared = story.control(AGENT, story.second_checkpoint_id, "prepare", "begin")
    assert [at for at in sent if at < prepared] == []
    [given] = story.restored_again.continued
    assert (given.rollout_id, given.attempt_index) == (rollout, 2)
    assert given.last_committed_model_call_id == "call-1"
    assert given.restarted_because is None


def test_a_judge_answers_inside_verify_though_the_policy_is_closed(story: Story) -> None:
    """Break: gym/checkpoint/participant.py: close auxiliary servers, too (`never_closes=False`)."""
    policy_closed = story.control(MODEL, story.saved.checkpoint_id, "prepare", "end")
    released = story.saved.released[State.VERIFY]
    agent_ready = story.control(AGENT, story.saved.checkpoint_id, "prepare", "end")
    assert story.saved.judging.in_flight == 1
    assert policy_closed < released < agent_ready
    [verified] = [
        line
        for line in story.mutations(ROLLOUTS[State.VERIFY])[0]
        if line["request_id"].endswith("/verify/0")
    ]
    assert released < verified["ts"] < agent_ready
    assert story.saved.judged_in_the_pause.status == 200
    resumed = story.control(MODEL, story.saved.checkpoint_id, "resume", "begin")
    assert agent_ready < story.saved.judged_in_the_pause.at < resumed
    assert story.first.captured.records[ROLLOUTS[State.VERIFY]].runs[-1].state.value == "finished"


def test_a_server_that_answers_500_fails_the_save_by_name_and_nothing_else(story: Story) -> None:
    """Break: gym/protocol/errors.py: make `ServerFault` retryable. The save publishes."""
    broken = story.broken
    assert broken.error["code"] == "server_fault"
    assert AGENT in broken.error["message"] and "500" in broken.error["message"]
    assert broken.left_over == []
    assert broken.snapshots == ["snapshot_000001"]
    assert broken.all_open


@pytest.mark.parametrize("server", [AGENT, MODEL, RESOURCE])
def test_a_call_without_identity_is_held_until_resume_and_is_in_no_inventory(
    story: Story, server: str
) -> None:
    assert story.saved.in_flight[server] == 0
    answered = story.saved.unidentified[server]
    assert answered.status == 200
    resumed = story.control(server, story.saved.checkpoint_id, "resume", "begin")
    [held] = [line for line in story.live.log(server, "held") if line["state"] == "end"][:1]
    assert resumed < held["ts"] < answered.at
    if server == AGENT:
        assert "reward" in answered.body
    kept = {ROLLOUTS[state] for state, expected in EXPECTED.items() if expected.saved}
    over = {ROLLOUTS[State.FAILING]}
    assert set(story.first.lines) - over == set(story.first.sessions) - over == kept - over
