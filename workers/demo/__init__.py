"""`make demo`: save, kill everything, restore, go on; and its report."""
