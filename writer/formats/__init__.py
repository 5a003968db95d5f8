"""The door of value formats: one adapter for each, by which schemas become records and values become rows."""
