"""Requests to object stores: how many were sent, and how fast they may go."""
