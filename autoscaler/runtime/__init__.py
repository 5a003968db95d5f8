"""Runs the autoscaler beside a driver: collects facts, decides, keeps its state, requests executors."""
