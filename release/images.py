"""The images: built with the wheel that is published, proven, exported, and listed by their packages."""

import json
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from release.components import Component, check_image_packages, check_image_wheel, image_components
from release.programs import has_docker, run_program

_INVENTORY = Path(__file__).with_name("inventory.py")
# Lock by image.
_LOCKS = {"headrace": "docker/writer.lock", "headrace-autoscaler": "docker/autoscaler.lock"}


@dataclass(frozen=True)
class Image:
    """An image in a file, with what it holds."""

    name: str
    archive: Path
    components: list[Component]


def build_images(folder: Path, version: str, wheel: Path, dist: Path) -> list[Image]:
    """Build, prove and export both images from a clone. Raises ReleaseError if one does not hold what it promises.

    BASE of the environment is the image that they begin with. One of this machine that is not there yet,
    localhost/NAME, is made by docker/base.sh.
    """
    wheels = folder / "wheels"
    wheels.mkdir()
    shutil.copy(wheel, wheels)
    _make_base(folder)
    run_program(["bash", "docker/build.sh", version], folder, shown=True)
    return [_describe_image(name, folder, version, wheel, dist) for name in _LOCKS]


def _make_base(folder: Path) -> None:
    base = os.environ.get("BASE", "")
    if not base.startswith("localhost/") or has_docker():
        return
    images = run_program(["buildah", "images", "--format", "{{.Name}}:{{.Tag}}"], folder).split()
    if base not in images:
        # CA may name files by where `make` was called.
        run_program(["bash", folder / "docker" / "base.sh", base], Path.cwd(), shown=True)


def _describe_image(name: str, folder: Path, version: str, wheel: Path, dist: Path) -> Image:
    tagged = f"{name}:{version}"
    program = _INVENTORY.read_text(encoding="utf-8")
    inventory = json.loads(run_program(["bash", "docker/inside.sh", tagged, "python", "-c", program], folder))
    components = image_components(inventory)
    lock = (folder / _LOCKS[name]).read_text(encoding="utf-8")
    check_image_packages(tagged, components, lock)
    (headrace,) = [package for package in inventory["python"] if package["name"] == "headrace"]
    check_image_wheel(tagged, headrace["record"], _wheel_record(wheel))
    archive = dist / f"{name}-image-{version}.tar"
    if has_docker():
        run_program(["docker", "save", "-o", archive, tagged], folder)
    else:
        run_program(["buildah", "push", "-q", f"localhost/{tagged}", f"oci-archive:{archive}:{tagged}"], folder)
    return Image(name, archive, components)


def _wheel_record(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        return archive.read(name).decode().splitlines()
