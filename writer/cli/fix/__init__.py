"""Commands that mend what a table holds: dead letters, rows."""
