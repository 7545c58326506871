"""The servers that an agent's runs call, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gym.peer import Peer


@dataclass(frozen=True)
class AgentContext:
    """Shared by all runs of an agent server.

    Attributes:
        model: The policy model server.
        resources: Resource servers by name; the first is the environment: it verifies, and has
            every tool that `tools` does not give to another.
        tools: Tool name -> name of the resource server that has it.
        max_steps: Most model calls of a run; None for no limit.
    """

    model: Peer
    resources: Mapping[str, Peer]
    tools: Mapping[str, str] = field(default_factory=dict)
    max_steps: int | None = None

    @property
    def environment(self) -> Peer:
        """The first resource server."""
        return next(iter(self.resources.values()))

    def without_identity(self) -> AgentContext:
        """The same for a run without identity: it sends none, and repeats no call."""
        resources = {name: peer.without_identity() for name, peer in self.resources.items()}
        return replace(self, model=self.model.without_identity(), resources=resources)

    def peer_of(self, tool: str) -> Peer:
        """The resource server that has a tool."""
        name = self.tools.get(tool)
        return self.environment if name is None else self.resources[name]
