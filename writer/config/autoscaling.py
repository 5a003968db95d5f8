"""The section of the configuration that driver and autoscaler share: who may scale, how far, and where it is told."""

import hmac
from datetime import timedelta
from typing import Any

from pydantic import Field, SecretStr, model_validator

from writer.config.base import Strict
from writer.core.units import Duration


class Autoscaler(Strict):
    """How `headrace autoscaler run` scales the executors of a driver."""

    token: SecretStr | None = Field(
        None,
        min_length=8,
        description="who shows it may scale; the same for driver and autoscaler, such as ${env:HEADRACE_SCALE_TOKEN}. "
        "Without it nobody may",
    )
    executors_min: int = Field(1, ge=1, description="never fewer executors")
    executors_max: int = Field(100, ge=1, description="never more executors; batches are cut for so many")
    drain_within: Duration = Field(
        timedelta(minutes=10), description="an executor that is to go has so long for its tasks; then it is killed"
    )
    host: str = Field("127.0.0.1", min_length=1, description="address where the autoscaler answers /metrics, /status")
    port: int = Field(9645, ge=0, le=65535, description="port for that; 0 takes any that is free")
    policy: dict[str, Any] = Field(
        default_factory=dict,
        description="parameters of the autoscaler by name, such as utilization_target: 0.7 (AUTOSCALING.md)",
    )

    @model_validator(mode="after")
    def _apart(self) -> "Autoscaler":
        if self.executors_max < self.executors_min:
            raise ValueError(
                f"executors_max {self.executors_max} is below executors_min {self.executors_min}; raise it, or lower "
                "the other"
            )
        for name in ("executors_min", "executors_max"):
            if name in self.policy:
                raise ValueError(f"{name} stands in autoscaler itself, not in its policy; move it one level up")
        return self

    def opens(self, authorization: bytes) -> bool:
        """Tell whether an Authorization header carries the token."""
        if self.token is None:
            return False
        return hmac.compare_digest(authorization, f"Bearer {self.token.get_secret_value()}".encode())
