"""Entries made of the newest version, without an id: starts, successions, settings; functions of the appender.

A function appends one entry and returns its version, if its docstring says nothing else. It raises ForeignChange where
another client did what the ledger does not survive, CommitFailed where the storage refused, or gave no answer, for as
long as was tried.
"""
