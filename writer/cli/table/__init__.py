"""Commands that change what a table is."""
