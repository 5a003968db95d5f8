"""The driver's page for browsers: one file, without a build or external requests.

It asks this server for `/status` and `/buckets`, and writes what it is told as text, never as markup. The policy lets
the browser run the one script and the one style that stand in the file, by their hashes, and talk to no other server.
"""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

CONTENT_TYPE = "text/html; charset=utf-8"
_FILE = "page.html"


@cache
def content() -> bytes:
    """Return the page."""
    return files("headrace.writer.web").joinpath(_FILE).read_bytes()


def policy(page: str) -> str:
    """Write the Content-Security-Policy for a page with these inline parts."""

    def hashes(tag: str) -> str:
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
        return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
