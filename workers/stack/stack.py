"""Starts, watches and ends everything that a job needs on one machine.

`up` starts the processes of `workers.stack.process_specs`, each in a session of its own with its
log in `<state_dir>/logs/<name>.log`, waits until they are ready and writes
`<state_dir>/stack.json`. `down` ends all of them and nothing else (`workers.stack.processes`).

Guarantees: when `up` fails, everything it started is stopped; after any crash, a SIGKILL of
everything included, `up` works again in the same state folder, with the same ports while they
are free. Two commands never start or stop one stack at the same time.
"""

from __future__ import annotations

import fcntl
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from pydantic import ValidationError

from workers.config.key_files import ensure_key_files
from workers.config.settings import SECRETS, STACK_FILE, Settings
from workers.errors import (
    ProcessFailed,
    Refused,
    SettingsError,
    StackBusy,
    Stopped,
    no_stack,
    stack_is_down,
)
from workers.stack import ray_head
from workers.stack.policy import demand_policy
from workers.stack.port_registry import port_registry
from workers.stack.ports import choose
from workers.stack.process_specs import (
    Part,
    child_environment,
    demand_known_names,
    fixed_ports,
    parts,
    port_keys,
    ports_needed,
    resolve,
)
from workers.stack.processes import alive, end, log_tail, names_left, spawn
from workers.stack.record import RunningProcess, StackRecord

GRACE_S = 5.0
"""For a SIGTERM. Ray's head does not end by one within 10 s (measured), so longer buys nothing."""
TEMPORAL_GRACE_S = 10.0
"""Temporal exits 1.5 s after SIGTERM; its SQLite file deserves the wait."""
_POLL_S = 0.1

Report = Callable[[str], None]


class Stack:
    """The local stack of one state folder.

    Args:
        settings: Configuration; `state_dir` says which stack it is.
        report: Told one line for each step, for a terminal.
    """

    def __init__(self, settings: Settings, report: Report = lambda line: None) -> None:
        """Look at nothing yet."""
        self._settings = settings
        self._folder = settings.state_dir
        self._report = report
        self._let_go = threading.Event()

    # --- the record ---------------------------------------------------------------------------

    def record(self) -> StackRecord | None:
        """What the last `up` wrote; None if there was none."""
        try:
            return StackRecord.model_validate_json((self._folder / STACK_FILE).read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise SettingsError(
                f"{self._folder / STACK_FILE} cannot be read as a stack's record; remove it, and "
                "`turnpoint up` makes one"
            ) from None

    def _need_record(self) -> StackRecord:
        record = self.record()
        if record is None:
            raise no_stack(self._folder)
        return record

    def _write(self, record: StackRecord) -> None:
        trial = self._folder / f".{STACK_FILE}-{uuid.uuid4().hex}"
        trial.write_text(record.model_dump_json(indent=2))
        trial.rename(self._folder / STACK_FILE)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "stack.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StackBusy(
                    f"another command starts or stops the stack in {self._folder}; wait for it"
                ) from None
            yield

    # --- up and down --------------------------------------------------------------------------

    def up(self, *, fresh: bool = False, only: set[str] | None = None) -> StackRecord:
        """Start everything and wait until it is ready.

        Args:
            fresh: Start the Gym servers for a new line even if the job has snapshots.
            only: Names of the parts to start; all by default.

        Raises:
            Refused: Processes of this stack are running.
            PortInUse: A fixed port is held by somebody else.
            SettingsError: `ports` or `options` name a process that there is not.
            NotRunning, SettingsError: The policy is given as a URL, and is not there.
            ProcessFailed: A process ended or was not ready in time. Everything is stopped.
        """
        with self._alone():
            last = self.record()
            if last is not None and (left := names_left(last.stack_id)):
                raise Refused(
                    f"this stack is up ({', '.join(sorted(left))}); end it with `turnpoint down`"
                )
            demand_known_names(self._settings)
            demand_policy(self._settings)
            record, settings = self._decide(last, fresh)
            chosen = [
                part for part in self._parts(record, settings) if only is None or part.name in only
            ]
            self._write(record)
            try:
                return self._start_all(record, settings, chosen)
            except BaseException:
                self._report("stopping what was started")
                end(record.stack_id, grace_s=0)
                _leave_nothing(record)
                raise

    def _decide(self, last: StackRecord | None, fresh: bool) -> tuple[StackRecord, Settings]:
        given = self._settings
        if last is not None:
            _leave_nothing(last)
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        given.snapshots.mkdir(parents=True, exist_ok=True)
        ensure_key_files(given)
        stack_id = uuid.uuid4().hex
        with port_registry() as registry:
            ports = choose(
                ports_needed(given),
                fixed=fixed_ports(given),
                keys=port_keys(given),
                kept=last.ports if last else {},
                base=given.port_base,
                others=registry.taken,
            )
            registry.take(stack_id, list(ports.values()))
        settings = resolve(given, ports)
        record = StackRecord(
            stack_id=stack_id,
            settings=settings.model_dump(mode="json", exclude=set(SECRETS), exclude_none=True),
            ports=ports,
            ray_folder=ray_head.temp_dir(stack_id),
            expect_restore=not fresh and has_snapshots(settings),
            ray_address=settings.ray_address,
            temporal_ui=settings.temporal_ui,
        )
        return record, settings

    def let_go(self) -> None:
        """Wait no longer for what another thread starts here: it gets ready by itself, or not."""
        self._let_go.set()

    def _start_all(
        self, record: StackRecord, settings: Settings, chosen: list[Part]
    ) -> StackRecord:
        names = {part.name for part in chosen}
        waiting, ready = list(chosen), set[str]()
        started: dict[str, _Started] = {}
        while len(ready) < len(chosen):
            for part in [part for part in waiting if part.after & names <= ready]:
                waiting.remove(part)
                started[part.name] = self._spawn(record, settings, part)
                record = record.with_(started[part.name].running)
                self._write(record)
            for name in [name for name in started if name not in ready]:
                if started[name].check(settings.ready_timeout_s):
                    ready.add(name)
                    self._report(
                        f"{name} is ready after {started[name].age_s():.1f} s "
                        f"({len(ready)} of {len(chosen)})"
                    )
            if self._let_go.is_set():
                break
            time.sleep(_POLL_S)
        return record

    def _spawn(self, record: StackRecord, settings: Settings, part: Part) -> _Started:
        log = self._folder / "logs" / f"{part.name}.log"
        seen = log.stat().st_size if log.exists() else 0
        try:
            process = spawn(
                part.name,
                part.command,
                stack_id=record.stack_id,
                env={**child_environment(settings), **part.env},
                folder=part.folder or self._folder,
                log=log,
            )
        except OSError as error:
            raise ProcessFailed(
                f"{part.name} cannot be started: {error.strerror}: {error.filename}. Next: correct "
                "the server's `command` or `folder` in turnpoint.toml, then `turnpoint down` and "
                "`turnpoint up`"
            ) from None
        return _Started(part, process, log, seen)

    def down(self, *, kill: bool = False) -> int:
        """End every process of the stack and wait until none is left.

        Args:
            kill: SIGKILL at once, to everything: what a crash of the machine is. A
                `turnpoint run` that supervises takes it for one.

        Returns:
            How many processes were ended; 0 if there was nothing to end.
        """
        with self._alone():
            record = self.record()
            if record is None:
                return 0
            if kill:
                ended = end(record.stack_id, grace_s=0)
            else:
                # First, so that a supervisor does not bring back what ends now.
                record = record.model_copy(update={"stopped": True})
                self._write(record)
                # Temporal last: it keeps what the others still tell it.
                first = names_left(record.stack_id) - {"temporal"}
                self._report(f"stopping {', '.join(sorted(first)) or 'nothing'}")
                ended = end(record.stack_id, names=first, grace_s=GRACE_S)
                ended += end(record.stack_id, grace_s=TEMPORAL_GRACE_S)
            _leave_nothing(record)
            self._write(record.model_copy(update={"processes": []}))
            return ended

    # --- one process --------------------------------------------------------------------------

    def kill(self, name: str) -> int:
        """SIGKILL one process and all that it started; wait until they are gone.

        Returns:
            How many processes were ended.
        """
        record = self._need_record()
        record.process(name)
        return end(record.stack_id, names={name}, grace_s=0)

    def start(self, *names: str, expect_restore: bool | None = None) -> StackRecord:
        """Start processes again that have ended, and wait until they are ready.

        Args:
            names: Which.
            expect_restore: Whether Gym servers await a restore; None: as at the last start.

        Raises:
            Refused: One of them still runs.
            ProcessFailed: One ended or was not ready in time.
        """
        with self._alone():
            record = self._need_record()
            if running := names_left(record.stack_id) & set(names):
                raise Refused(f"{', '.join(sorted(running))}: still running")
            return self._start_again(record, names, expect_restore)

    def restart(
        self,
        *names: str,
        missing: bool = False,
        expect_restore: bool | None = None,
        grace_s: float = GRACE_S,
    ) -> StackRecord:
        """End what is left of these processes, start them, and wait until they are ready.

        Args:
            names: Which.
            missing: And all that should run and do not.
            expect_restore: As in `start`.
            grace_s: How long a SIGTERM may take.

        Raises:
            Stopped: The stack was ended with `turnpoint down`.
            ProcessFailed: One ended or was not ready in time.
        """
        with self._alone():
            record = self._need_record()
            if record.stopped:
                raise Stopped("the stack was ended with `turnpoint down`")
            chosen = {*names, *(self.gone() if missing else ())}
            end(record.stack_id, names=chosen, grace_s=grace_s)
            return self._start_again(record, chosen, expect_restore)

    def _start_again(
        self, record: StackRecord, names: Collection[str], expect_restore: bool | None
    ) -> StackRecord:
        if expect_restore is not None:
            record = record.model_copy(update={"expect_restore": expect_restore})
        settings = settings_of(record)
        with port_registry() as registry:  # a crash of everything has released them
            registry.release(record.stack_id)
            registry.take(record.stack_id, list(record.ports.values()))
        chosen = [part for part in self._parts(record, settings) if part.name in names]
        return self._start_all(record, settings, chosen)

    def gone(self) -> set[str]:
        """Names of the processes that should run and do not."""
        record = self._need_record()
        lives = {process.name for process in record.processes if process.lives}
        return {part.name for part in self._parts(record, settings_of(record))} - lives

    def status(self) -> dict[str, bool]:
        """Whether each process of the record runs, by name."""
        record = self._need_record()
        left = names_left(record.stack_id)
        return {process.name: process.name in left for process in record.processes}

    def refuse_if_down(self) -> None:
        """Raise `NotRunning` if a stack was started here and none of its processes runs."""
        if self.record() is not None and not any(self.status().values()):
            raise stack_is_down(self._folder)

    def _parts(self, record: StackRecord, settings: Settings) -> list[Part]:
        return parts(
            settings,
            record.ports,
            ray_folder=record.ray_folder,
            expect_restore=record.expect_restore,
        )


class _Started:
    """A process between its start and its being ready."""

    def __init__(self, part: Part, process: psutil.Process, log: Path, seen: int) -> None:
        self._part, self._process, self._log, self._seen = part, process, log, seen
        self._since = time.monotonic()
        self.running = RunningProcess(
            name=part.name,
            pid=process.pid,
            create_time=process.create_time(),
            log=log,
            url=part.url,
        )

    def age_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._since

    def check(self, limit_s: float) -> bool:
        """Whether it is ready.

        Raises:
            ProcessFailed: It has ended, or its time is over.
        """
        with self._log.open("rb") as file:
            file.seek(self._seen)
            output = file.read()
        if not alive(self._process):
            raise self._failed("has ended")
        if self._part.is_ready(output):
            return True
        if self.age_s() > limit_s:
            raise self._failed(f"is not ready after {limit_s:.0f} s (ready_timeout_s)")
        return False

    def _failed(self, what: str) -> ProcessFailed:
        return ProcessFailed(
            f"{self._part.name} {what}. The last lines of its log:\n{log_tail(self._log)}\n"
            f"Next: `turnpoint logs {self._part.name}` shows all of it"
        )


def _leave_nothing(record: StackRecord) -> None:
    """Remove what a stack that has ended keeps outside its state folder."""
    ray_head.remove_temp_dir(record.ray_folder)
    with port_registry() as registry:
        registry.release(record.stack_id)


def settings_of(record: StackRecord) -> Settings:
    """The settings that a stack was started with."""
    return Settings.model_validate(record.settings)


def has_snapshots(settings: Settings) -> bool:
    """Whether the job has a published snapshot."""
    return any((settings.snapshots / settings.job_id).glob("snapshot_*"))
