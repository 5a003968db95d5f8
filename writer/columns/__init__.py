"""The columns of a table: which schemas fill them, how they grow, and how values are cast to them."""
