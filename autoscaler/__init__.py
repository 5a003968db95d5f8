"""The sidecar that makes the executors follow the lag: facts, model, diagnosis, decision, and a simulation of them."""
