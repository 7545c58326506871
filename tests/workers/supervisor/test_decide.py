"""The supervisor's decisions, row by row, without a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rl.messages import GENERATION, NEMO_GYM
from tests.workers.observations import ACTORS, GYM, STACK, WELL, cluster_view, observation, status
from workers.job.cluster_view import ClusterView
from workers.supervisor.decide import (
    SILENT_S,
    UNHEARD_S,
    UNREACHABLE_S,
    Adopt,
    End,
    Leave,
    Recover,
    Restart,
    Revive,
    Wait,
    decide,
    unanswered,
)


def test_a_job_that_runs_is_left_alone() -> None:
    assert decide(WELL) == Wait()


def test_before_the_first_look_into_ray_nothing_is_lost() -> None:
    assert decide(observation(job=None)) == Wait()


@pytest.mark.parametrize("name", ["worker_1", "temporal", "policy"])
def test_a_process_without_state_is_started_again_without_a_restore(name: str) -> None:
    """Design, section 4. Break: treat every process as one with state."""
    assert decide(observation(gone={name})) == Restart(frozenset({name}))


@pytest.mark.parametrize("name", sorted(GYM))
def test_the_loss_of_a_gym_server_is_a_restore(name: str) -> None:
    assert decide(observation(gone={name, "worker_1"})) == Recover((f"{name} is gone",))


def test_the_loss_of_ray_starts_it_again_and_restores() -> None:
    assert decide(observation(gone={"ray"}, job=None)) == Recover(
        ("ray is gone",), ray_is_lost=True
    )


def test_the_loss_of_everything_names_what_held_state() -> None:
    action = decide(observation(gone=STACK, job=None, answering={}))
    assert isinstance(action, Recover) and action.ray_is_lost
    reasons = ("ray is gone", *(f"{name} is gone" for name in sorted(GYM)))
    assert action.reasons == reasons


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (cluster_view(None), "the controller is gone"),
        (cluster_view(status(incarnation=2)), "the controller is gone"),
        (cluster_view(status("starting")), "the job is starting"),
        (
            cluster_view(status("failed", reason="data_plane_lost")),
            "the job is failed (data_plane_lost)",
        ),
        (
            cluster_view(status(), missing=["TransferQueueStorageUnit#0"]),
            "TransferQueueStorageUnit#0 is gone",
        ),
    ],
)
def test_the_loss_of_state_in_ray_is_a_restore(job: ClusterView, reason: str) -> None:
    assert decide(observation(job=job)) == Recover((reason,))


def test_a_restarted_gym_server_is_never_taken_for_the_old_one() -> None:
    action = decide(observation(answering={**WELL.answering, "counter": "counter-2"}))
    assert isinstance(action, Recover)
    assert "counter is another instance" in action.reasons[0]


def test_a_server_that_does_not_answer_is_not_lost_by_that() -> None:
    assert decide(observation(answering={})) == Wait()


def test_the_silence_of_a_server_without_a_command_is_reported_after_a_while() -> None:
    """Break: wait for ever without a report."""
    silent = observation(unheard_s={"judge": UNHEARD_S + 1, "taxi": UNHEARD_S - 1})
    assert decide(silent) == Wait()
    assert unanswered(silent) == {"judge"}


def test_an_unmodified_server_has_no_instance_to_compare() -> None:
    servers = [s.model_copy(update={"instance_id": None}) for s in cluster_view().servers]
    job = cluster_view(status(), servers=servers)
    assert decide(observation(job=job, answering={"counter": "other"})) == Wait()


@pytest.mark.parametrize(("silent_s", "lost"), [(SILENT_S - 1, False), (SILENT_S + 1, True)])
def test_a_silent_controller_is_lost_after_a_while(silent_s: float, lost: bool) -> None:
    action = decide(observation(job=cluster_view(None, silent=True), silent_s=silent_s))
    assert isinstance(action, Recover) == lost


@pytest.mark.parametrize("owned", [STACK, STACK - {"ray"}])
def test_only_the_stacks_own_ray_is_started_again_for_its_silence(owned: frozenset[str]) -> None:
    silent = ClusterView(at=1.0, reachable=False)
    action = decide(observation(job=silent, owned=owned, unreachable_s=UNREACHABLE_S + 1))
    if "ray" in owned:
        assert isinstance(action, Recover) and action.ray_is_lost
    else:
        assert action == Wait()


@pytest.mark.parametrize("name", [GENERATION, NEMO_GYM])
def test_an_actor_without_state_is_started_again_without_a_restore(name: str) -> None:
    job = cluster_view(status(), actors=[actor for actor in ACTORS if actor != name])
    assert decide(observation(job=job)) == Revive((name,))


def test_a_finished_job_is_the_end_whatever_is_lost() -> None:
    over = status("finished")
    assert decide(observation(job=cluster_view(over), gone=STACK, stopped=True)) == End(over)


def test_the_end_of_an_older_incarnation_is_not_the_end() -> None:
    action = decide(observation(job=cluster_view(status("finished", incarnation=2))))
    assert action == Recover(("the controller is gone",))


def test_a_stack_ended_on_purpose_is_not_brought_back() -> None:
    """Break: look at what is gone first."""
    assert isinstance(decide(observation(gone=STACK, job=None, stopped=True)), Leave)


def test_the_restore_of_another_command_is_waited_for_and_its_tools_are_kept_running() -> None:
    """Break: claim over it, and two supervisors restore each other's jobs for ever."""
    other = observation(newest=4, claim_driven=True, job=cluster_view(None))
    assert decide(other) == Wait()
    broken = replace(other, gone=frozenset({"worker_2", "counter"}))
    assert decide(broken) == Restart(frozenset({"worker_2"}))


def test_an_incarnation_that_another_command_started_is_supervised_from_there() -> None:
    assert decide(observation(newest=4, job=cluster_view(status(incarnation=4)))) == Adopt(4)
    half = observation(
        newest=4, job=cluster_view(status("restored", incarnation=4)), claim_driven=True
    )
    assert decide(half) == Wait()


def test_a_claim_that_comes_to_nothing_is_taken_over() -> None:
    action = decide(observation(newest=4, job=cluster_view(None)))
    assert action == Recover(("incarnation 4 was claimed and is not alive",))


@pytest.mark.parametrize(
    "job", [None, ClusterView(at=1.0, reachable=False), cluster_view(None, silent=True)]
)
def test_a_claim_is_not_taken_over_before_a_look_into_ray_has_shown_its_outcome(
    job: ClusterView | None,
) -> None:
    """Break: take an incarnation for dead though Ray could not be asked."""
    assert decide(observation(newest=4, job=job)) == Wait()
    silent = observation(newest=4, job=cluster_view(None, silent=True), silent_s=SILENT_S + 1)
    assert isinstance(decide(silent), Recover)


def test_the_restore_of_another_command_is_not_waited_for_when_ray_is_gone() -> None:
    """Break: wait for a workflow whose workers cannot start without Ray, for ever."""
    lost = observation(newest=4, claim_driven=True, job=None, gone=STACK)
    assert decide(lost) == Recover(("ray is gone",), ray_is_lost=True)


def test_during_a_recovery_only_the_death_of_what_was_started_is_news() -> None:
    under_way = observation(recovering=True, newest=4, job=cluster_view(None), answering={})
    assert decide(under_way) == Wait()
    again = replace(under_way, gone=frozenset({"counter"}))
    assert decide(again) == Recover(("counter is gone",))
    stateless = replace(under_way, gone=frozenset({"worker_1"}))
    assert decide(stateless) == Restart(frozenset({"worker_1"}))
