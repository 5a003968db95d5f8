"""Migration of a table: to another format (convert), and to a shadow that takes its place (promote)."""
