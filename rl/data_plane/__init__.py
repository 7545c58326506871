"""TransferQueue: its host, its rows and how they are reached."""
