"""How a catalog is asked: its clients, what they raise, and what is tried again."""
