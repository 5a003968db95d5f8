"""Text for a terminal: tables, the status screen, shared command-line options."""
