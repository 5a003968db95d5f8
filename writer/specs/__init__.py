"""Event specs: which records of a type become rows, and with which columns. Pure: Arrow in, Arrow out."""
