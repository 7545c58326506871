"""The command line `turnpoint`."""
