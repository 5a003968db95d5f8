"""The driver's executors: how many there are, how many are wanted, and how they come and go."""
