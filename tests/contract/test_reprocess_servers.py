"""A reprocess of tables on S3, and of Iceberg tables there that Glue knows: moto."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.servers.objects import ObjectServer
from tests.support.reprocess_check import check_reprocess


@pytest.mark.parametrize("kind", ["delta", "parquet", "glue"])
def test_old_rules_and_a_reprocess_give_what_the_new_rules_give_from_the_start(
    tmp_path: Path, kind: str, on_s3: ObjectServer
) -> None:
    home = on_s3.bucket()
    settings: dict[str, Any] = {"table": {"location": f"{home}/clicks", "raw": {"location": f"{home}/clicks_raw"}}}
    if kind == "glue":
        options = {"glue.endpoint": on_s3.url}
        settings["sections"] = {"catalog": {"type": "glue", "namespace": f"n{uuid4().hex[:12]}", "options": options}}
    check_reprocess(tmp_path, "iceberg" if kind == "glue" else kind, **settings)
