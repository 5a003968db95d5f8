"""A real browser for tests: headless Chromium, spoken to over a pipe by its own DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MEND = (
    "no Chromium on the PATH (looked for " + ", ".join(NAMES) + "). Install it: `apt-get install chromium`, or set "
    "HEADRACE_CHROMIUM to the program"
)


def program() -> str | None:
    given = os.environ.get("HEADRACE_CHROMIUM")
    return given or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser."""

    def __init__(self, to: int, back: int) -> None:
        self._to = to
        self._back = back
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        return self._ask(method, given, self._session)

    def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Be a screen of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def find(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 60) -> Any:
        """Wait until an expression is true; returns its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.find(expression)):
            assert time.monotonic() < deadline, (
                f"not within {seconds} s: {expression}\n{self.find('document.body.innerText')}"
            )
            time.sleep(0.1)
        return value

    def picture(self, path: Path, until: str = "") -> None:
        """The page as it is, up to an element."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        if until:
            size["height"] = self.find(f"document.querySelector('{until}').getBoundingClientRect().top + scrollY")
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """What the page's console said: errors of scripts, and what its policy forbade."""
        messages = []
        for event in self.events:
            match event:
                case {"method": "Log.entryAdded", "params": {"entry": {"level": "error" | "warning", "text": text}}}:
                    messages.append(text)
                case {"method": "Runtime.exceptionThrown", "params": params}:
                    messages.append(json.dumps(params))
                case {"method": "Runtime.consoleAPICalled", "params": {"type": "error" | "warning"} as params}:
                    messages.append(json.dumps(params))
        return messages

    def requested_urls(self) -> list[str]:
        """URLs that the page asked for."""
        sent = [e["params"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]

    def _ask(self, method: str, parameters: Mapping[str, Any], session: str | None = None) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        os.write(self._to, json.dumps(request | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            message = self._read_message(method)
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])
            self.events.append(message)

    def _read_message(self, method: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._back], [], [], 60)
            assert ready, f"Chromium does not answer {method}"
            received = os.read(self._back, 1 << 20)
            assert received, f"Chromium ended at {method}"
            self._rest += received
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, gone afterwards. Fails where there is none."""
    executable = program()
    assert executable is not None, MEND
    child_input, input_pipe = os.pipe()
    output_pipe, child_output = os.pipe()

    def as_chromium_wants() -> None:
        copied = os.dup(child_output)  # it may be 3 itself
        os.dup2(child_input, 3)
        os.dup2(copied, 4)

    flags = [
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--ignore-certificate-errors",
        f"--user-data-dir={profile}",
    ]
    with (profile.parent / f"{profile.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [executable, *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=False,
            preexec_fn=as_chromium_wants,  # noqa: PLW1509 - no thread of ours holds a lock here
            start_new_session=True,
        )
    os.close(child_input)
    os.close(child_output)
    try:
        yield Browser(input_pipe, output_pipe)
    finally:
        os.close(input_pipe)
        os.close(output_pipe)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(10)
