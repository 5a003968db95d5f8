"""How fast the requests to one table may go: a token bucket whose rate falls when the store throttles. Pure.

Without a limit of the configuration requests go as they come. Once the store answers 429 or 503, half as many as before
may go, and each further second of such answers halves the rate again. A second after the last of them it grows, by the
same amount each second (additive increase, multiplicative decrease: Chiu and Jain, 1989), to the limit of the
configuration, or to what went before the first of them: then all may go again.
"""

from dataclasses import dataclass, replace

# Answers that come sooner after one that slowed the requests down were mostly on their way by then.
HOLD_S = 1.0
# In so many seconds without a further such answer the rate is back where it was.
GROWTH_S = 10.0
# Requests per second that always go: by them is seen that the store answers again.
RATE_MIN = 2.0
# So much of a second's requests may go at once.
BURST_S = 0.1
# A token, but for what floats lose.
_WHOLE = 1 - 1e-6
# Uploads that are charged afterwards hold up other requests for so long at most.
DEBT_S_MAX = 5.0


@dataclass(frozen=True)
class Pace:
    """The state of a token bucket. All times are seconds of one clock that never goes back."""

    # Requests per second of the configuration; None: there is no limit.
    limit: float | None
    # Requests per second that may go now; None: all.
    rate: float | None
    # Where the rate grows to. With a limit it is the limit.
    goal: float
    # Requests that may go at once; below zero: so many were charged in advance.
    tokens: float
    # When the tokens were counted.
    at: float
    # When the rate was halved last, and when the store throttled last; None: not since all requests may go.
    slowed_at: float | None = None
    throttled_at: float | None = None
    # Requests of the second that began at `window_at`, and of the one before it.
    window_at: float = 0.0
    in_window: int = 0
    before_window: int = 0

    @property
    def is_slowed(self) -> bool:
        """Whether fewer requests may go than without the store's answers."""
        return self.rate is not None and self.rate < self.goal


def begin(limit: float | None, now: float) -> Pace:
    """Return the pace of a store that was not asked yet. Raises ValueError for a limit that lets nothing go."""
    if limit is not None and limit <= 0:
        raise ValueError(f"a limit of requests per second must be positive, got {limit:g}")
    return Pace(limit, limit, limit or 0.0, _burst(limit or 0.0), now, window_at=now)


def advance(pace: Pace, now: float) -> Pace:
    """Let time pass: the rate grows, tokens come, and without a limit of the configuration a full rate is none."""
    pace = _roll_window(pace, now)
    if pace.rate is None or now <= pace.at:
        return replace(pace, at=max(now, pace.at))
    # While a store throttles, no rate grows.
    grows_from = pace.at if pace.throttled_at is None else max(pace.at, pace.throttled_at + HOLD_S)
    grows_from = min(grows_from, now)
    growth = pace.goal / GROWTH_S
    grows_s = min(now - grows_from, (pace.goal - pace.rate) / growth)
    rate = min(pace.goal, pace.rate + growth * grows_s)
    come = pace.rate * (grows_from - pace.at) + (pace.rate + rate) / 2 * grows_s + rate * (now - grows_from - grows_s)
    # A rate that grew for long enough has all of it, but for what floats lose.
    if pace.limit is None and rate >= _WHOLE * pace.goal:
        return replace(pace, rate=None, tokens=0.0, at=now, slowed_at=None, throttled_at=None)
    return replace(pace, rate=rate, tokens=min(_burst(rate), pace.tokens + come), at=now)


def wait_s(pace: Pace) -> float:
    """Return for how many seconds the next request waits, if nothing changes; 0: it may go."""
    if pace.rate is None or pace.tokens >= _WHOLE:
        return 0.0
    return (1 - pace.tokens) / pace.rate


def take(pace: Pace, requests: int = 1) -> Pace:
    """Count requests that go now. More of them than there are tokens make those behind them wait."""
    counted = replace(pace, in_window=pace.in_window + requests)
    if pace.rate is None:
        return counted
    return replace(counted, tokens=max(pace.tokens - requests, -DEBT_S_MAX * pace.rate))


def slow_down(pace: Pace, now: float) -> Pace:
    """Return the pace after an answer by which the store throttles, such as 429 and 503."""
    pace = replace(advance(pace, now), throttled_at=now)
    if pace.slowed_at is not None and now - pace.slowed_at < HOLD_S:
        return pace
    # What went before decides, not a limit far above it.
    sent = float(max(pace.in_window, pace.before_window, 2 * RATE_MIN))
    if pace.rate is None:
        rate = sent
        goal = sent
    else:
        rate = min(pace.rate, sent)
        goal = pace.goal
    return replace(
        pace,
        rate=min(goal, max(RATE_MIN, rate / 2)),
        goal=goal,
        tokens=min(pace.tokens, 0.0),
        slowed_at=now,
    )


def _burst(rate: float) -> float:
    return max(1.0, rate * BURST_S)


def _roll_window(pace: Pace, now: float) -> Pace:
    passed = now - pace.window_at
    if passed < 1:
        return pace
    before = pace.in_window if passed < 2 else 0  # noqa: PLR2004 - the second before this one
    return replace(pace, window_at=pace.window_at + int(passed), in_window=0, before_window=before)
