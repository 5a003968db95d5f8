"""No module of the product is imported by two names."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"autoscaler", "bench", "bucketers", "recovery", "writer"}
# Imports every module, and prints the file of each by its name.
IMPORTS_ALL = """
import json, sys
from importlib import import_module
from pathlib import Path
import headrace
(root,) = headrace.__path__
for package in sorted(Path(root).iterdir()):
    for path in sorted(package.glob("**/*.py")):
        name = ".".join(path.relative_to(Path(root).parent).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith(".__main__"):
            import_module(name)
files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
print(json.dumps({name: file for name, file in files.items() if file}))
"""


def test_every_module_is_imported_once_by_the_name_of_the_package() -> None:
    # In the repository's root each package could be imported by itself.
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_ALL], cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    files = {name: Path(file).resolve() for name, file in json.loads(done.stdout.splitlines()[-1]).items()}
    assert {name.partition(".")[0] for name in files} & PACKAGES == set()
    ours = [file for file in files.values() if file.is_relative_to(ROOT) and ".venv" not in file.parts]
    assert len(ours) > 500
    assert [file for file, count in Counter(ours).items() if count > 1] == []
