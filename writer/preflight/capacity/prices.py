"""What requests and bytes cost by a person's own prices. headrace comes with none."""

from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import Field, ValidationError

from headrace.writer.config.base import Strict
from headrace.writer.config.faults import describe_faults
from headrace.writer.core.errors import ConfigError

_TB = 10**12
_GB_PER_TB = 1_000
_MONTH_DAYS = 30
# The lines of which the sum over pipelines means something.
PRICED = ("requests a day", "requests cost a day", "a month's data, each month")
PRICE_ASSUMPTIONS = (
    "Dollars by your prices: all requests and bytes go to one store, checkpoints too; uploads count as those to the "
    "table's store, and to S3 for a path; a GB is 10^9 bytes; deletes and traffic are free. Queries, compaction, "
    "retries, and what a driver asks between commits are not in it."
)
_FORM = "Write numbers, such as: storage_gb_month: 0.02, put_list_per_1000: 0.01, get_per_1000: 0.001."


class Prices(Strict):
    """Prices of an object store, in dollars."""

    storage_gb_month: float = Field(
        strict=True, ge=0, allow_inf_nan=False, description="of a GB (10^9 bytes) that is stored for a month"
    )
    put_list_per_1000: float = Field(
        strict=True, ge=0, allow_inf_nan=False, description="of 1,000 requests that write, copy or list"
    )
    get_per_1000: float = Field(
        strict=True, ge=0, allow_inf_nan=False, description="of 1,000 requests that read or look"
    )


def read_prices(path: Path) -> Prices:
    """Read a file of prices. Raises ConfigError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--prices {path} cannot be read: {error.strerror}. Give the path of a file of prices."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prices {path} is no YAML. {_FORM}") from error
    try:
        return Prices.model_validate(document)
    except ValidationError as error:
        faults = "\n".join(describe_faults(error, document))
        raise ConfigError(f"--prices {path} is no list of prices:\n{faults}\n{_FORM}") from error


def request_dollars(writes: float, reads: float, prices: Prices) -> float:
    """Return what requests cost, in dollars. `writes`: those that write, copy or list; `reads`: that read or look."""
    return (writes * prices.put_list_per_1000 + reads * prices.get_per_1000) / 1_000


def price_steps(
    writes_a_day: float, reads_a_day: float, bytes_a_day: float, prices: Prices
) -> Iterator[tuple[str, float, str, str]]:
    """Yield lines of sizing: name, value, unit, derivation. All requests are priced as ones to one store."""
    terabytes = bytes_a_day / _TB
    yield ("requests a day", writes_a_day + reads_a_day, "", f"{writes_a_day:,.0f} writes + {reads_a_day:,.0f} reads")
    put = prices.put_list_per_1000
    get = prices.get_per_1000
    dollars = request_dollars(writes_a_day, reads_a_day, prices)
    how = f"{writes_a_day:,.0f} ÷ 1,000 x {put:g} + {reads_a_day:,.0f} ÷ 1,000 x {get:g}"
    yield ("requests cost a day", dollars, "dollars", how)
    yield ("a TB written", dollars / terabytes, "dollars", f"÷ {terabytes:,.3g} TB a day, for its requests")
    stored = _GB_PER_TB * prices.storage_gb_month
    yield ("a TB stored for a month", stored, "dollars", f"1,000 GB x {prices.storage_gb_month:g}")
    how = f"{_MONTH_DAYS} days x {terabytes:,.3g} TB x {stored:g}, if nothing is deleted"
    yield ("a month's data, each month", _MONTH_DAYS * terabytes * stored, "dollars", how)
