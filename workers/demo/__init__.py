"""`make demo`: the whole story, and its report."""
