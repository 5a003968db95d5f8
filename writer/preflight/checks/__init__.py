"""Checks of `validate`, which a start makes too: servers, this machine, tables, a sample of the records."""
