"""Starts, watches and ends everything that a job needs on one machine.

`up` starts the processes of `workers.stack.process_specs`, each in a session of its own with its
log in `<state_dir>/logs/<name>.log`, waits until they are ready and writes
`<state_dir>/stack.json`. `down` ends all of them and nothing else (`workers.stack.processes`).

Guarantees: when `up` fails, everything it started is stopped; after any crash, a SIGKILL of
everything included, `up` works again in the same state folder, with the same ports while they
are free. Two commands never start or stop one stack at the same time.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from filelock import FileLock, Timeout

from workers.config.key_files import ensure_key_files
from workers.config.settings import SECRETS, Settings
from workers.errors import Refused, StackBusy, Stopped, no_stack, stack_is_down
from workers.stack import ray_head
from workers.stack.policy import require_policy
from workers.stack.ports import port_registry
from workers.stack.process_specs import Part, parts
from workers.stack.processes import end, names_left
from workers.stack.record import RunningProcess, StackRecord, read_record, write_record
from workers.stack.resolve import choose_ports, require_known_names, resolve
from workers.stack.starting import start_all

GRACE_S = 5.0
"""For a SIGTERM. Ray's head does not end by one within 10 s (measured), so longer buys nothing."""
TEMPORAL_GRACE_S = 10.0
"""Temporal exits 1.5 s after SIGTERM; its SQLite file deserves the wait."""


class Stack:
    """The local stack of one state folder.

    Args:
        settings: Configuration; `state_dir` says which stack it is.
        on_message: Called with one line for each step, for a terminal.
    """

    def __init__(
        self, settings: Settings, on_message: Callable[[str], None] = lambda line: None
    ) -> None:
        self._settings = settings
        self._folder = settings.state_dir
        self._on_message = on_message
        self._abandoned = threading.Event()

    # --- the record ---------------------------------------------------------------------------

    def record(self) -> StackRecord | None:
        """The record that the last `up` wrote; None if there was none."""
        return read_record(self._folder)

    def _require_record(self) -> StackRecord:
        record = self.record()
        if record is None:
            raise no_stack(self._folder)
        return record

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self._folder / "stack.lock", timeout=0):
                yield
        except Timeout:
            raise StackBusy(
                f"another command starts or stops the stack in {self._folder}; wait for it"
            ) from None

    # --- up and down --------------------------------------------------------------------------

    def up(self, *, fresh: bool = False, only: set[str] | None = None) -> StackRecord:
        """Start everything and wait until it is ready.

        Args:
            fresh: Start the Gym servers for a new line even if the job has snapshots.
            only: Names of the parts to start; all by default.

        Raises:
            Refused: Processes of this stack are running.
            StackBusy: Another command starts or stops this stack.
            PortInUse: A fixed port is in use.
            SettingsError: `ports` or `options` name a process that the stack does not have.
            NotRunning, SettingsError: The policy is given as a URL, and does not serve the model.
            ProcessFailed: A process ended or was not ready in time. Everything is stopped.
        """
        with self._locked():
            last = self.record()
            if last is not None and (left := names_left(last.stack_id)):
                raise Refused(
                    f"this stack is up ({', '.join(sorted(left))}); end it with `turnpoint down`"
                )
            require_known_names(self._settings)
            require_policy(self._settings)
            record = self._new_record(last, fresh)
            chosen = [part for part in _parts(record) if only is None or part.name in only]
            write_record(self._folder, record)
            try:
                return self._start(record, chosen)
            except BaseException:
                self._on_message("stopping what was started")
                end(record.stack_id, grace_s=0)
                _clean_up(record)
                raise

    def _new_record(self, last: StackRecord | None, fresh: bool) -> StackRecord:
        given = self._settings
        if last is not None:
            _clean_up(last)
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        given.snapshots.mkdir(parents=True, exist_ok=True)
        ensure_key_files(given)
        stack_id = uuid.uuid4().hex
        with port_registry() as registry:
            ports = choose_ports(given, last.ports if last else {}, registry)
            registry.take(stack_id, ports)
        settings = resolve(given, ports)
        return StackRecord(
            stack_id=stack_id,
            settings=settings.model_dump(mode="json", exclude=set(SECRETS), exclude_none=True),
            ports=ports,
            ray_folder=ray_head.temp_dir(stack_id),
            expect_restore=not fresh and has_snapshots(settings),
            ray_address=settings.ray_address,
            temporal_ui=settings.temporal_ui,
        )

    def _start(self, record: StackRecord, chosen: Sequence[Part]) -> StackRecord:
        def on_started(process: RunningProcess) -> None:
            nonlocal record
            record = record.with_(process)
            write_record(self._folder, record)

        start_all(
            chosen,
            stack_id=record.stack_id,
            logs=self._folder / "logs",
            ready_timeout_s=settings_of(record).ready_timeout_s,
            abandoned=self._abandoned,
            on_started=on_started,
            on_message=self._on_message,
        )
        return record

    def let_go(self) -> None:
        """End the wait for processes that another thread starts here; they go on."""
        self._abandoned.set()

    def down(self, *, kill: bool = False) -> int:
        """End every process of the stack and wait until none is left.

        Args:
            kill: SIGKILL at once, to everything: what a crash of the machine is. A
                `turnpoint run` that supervises takes it for one.

        Returns:
            How many processes were ended; 0 if there was nothing to end.

        Raises:
            StackBusy: Another command starts or stops this stack.
            ProcessFailed: A process outlives SIGKILL.
        """
        with self._locked():
            record = self.record()
            if record is None:
                return 0
            if kill:
                ended = end(record.stack_id, grace_s=0)
            else:
                # First, so that a supervisor does not bring back what ends now.
                record = record.model_copy(update={"stopped": True})
                write_record(self._folder, record)
                # Temporal last: it keeps what the others still tell it.
                first = names_left(record.stack_id) - {"temporal"}
                self._on_message(f"stopping {', '.join(sorted(first)) or 'nothing'}")
                ended = end(record.stack_id, names=first, grace_s=GRACE_S)
                ended += end(record.stack_id, grace_s=TEMPORAL_GRACE_S)
            _clean_up(record)
            write_record(self._folder, record.model_copy(update={"processes": []}))
            return ended

    # --- single processes ---------------------------------------------------------------------

    def kill(self, name: str) -> int:
        """SIGKILL one process and all that it started; wait until they are gone.

        Returns:
            How many processes were ended.
        """
        record = self._require_record()
        record.process(name)
        return end(record.stack_id, names={name}, grace_s=0)

    def restart(
        self,
        *names: str,
        missing: bool = False,
        expect_restore: bool | None = None,
        grace_s: float = GRACE_S,
    ) -> StackRecord:
        """End what is left of these processes, start them, and wait until they are ready.

        Args:
            names: Names of the processes.
            missing: Also start all others that should run and do not.
            expect_restore: Whether Gym servers await a restore; None: as at the last start.
            grace_s: How long a SIGTERM may take.

        Raises:
            Stopped: The stack was ended with `turnpoint down`.
            StackBusy: Another command starts or stops this stack.
            ProcessFailed: A process ended or was not ready in time.
        """
        with self._locked():
            record = self._require_record()
            if record.stopped:
                raise Stopped("the stack was ended with `turnpoint down`")
            chosen = {*names, *(self.gone() if missing else ())}
            end(record.stack_id, names=chosen, grace_s=grace_s)
            if expect_restore is not None:
                record = record.model_copy(update={"expect_restore": expect_restore})
            with port_registry() as registry:  # a crash of everything has released them
                registry.take(record.stack_id, record.ports)
            return self._start(record, [part for part in _parts(record) if part.name in chosen])

    def gone(self) -> set[str]:
        """Names of the processes that should run and do not."""
        record = self._require_record()
        lives = {process.name for process in record.processes if process.lives}
        return {part.name for part in _parts(record)} - lives

    def status(self) -> dict[str, bool]:
        """True or False for each process of the record, by name: it runs, or not."""
        record = self._require_record()
        left = names_left(record.stack_id)
        return {process.name: process.name in left for process in record.processes}

    def require_running(self) -> None:
        """Raise `NotRunning` if a stack was started here and none of its processes runs."""
        if self.record() is not None and not any(self.status().values()):
            raise stack_is_down(self._folder)


def settings_of(record: StackRecord) -> Settings:
    """The settings that a stack was started with."""
    return Settings.model_validate(record.settings)


def has_snapshots(settings: Settings) -> bool:
    """True if the job has a published snapshot."""
    return any((settings.snapshots / settings.job_id).glob("snapshot_*"))


def _parts(record: StackRecord) -> list[Part]:
    return parts(
        settings_of(record),
        record.ports,
        ray_folder=record.ray_folder,
        expect_restore=record.expect_restore,
    )


def _clean_up(record: StackRecord) -> None:
    """Remove what a stack that has ended keeps outside its state folder."""
    ray_head.remove_temp_dir(record.ray_folder)
    with port_registry() as registry:
        registry.pop(record.stack_id, None)
