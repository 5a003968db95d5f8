"""Dead letters: selected, listed and decoded for a person, and replayed into the table."""
