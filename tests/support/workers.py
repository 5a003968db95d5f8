"""How many processes run tests at once."""

GIB = 2**30
# A broker, a registry, a JVM of Spark and a driver with its workers take this much at most.
BYTES_OF_ONE = 5 * GIB // 2


def count_waiting(cores: int, memory_bytes: int) -> int:
    """Return how many workers run tests that wait for servers half of their time: two for each core.

    Three keep 1.4 of two cores busy. Five keep both busy, and each test takes a quarter more of a core's time. At least
    two, whatever the machine is.
    """
    return max(2, min(2 * cores, memory_bytes // BYTES_OF_ONE))
