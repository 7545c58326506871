"""Sessions of callers without identity: known by their cookie alone, as in NeMo Gym.

Guarantees: they are never exported and stand in no inventory; the newest are kept, without
receipts, so memory stays bounded; a cookie of none of them is an error, never a fresh session. Not
guaranteed: exactly once. Such a call has no request id, so the same call again is another mutation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Any
from uuid import uuid4

from gym.protocol import Identity, IdentityMismatch, SessionLost
from gym.resource.session import Mutation, Session

MOST = 1_024
"""These sessions have no end event; beyond this many the least recently used is evicted."""
_NAME = "anonymous"


class AnonymousSessions:
    """The newest sessions that were made without identity, by session id.

    Args:
        most: Number of sessions that are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._sessions: OrderedDict[str, Session[Any]] = OrderedDict()

    def __contains__(self, cookie: object) -> bool:
        """True if a cookie names one of them."""
        return cookie in self._sessions

    def begin(self, *, seeded: bool) -> Session[Any]:
        """A new session."""
        session: Session[Any] = Session(_NAME, 0)
        session.seeded = seeded
        self._sessions[session.id] = session
        while len(self._sessions) > self._most:
            self._sessions.popitem(last=False)
        return session

    def of(self, cookie: str | None, identified: Collection[str]) -> Session[Any]:
        """The session that a cookie names.

        Args:
            cookie: Session id of the call's cookie, if it has one.
            identified: Ids of the sessions that belong to rollouts.

        Raises:
            IdentityMismatch: It is a rollout's: a call without identity cannot change that.
            SessionLost: There is none, or none any more.
        """
        session = self._sessions.get(cookie or "")
        if session is None:
            if cookie in identified:
                raise IdentityMismatch("the session belongs to a rollout; its headers are missing")
            raise SessionLost("no such session; it was never seeded here, or was lost")
        self._sessions.move_to_end(session.id)
        return session

    def clear(self) -> None:
        """Drop all."""
        self._sessions.clear()


def unrepeatable(incarnation: int, where: str, body_sha256: str) -> Mutation:
    """A mutation with a request id of its own, which no caller knows."""
    identity = Identity(
        incarnation=incarnation, rollout_id=_NAME, attempt=0, request_id=f"{_NAME}/{uuid4().hex}"
    )
    return Mutation(identity, where, body_sha256)
