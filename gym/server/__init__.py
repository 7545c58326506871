"""The HTTP application that all kinds of Gym servers share.

Begin with `gym.server.app`, then `gym.server.control_routes` (the routes of the control protocol)
and `gym.server.answers` (how errors are answered).
"""
