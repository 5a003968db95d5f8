"""Query engines that the bench starts: Trino, as its own process on loopback."""
