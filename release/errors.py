"""Why a release is not made."""


class ReleaseError(Exception):
    """The release is refused, or one of its checks failed. The message says what, where, and what to do."""
