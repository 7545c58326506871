"""The HTTP application that all kinds of Gym servers share.

Begin with `gym.server.control_routes`: the routes of the control protocol, and how errors are
answered.
"""
