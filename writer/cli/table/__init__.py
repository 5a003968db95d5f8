"""Commands that change the format of a table."""
