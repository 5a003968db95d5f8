"""What a JSON Web Token says of itself. Nothing is verified here: brokers do. Source: RFC 7519."""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any


def read_claims(token: str) -> Mapping[str, Any]:
    """Return the claims of a token; none where it is no JWT."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    # What is nested deeply is a RecursionError.
    except (LookupError, ValueError, RecursionError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


def read_time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time among the claims, in seconds since the epoch; None where there is none."""
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        time_s = float(value)
    except OverflowError:
        return None
    return time_s if math.isfinite(time_s) else None
