"""Migration of a table: from another client (adopt), to another format (convert), to a shadow (promote)."""
