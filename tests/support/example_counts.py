"""How many examples a property test tries: a share of the profile's, `pytest --hypothesis-profile check|long`."""

from hypothesis import settings


def share(percent: int) -> int:
    """Return so many percent of the profile's examples."""
    return max(1, settings.default.max_examples * percent // 100)
