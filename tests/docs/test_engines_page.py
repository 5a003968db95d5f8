"""What docs/ENGINES.md must say: each limit that the tests of the engines rely on."""

from pathlib import Path

from tests.engines.limits import LIMITS

PAGE = Path(__file__).parents[2] / "docs" / "ENGINES.md"


def test_every_limit_of_an_engine_is_a_row_of_the_page():
    rows = [" ".join(line.split()) for line in PAGE.read_text().splitlines() if line.startswith("|")]
    missing = [
        limit
        for limit in LIMITS
        if not any(limit.said in row and row.lower().startswith(f"| {limit.engine}") for row in rows)
    ]
    assert missing == []
