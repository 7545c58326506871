"""Resource servers: sessions of an environment, with mutations that take effect once."""
