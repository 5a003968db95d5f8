"""Shows what becomes of a sample of records, and which tables of a route get them."""
