"""Extending the leases of one checkpoint: the controller's and every server's."""

from __future__ import annotations

import asyncio
import logging

from activities.contract.save import CheckpointRequest
from activities.driving import LEASE_SHARE, Renew
from gym.protocol import DeadlineExceeded, TurnpointError
from rl.controller.client import SingleControllerClient
from rl.nemo_gym.client import NemoGymClient

logger = logging.getLogger(__name__)


def renewal(request: CheckpointRequest) -> Renew:
    """A function that extends the leases of this checkpoint.

    A server that cannot be reached is only logged: if its lease ends, *confirmed held* refuses
    the cut. The controller's answer decides; a late one is only logged too: two thirds of the
    lease are left, and the next renewal asks again.
    """
    controller = SingleControllerClient(request.incarnation)
    servers = NemoGymClient(request.incarnation)

    async def renew(lease_s: float) -> bool:
        timeout_s = lease_s / LEASE_SHARE

        async def of_controller() -> bool:
            try:
                return await controller.renew(request.checkpoint_id, lease_s, timeout_s=timeout_s)
            except DeadlineExceeded as error:
                logger.warning("controller's lease is not extended", extra={"code": error.code})
                return True

        async def of_servers() -> None:
            try:
                await servers.renew(request.checkpoint_id, lease_s, timeout_s=timeout_s)
            except TurnpointError as error:
                logger.warning("servers' leases are not extended", extra={"code": error.code})

        held, _ = await asyncio.gather(of_controller(), of_servers())
        return held

    return renew
