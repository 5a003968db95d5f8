"""Classifies failures and decides the recovery level: pure functions of facts, a policy and the time."""
