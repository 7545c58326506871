"""The Gym side: the control protocol, its client, and the three kinds of servers.

Nothing here imports Ray or Temporal (design section 3, rooms).
"""
