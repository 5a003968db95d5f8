"""The picture of the demo in the README shows what the screen showed."""

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path

from rich.text import Text

from tests.support.demo_view import VIEW


def test_the_picture_is_drawn_from_what_the_screen_showed():
    place = Path(__file__).parents[2] / "docs" / "picture.py"
    spec = importlib.util.spec_from_file_location("picture", place)
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    screen = picture.Still()
    screen.write(Text("a < b & c"))
    with screen.live():
        screen.show(VIEW)
    screen.write("the end")
    drawn = screen.svg()
    texts = {text.text.replace("\xa0", " ") for text in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")}
    assert {"headrace demo", "a < b & c", "the end"} <= texts
    assert any("60,000 offsets, the oldest waits" in text for text in texts)
    assert "url(http" not in drawn, "nothing is fetched when it is shown"
