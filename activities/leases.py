"""Extending the leases of one checkpoint: the controller's and every server's."""

from __future__ import annotations

import asyncio
import logging

from activities.contract import CheckpointRequest
from activities.driving import Renew
from gym.protocol import TurnpointError
from rl.actors import call
from rl.messages import NEMO_GYM, SINGLE_CONTROLLER

logger = logging.getLogger(__name__)


def renewal(request: CheckpointRequest) -> Renew:
    """How the leases of this checkpoint are extended.

    A server that cannot be reached is only logged: if its lease ends, *confirmed held* refuses
    the cut. The controller's answer decides.
    """
    arguments = (request.incarnation, request.checkpoint_id)

    async def renew(lease_s: float) -> bool:
        limit_s = lease_s / 3

        async def of_servers() -> None:
            try:
                await call(NEMO_GYM, "renew", *arguments, lease_s, limit_s=limit_s)
            except TurnpointError as error:
                logger.warning("servers' leases not extended", extra={"code": error.code})

        held, _ = await asyncio.gather(
            call(SINGLE_CONTROLLER, "renew", *arguments, lease_s, limit_s=limit_s), of_servers()
        )
        return bool(held)

    return renew
