"""The addresses of the documentation's pages, for who has installed headrace and has no checkout of it."""

# The project's address in pyproject.toml, and the branch that its pages are read from; a test compares them.
ADDRESS = "https://github.com/headrace/headrace/blob/main"


def page_address(path: str) -> str:
    """Return where a page is read. `path`: in the repository, such as docs/TABLES.md#vacuum."""
    return f"{ADDRESS}/{path}"
