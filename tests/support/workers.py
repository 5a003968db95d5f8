"""How many processes run tests at once."""

GIB = 2**30
# A broker, a registry, a JVM of Spark and a driver with its workers take this much at most.
BYTES_OF_ONE = 5 * GIB // 2


def count_waiting(cores: int, memory_bytes: int) -> int:
    """Return how many workers keep the cores busy with tests that wait for servers most of their time.

    Such a test uses 0.4 of a core. At least two, whatever the machine is.
    """
    return max(2, min(5 * cores // 2, memory_bytes // BYTES_OF_ONE))
