"""The HTTP application that all three kinds of Gym servers share."""
