"""The sidecar that makes the executors follow the lag. Rooms come with it: facts, decide, act, loop."""
