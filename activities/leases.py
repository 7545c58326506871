"""Extending the leases of one checkpoint: the controller's and every server's."""

from __future__ import annotations

import asyncio
import logging

from activities.contract.save import CheckpointRequest
from activities.driving import LEASE_SHARE, Renew
from gym.protocol import DeadlineExceeded, TurnpointError
from rl.actors import call
from rl.messages import NEMO_GYM, SINGLE_CONTROLLER

logger = logging.getLogger(__name__)


def renewal(request: CheckpointRequest) -> Renew:
    """How the leases of this checkpoint are extended.

    A server that cannot be reached is only logged: if its lease ends, *confirmed held* refuses
    the cut. The controller's answer decides; one that comes late proves nothing, and is only
    logged too: two thirds of the lease are left, and the next renewal asks again.
    """
    arguments = (request.incarnation, request.checkpoint_id)

    async def renew(lease_s: float) -> bool:
        limit_s = lease_s / LEASE_SHARE

        async def of_controller() -> bool:
            try:
                return bool(
                    await call(SINGLE_CONTROLLER, "renew", *arguments, lease_s, limit_s=limit_s)
                )
            except DeadlineExceeded as error:
                logger.warning(
                    "controller's lease not extended in time", extra={"code": error.code}
                )
                return True

        async def of_servers() -> None:
            try:
                await call(NEMO_GYM, "renew", *arguments, lease_s, limit_s=limit_s)
            except TurnpointError as error:
                logger.warning("servers' leases not extended", extra={"code": error.code})

        held, _ = await asyncio.gather(of_controller(), of_servers())
        return held

    return renew
