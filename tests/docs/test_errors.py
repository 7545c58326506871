"""`docs/errors.md`: every code that a user can meet has a row, and every row has a test.

`TESTS` maps each row, by its cause, to the test that shows code and message.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import activities
import gym
import rl
import workers
import workflows
from gym.protocol import TurnpointError
from workers import errors
from workers.job.commands import REFUSALS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| Cause")
]
DEFINED = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
}
"""Names of all test functions; which file one is in may change."""

NO_ROW = {
    "protocol_error": "a branch of the tree; only its leaves are raised",
    "job_error": "a branch of the tree",
    "fleet_error": "a branch of the tree",
    "state_error": "a branch of the tree",
    "failed": "the root of the command line's errors; others carry the code of what failed",
    "origin_conflict": "two restores under one incarnation, which is claimed by one of them alone",
    "weights_syncing": "there is no trainer that syncs weights yet",
}
"""Codes that no user meets, each with the reason."""
OUTSIDE_THE_TREES = {"cancelled", "os_error", "terminated", "usage"}
"""Codes of the command line without a class of their own."""
BASES = (TurnpointError, errors.WorkerRoomError)


def _all_modules() -> None:
    """Import every module of the product: an error class may stand in any."""
    for room in (activities, gym, rl, workers, workflows):
        for found in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def _codes(kind: type[TurnpointError] | type[errors.WorkerRoomError]) -> set[str]:
    """Codes below a class, but for those that tests have added."""
    own = set() if kind.__module__.startswith("tests.") else {kind.code}
    return own.union(*(_codes(sub) for sub in kind.__subclasses__()))


def _known() -> set[str]:
    _all_modules()
    return set().union(*map(_codes, BASES)) | REFUSALS | OUTSIDE_THE_TREES


def _named(row: list[str]) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", row[1])) - {"skipped", "run"}


def _tests() -> dict[str, str]:
    lines = TESTS.strip().splitlines()
    return dict(zip(lines[::2], map(str.strip, lines[1::2]), strict=True))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_codes_that_exist_and_its_test_exists(row: list[str]) -> None:
    """Break: rename a test that `TESTS` names, or a code that the page shows."""
    assert len(row) == 4
    assert _named(row) and _named(row) <= _known()
    assert _tests()[row[0]] in DEFINED


def test_every_code_has_a_row_or_a_reason_why_not() -> None:
    """Break: add an error class with a code of its own, and no row."""
    on_the_page = set().union(*map(_named, ROWS))
    assert _known() - on_the_page == set(NO_ROW)


def test_every_row_has_its_own_cause_and_no_test_is_left_over() -> None:
    """Break: delete a row of the page."""
    assert len(ROWS) > 90
    assert [row[0] for row in ROWS] == list(_tests())


TESTS = """
An unknown command, flag or argument
    test_wrong_usage_is_2
A value that is not allowed
    test_error_says_where_the_wrong_value_stands
An environment variable `TURNPOINT_...` that is no key
    test_unknown_environment_variable_is_refused_with_the_nearest
An unknown key in `turnpoint.toml`
    test_unknown_key_in_the_file_is_named_with_file_and_the_nearest
`turnpoint.toml` is not TOML, or `stack.json` is damaged
    test_files_that_cannot_be_read_are_named
A path that cannot be used: a state folder that is a file, `~` of an unknown user
    test_a_path_that_is_none_is_refused_with_its_key_and_place
The operating system refuses a file or folder
    test_what_the_system_refuses_is_named_by_its_path
`ports` or `options` for a process that does not exist
    test_ports_and_options_of_no_process_are_refused_before_anything_starts
A secret in `turnpoint.toml`
    test_secret_in_the_file_is_refused
A user name or password in a URL
    test_a_credential_in_a_url_is_refused_and_hidden
A server with a `command`: another process's name, a `url` without a port, or a port used twice
    test_a_command_that_cannot_work_is_refused
The program or folder of a server's `command` does not exist
    test_a_program_that_is_not_there_is_named_with_what_to_correct
Two servers with one name
    test_two_servers_with_one_name_are_refused
One URL under two names
    test_one_url_under_two_names_is_refused_with_both
`--policy URL` is malformed
    test_a_malformed_url_is_exit_code_2_and_not_shown
`--policy URL` does not answer
    test_a_policy_that_does_not_answer_is_exit_code_4_with_address_and_next_step
`--policy URL` is another service, or does not serve the model
    test_a_server_that_is_no_policy_is_refused_before_anything_starts
A fixed port is in use (Temporal, its UI, Ray, policy, Gym server, generation endpoint)
    test_each_fixed_port_in_use_is_named_with_its_setting_and_starts_nothing
The generation endpoint's port is taken when the job starts
    test_a_port_in_use_is_typed_with_port_and_setting
A process of the stack ends early, or is not ready in time
    test_failed_up_names_process_and_log_and_leaves_nothing
Two `up` or `down` in one state folder at once
    test_two_commands_on_one_stack_are_kept_apart
The job of another stack, or a second job on one Ray cluster
    test_a_second_job_on_a_stack_is_3_names_both_and_touches_nothing
`run` or a save of a job that has finished
    test_a_job_that_has_finished_is_left_as_it_is_and_said_to_have
The stack is stopped while `run` supervises
    test_a_stack_that_was_stopped_ends_the_supervision
Twenty recoveries in a row do not bring the job back
    test_recoveries_that_get_nowhere_end_at_last
A second process of a Gym server (`--workers 2`, or one that still runs)
    test_with_two_workers_the_second_is_refused_with_the_server_named
`WEB_CONCURRENCY` is set for a Gym server
    test_web_concurrency_ends_a_server_with_one_typed_line
A dataset row does not parse
    test_before_any_job_there_is_nothing_to_save_or_restore
A dataset row names an agent that the job does not have
    test_rows_for_another_agent_are_refused_before_anything_is_touched
No stack in the state folder, and `TURNPOINT_SERVERS` names no other fleet
    test_without_a_stack_every_command_says_at_once_how_to_start_one
A restore while the stack is down
    test_a_restore_without_ray_says_that_the_stack_is_down_else_which_address_is_silent
Ctrl-C while a command follows a save or restore
    test_an_interrupted_save_or_restore_names_the_workflow_that_goes_on
The environment has another control token than the stack
    test_a_command_with_another_token_than_the_stacks_is_told_so
The environment has another snapshot key than the key file
    test_a_snapshot_key_that_would_not_be_used_is_refused
The file of a secret cannot be read, is empty, or has another mode than 0600
    test_a_file_that_others_may_use_is_refused_with_the_fix
Temporal's own configuration: no address, no such profile, file or certificate
    test_what_temporals_configuration_gets_wrong_is_a_sentence_without_its_text
Temporal does not answer
    test_commands_say_at_once_that_temporal_or_ray_is_gone
Temporal accepts the connection and stays silent
    test_a_temporal_that_takes_the_connection_and_is_silent_is_given_up
Temporal refuses (an unknown namespace), or disappears during a command
    test_what_temporal_refuses_is_a_sentence
Ray does not answer
    test_a_ray_that_is_not_there_names_the_next_step
Ray accepts the connection and stays silent
    test_a_ray_that_takes_the_connection_and_is_silent_is_given_up
An unexpected error in Turnpoint's own code
    test_an_unexpected_error_tells_nothing
The job does not run
    test_a_save_without_a_job_says_how_to_bring_it_back
Another save runs
    test_a_save_while_one_runs_is_refused_and_the_first_publishes
A restore runs
    test_a_save_while_a_restore_runs_is_refused_and_says_to_wait
A restore claims the job during the save
    test_a_save_of_a_dead_incarnation_is_ended_and_publishes_nothing
A late step of an older incarnation
    test_an_older_incarnation_reserves_and_publishes_nothing
The save was cancelled or terminated in the Temporal UI before it published
    test_who_follows_is_told_how_a_workflow_was_ended_and_why
A Gym server is down or was restarted before the save
    test_begin_checks_servers_and_space_before_anything_pauses
The job has failed (a Gym server was restarted under it)
    test_a_restarted_server_fails_the_save_and_the_job_and_a_restore_brings_it_back
A Gym server goes down during the save
    test_a_server_killed_before_its_prepare_is_named_and_the_others_go_on
A Gym server is restarted during the save
    test_trouble_is_told_soon_with_the_server_named
A Gym server answers 500
    test_a_server_that_answers_500_fails_the_save_by_name_and_nothing_else
No time is left when a phase begins
    test_a_deadline_in_the_past_is_typed_and_nothing_stands_still
An environment's state cannot be exported
    test_a_state_that_cannot_be_exported_names_server_rollout_and_what_to_do
Too little disk space before the pause
    test_what_a_failed_save_left_does_not_refuse_the_next
The disk gets full during the pause
    test_a_disk_without_space_is_seen_before_the_pause_and_in_it
The disk refuses a file for another reason
    test_a_disk_that_refuses_is_a_typed_error_that_names_the_file
Nothing has changed since the newest snapshot
    test_unchanged_since_the_last_snapshot
TransferQueue still writes an earlier save that has ended
    test_a_deadline_in_the_save_ends_the_cut_and_a_repeat_waits
Rollouts reach no turn boundary in time
    test_not_ready_names_every_blocker_of_the_kind_and_no_later_kind_is_asked
Another server than the configured one answers at a URL
    test_another_server_at_a_url_is_typed_with_both_names_and_none_is_joined
The save was resumed, or its lease has ended
    test_an_ended_id_can_do_nothing_any_more
Another save or restore owns the job or a server
    test_steps_in_another_order_or_of_another_save_are_refused
A step of a save or restore comes out of order
    test_steps_in_another_order_or_of_another_save_are_refused
Ledger, Gym servers and TransferQueue disagree
    test_a_disagreement_fails_the_cut_before_anything_is_saved
TransferQueue is gone, or what took effect in it is unknown
    test_a_row_that_never_becomes_readable_is_an_error
An actor of the job died
    test_a_reason_that_is_not_about_the_snapshot_never_takes_an_older_one
The folder is not what its writers answered
    test_publish_refuses_what_its_writers_did_not_answer
The folder of the save was given up meanwhile
    test_a_folder_that_went_to_trash_is_not_left_recreated
The job runs
    test_a_restore_into_the_running_job_is_refused_on_temporal_too
`prune` before the job ever ran
    test_of_a_job_that_never_ran_there_is_nothing_to_prune
The line has no snapshot
    test_before_any_job_there_is_nothing_to_save_or_restore
A truncated, edited, missing or extra file
    test_a_restarted_server_fails_the_save_and_the_job_and_a_restore_brings_it_back
Every snapshot is damaged
    test_without_an_intact_one_each_is_named
`list`, `verify` or `inspect` of a damaged snapshot
    test_a_damaged_snapshot_is_named_by_file_with_the_next_step
Another topology than the snapshot's
    test_each_entry_of_the_topology_is_compared_and_listed
The dataset has changed since the snapshot
    test_a_changed_dataset_is_refused
Gym servers do not answer
    test_those_that_do_not_answer_within_the_wait_are_all_named
A Gym server goes down during the restore
    test_trouble_is_told_soon_with_the_server_named
An agent has restored its part, and then does not answer or was restarted
    test_an_agent_that_does_not_count_its_runs_is_no_fault_of_the_snapshot
A server with several worker processes, of another kind or schema
    test_servers_that_do_not_fit_are_named_with_the_reason_and_none_is_joined
The named snapshot does not exist
    test_looking_for_what_is_not_there_says_so
A snapshot of another schema version
    test_other_files_are_named_and_refused
A file changes between its check and its use
    test_other_files_are_named_and_refused
Gym servers were not started for a restore
    test_servers_that_are_not_restarted_for_a_restore_are_named_and_none_is_joined
A damaged file below `incarnations/`
    test_a_damaged_origin_is_named
The file of the manifest's key is empty or missing
    test_a_configured_key_file_that_is_gone_is_not_taken_for_no_key
A wrong or missing token
    test_every_server_refuses_strangers_and_bad_requests
Unknown or wrong fields
    test_a_bad_field_is_named_and_its_value_hidden
A folder outside the snapshot root, or a symlink on the way
    test_only_real_folders_below_the_root_are_accepted
Another incarnation, or another instance of the process
    test_another_incarnation_or_instance_is_refused_everywhere
A call before the server has joined a job
    test_identity_is_refused_before_join_of_another_incarnation_and_malformed
A call while a save or restore closes the server
    test_one_mutation_at_a_time_and_to_its_end_though_the_caller_leaves
A call of an older run or incarnation
    test_a_run_that_a_save_has_counted_is_forgotten_after_it_alone
Identity headers that do not fit together
    test_identity_is_refused_before_join_of_another_incarnation_and_malformed
The same request id with another body
    test_an_unknown_run_is_refused_while_closed_and_a_known_one_joins
An acknowledgement of another result
    test_results_are_kept_until_they_are_acknowledged
A handler of the environment raised
    test_a_handler_that_raises_makes_the_session_uncertain
A session that this process does not know
    test_the_cookie_has_no_age_limit_and_is_sent_with_every_answer
The model calls of a rollout form no chain
    test_a_chain_that_is_broken_circular_or_double_is_refused
"""
