"""A disk that is full or read-only for a moment: each check of a start says that it may pass.

What a supervisor and its driver make of such a moment is in tests/fault/test_disk.py.
"""

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from headrace.recovery.escalation.diagnosis import diagnose_exit
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.core.errors import ConfigError, ExitCode, FileUnavailable, file_error, may_pass
from headrace.writer.driver.restart_policy import causes
from headrace.writer.storage.probe import StoreSilent
from tests.support.small_disk import MOMENTS, on_a_disk

PASSING = [
    errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EMFILE,
    errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ENOLCK, errno.ECONNABORTED, errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
]  # fmt: skip
LASTING = [errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EPERM]


@given(st.sampled_from(PASSING + LASTING))
def test_of_a_file_only_what_may_pass_is_no_fault_of_the_configuration(number: int) -> None:
    error = OSError(number, os.strerror(number))
    found = file_error("the file", error)
    assert may_pass(error) == isinstance(found, FileUnavailable) == (number in PASSING)
    assert isinstance(found, ConfigError) == (number in LASTING)
    verdict = diagnose_exit(found.exit_code, causes(found))
    assert (verdict.halt, verdict.level) == ((False, RecoveryLevel.WAIT) if number in PASSING else (True, None))
    assert may_pass(OSError(f"in a library: {os.strerror(number)} (os error {number})")) == (number in PASSING)


START = """
import json, subprocess, sys
from pathlib import Path
import pyarrow as pa
from tests.support.sample_records import config
from headrace.writer.core.errors import exit_code
from headrace.writer.driver.start.pipeline_start import probe_locations
from headrace.writer.table import locations
from headrace.writer.table.factory import main_table
from headrace.writer.config.sections.table import layout

settings = config(Path(sys.argv[1]))
pipeline = settings.pipelines["clicks"]

def create():
    columns = pa.schema([("id", pa.int64()), ("hour", pa.string())])
    main_table("clicks", settings).create(columns, ["hour"], layout(pipeline.bucket))

check = lambda: locations.check_locations("clicks", settings)
for step in (check, lambda: probe_locations("clicks", settings), create):
    try:
        step()
        said = None
    except Exception as error:
        said = [type(error).__name__, int(exit_code(error))]
    print(json.dumps(said))
    if said is not None:
        subprocess.run(["mend"], check=True)
        step()
        subprocess.run(["spoil"], check=True)
"""


@pytest.mark.parametrize("moment", MOMENTS)
def test_each_check_of_a_start_says_that_it_may_pass_and_works_afterwards(tmp_path: Path, moment: str) -> None:
    said = on_a_disk(tmp_path, moment, sys.executable, "-c", START, str(tmp_path / "disk"))
    looked, probed, created = [json.loads(line) for line in said[:3]]
    assert looked is None, "it only reads"
    assert probed == [StoreSilent.__name__, ExitCode.CRASH]
    assert created == ["CommitFailed", ExitCode.CRASH]
