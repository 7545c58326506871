"""Resource servers that Turnpoint brings along."""
