"""Public face for environment authors: write an `Environment`, call `serve_environment`.

`gym.resource.environment` shows a whole environment. What is served and saved is in
`gym.resource.server`, `gym.resource.part` and `gym.resource.session`.
"""

from gym.formats.gymnasium import ResetAnswer, StepAnswer, StepInfo, ToolOutput
from gym.formats.responses import text_of
from gym.http import http_client
from gym.peer import Peer
from gym.protocol.records import BaseUrl
from gym.resource.environment import (
    Environment,
    inner_identity,
    parse,
    tool,
)
from gym.resource.gymnasium_environment import GymnasiumEnvironment
from gym.resource.server import environment_app, serve_environment
from gym.resource.session import Refused, Session
from gym.server.settings import ServerSettings

__all__ = [
    "BaseUrl",
    "Environment",
    "GymnasiumEnvironment",
    "Peer",
    "Refused",
    "ResetAnswer",
    "ServerSettings",
    "Session",
    "StepAnswer",
    "StepInfo",
    "ToolOutput",
    "environment_app",
    "http_client",
    "inner_identity",
    "parse",
    "serve_environment",
    "text_of",
    "tool",
]
