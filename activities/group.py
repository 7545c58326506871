"""The base of the activity classes: the job that they serve, and what keeps a try alive."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from temporalio.client import Client

from activities.contract import JobRequest
from activities.contract.save import CheckpointRequest
from activities.driving import PhaseClock, driving
from activities.leases import renewal
from rl.config import JobConfig
from rl.errors import OtherJob


class ActivityGroup:
    """Activities of one worker.

    Args:
        client: Temporal, for the proof that a try is still waited for.
        config: The job that the worker serves.
    """

    def __init__(self, client: Client, config: JobConfig) -> None:
        self._client = client
        self._config = config

    def _driving(self, request: JobRequest) -> AbstractAsyncContextManager[PhaseClock]:
        """Keep the try of this request alive, and in the pause of a save the leases too.

        Raises:
            OtherJob: The request names another job than the worker's; nothing was touched.
        """
        if request.job_id != self._config.job_id:
            raise OtherJob(
                f"this worker serves job {self._config.job_id!r}, not {request.job_id!r}"
            )
        if isinstance(request, CheckpointRequest):
            return driving(
                self._client, request.deadline, lease_s=request.lease_s, renew=renewal(request)
            )
        return driving(self._client)
