"""Tests of the RL side. Ray reads this setting when it is imported, so it comes first."""

import os

# Without it Ray replaces 127.0.0.1 by the machine's own address, and listens there.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
