"""How much rewriting may take of what the stream needs: a job is followed by a pause, before whichever is the next."""

from dataclasses import dataclass


@dataclass
class Pace:
    """Keeps the rewrites of one driver to a share of its slots, from job to job and from bucket to bucket."""

    share: float  # of all slots, over time
    busy_s: float = 0.0  # what all jobs took so far, of one slot
    _due_s: float = 0.0  # of a clock that only rises: when the next job may begin

    def owed_s(self, now_s: float) -> float:
        """How long the next job has to wait."""
        return max(0.0, self._due_s - now_s)

    def took(self, wall_s: float, cpu_s: float, slots: int, now_s: float) -> None:
        """Note a job that is over. One that used several threads took more of the machine than its slot."""
        spent_s = max(wall_s, cpu_s)
        self.busy_s += spent_s
        self._due_s = now_s + pause_s(spent_s, self.share, slots)


def pause_s(spent_s: float, share: float, slots: int) -> float:
    """Seconds to wait after one slot was busy, so that over both its part of all slots is the share."""
    return max(0.0, spent_s * (1 / (share * slots) - 1))
