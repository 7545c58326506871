"""Checks of a twin run on real processes: rows that must be equal, events that must not occur."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from activities.contract import RestoreResult
from gym.protocol import Kind
from tests.real.live import Live, until
from tests.twin.mishaps import FAILING
from tests.twin.mixed_rows import require_complete, wrongly_over
from tests.twin.real.crashes import Crashes, lines_of
from tests.twin.rows import differences, repeated, sent_too_often
from workers.stack.processes import alive

CLAIM_LIMIT_S = 60.0


class Oracle:
    """Checks one twin run.

    Args:
        live: The stack.
        crashes: Gives the logs of its servers.
        differs: Called with one sentence for each violation.
    """

    def __init__(self, live: Live, crashes: Crashes, differs: Callable[[str], None]) -> None:
        self._live = live
        self._crashes = crashes
        self._differs = differs
        self._undisturbed: dict[str, dict[str, Any]] = {}
        self._begun_at: dict[str, int] = {}
        """The run that each unfinished rollout was at after the last restore."""
        self._restores = 0
        self._failed: Counter[str] = Counter()
        """Failed runs of this job before the last crash, by rollout."""
        self._claimed = 0
        """Rows that a consumer has claimed since the last crash."""
        self._claiming: asyncio.Task[int | None] | None = None
        self._started_over = 0
        self._claims = 0
        """Lines in the consumer's log."""

    async def measure(self, prompts: int) -> None:
        """Keep the rows of the undisturbed job."""
        self._undisturbed = await asyncio.to_thread(self._live.rows)
        require_complete(self._undisturbed, prompts)

    def begins(self) -> None:
        """Tell that a job has started at its first prompt."""
        self._begun_at, self._failed = {}, Counter()
        self._restores, self._claimed, self._started_over = 0, 0, 0

    def restored(self, result: RestoreResult) -> None:
        """Tell that a restore has ended."""
        self._restores += 1
        self._claimed = 0  # every claim is reset
        for skipped in result.skipped:
            self._differs(f"a restore has skipped a snapshot: {skipped}")
        self._begun_at = {one.rollout_id: one.attempt_index for one in result.continued}
        over = [one for one in result.continued if one.restarted_because is not None]
        self._started_over = len(over)
        for rollout in over:
            wrong = wrongly_over(rollout.rollout_id, rollout.restarted_because)
            if wrong is not None:
                self._differs(wrong)

    def meanwhile(self) -> Counter[str]:
        """Count what else was under way at the crash that has just happened."""
        said = [line["state"] for line in self._crashes.logged(Kind.AGENT, "acknowledge")]
        return Counter(
            {
                "crashes with an acknowledgement in flight": int(
                    said.count("begin") > said.count("end")
                ),
                "crashes with claimed rows": int(self._claimed > 0),
                "crashes after a failed run": int(bool(self._failed_now())),
                "crashes after rollouts that started over": int(self._started_over > 0),
            }
        )

    async def crashed(self) -> None:
        """Tell of a crash: it ended the consumer, too, and its claims are void."""
        self._failed += self._failed_now()
        await self.aclose()
        self._claimed = 0

    # --- the consumer ---------------------------------------------------------------------------

    def claim(self) -> None:
        """Claim what is ready, in the background, once."""
        if self._claiming is None or self._claiming.done():
            self._claiming = asyncio.create_task(self._claim())

    async def aclose(self) -> None:
        """End the consumer."""
        claiming, self._claiming = self._claiming, None
        if claiming is not None:
            claiming.cancel()
            await asyncio.wait({claiming})

    async def _claim(self) -> int | None:
        """The number of rows that a consumer got; None: it ended with the job."""
        name = "consumer"
        log = self._crashes.log(name)
        process = self._crashes.spawn(name, "tests.twin.real.consumer")

        async def has_ended() -> bool:
            return not alive(process)

        try:
            await until(has_ended, "the consumer", CLAIM_LIMIT_S)
        finally:
            await self._crashes.kill(name)
        said = lines_of(log, "claimed")
        if len(said) <= self._claims:
            return None
        self._claims, claimed = len(said), int(said[-1]["rows"])
        self._claimed += claimed
        return claimed

    # --- the end of a job -------------------------------------------------------------------------

    async def compare(self) -> None:
        """Compare a job that has ended with the undisturbed one."""
        if self._claiming is not None:
            await self._claiming
        before = self._claimed
        rows, rest = await asyncio.gather(asyncio.to_thread(self._live.rows), self._claim())
        for sentence in differences(self._undisturbed, rows):
            self._differs(sentence)
        if rest is None or before + rest != len(rows):
            self._differs(f"a consumer got {before} and {rest} of {len(rows)} rows")
        # For a rollout that was finished at the last restore only an upper bound is known.
        most = {name: self._restores + self._failed[name] for name in rows}
        begun_at = most | self._begun_at
        runs = {name: row["tag"]["attempt_index"] for name, row in rows.items()}
        for sentence in sent_too_often(runs, begun_at, self._failed_now()):
            self._differs(sentence)
        log = self._crashes.log(Kind.RESOURCE.value)
        lines = [line for line in lines_of(log, "control") if line["operation"] == "join"]
        lines += lines_of(log, "mutation")
        for sentence in repeated(sorted(lines, key=lambda line: float(line["ts"]))):
            self._differs(sentence)

    def _failed_now(self) -> Counter[str]:
        lines = self._crashes.logged(Kind.AGENT, "mishap")
        lines += self._crashes.logged(Kind.RESOURCE, "mishap")
        return Counter(line["rollout_id"] for line in lines if line["mishap"] in FAILING)
