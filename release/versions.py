"""Which versions a release may have, and how the chart writes them."""

from packaging.version import InvalidVersion, Version

from release.errors import ReleaseError

_FORM = "A release is X.Y.Z, or a candidate of it: X.Y.ZaN, X.Y.ZbN or X.Y.ZrcN"
_NUMBERS = 3


def parse_version(text: str) -> Version:
    """Return the version of a release. Raises ReleaseError for one that PEP 440 or the chart cannot say."""
    try:
        version = Version(text)
    except InvalidVersion:
        raise ReleaseError(f"{text!r} is no version by PEP 440. {_FORM}.") from None
    if str(version) != text:
        raise ReleaseError(f"PEP 440 writes {text} as {version}. Say VERSION={version}.")
    unwanted = {
        "an epoch": version.epoch,
        "a post-release": version.is_postrelease,
        "a development release": version.is_devrelease,
        "a local part": version.local,
        f"{len(version.release)} numbers": len(version.release) != _NUMBERS,
    }
    if parts := [part for part, is_there in unwanted.items() if is_there]:
        raise ReleaseError(
            f"{text} has {' and '.join(parts)}, which a chart's version cannot say in the same order. {_FORM}."
        )
    return version


def chart_version(version: Version) -> str:
    """Return the version as Semantic Versioning writes it. Versions of releases keep their order.

    https://semver.org: 1.0.0rc1 becomes 1.0.0-rc.1, and a, b and rc come in this order by their letters.
    """
    numbers = ".".join(map(str, version.release))
    if version.pre is None:
        return numbers
    letters, number = version.pre
    return f"{numbers}-{letters}.{number}"


def tag_name(version: Version) -> str:
    """Return the name of the tag in git."""
    return f"v{version}"
