"""A simulated world in which policies can be compared before one is let loose: traces, world, rivals, scores."""
