"""Deletion of rows by key: from the table, its late rows, its dead letters and its raw records."""
