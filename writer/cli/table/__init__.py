"""Commands about a second form of a table: another format, a shadow, and what differs."""
