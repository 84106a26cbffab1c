"""Debian's chromium through the DevTools protocol over two pipes: no driver, no library, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

TIMEOUT = 60.0


def executable() -> str | None:
    """The browser: what CHROMIUM names, or the first that is installed."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


class Browser:
    """A headless browser with one page, as a context manager.

    Attributes:
        complaints: uncaught errors, console errors and warnings, and failed or attempted requests.
        requests: addresses the page asked for.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Browser:
        program = executable()
        assert program is not None, "no chromium: apt-get install chromium"
        self._profile = tempfile.mkdtemp(prefix="capo-page-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def descriptors() -> None:  # the browser reads commands from 3 and answers on 4
            first, second = os.dup(to_browser), os.dup(from_browser)
            os.dup2(first, 3)
            os.dup2(second, 4)

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--hide-scrollbars", "--force-device-scale-factor=1", f"--user-data-dir={self._profile}"]
        self._process = subprocess.Popen(
            [program, *options, "--remote-debugging-pipe", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=descriptors,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._next, self._session = b"", 0, None
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # a group of its own: the browser and its helpers
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    # What a test does -------------------------------------------------------------------------------------

    def open(self, path: Path, width: int, height: int, phone: bool = False) -> None:
        """Load a file at a window size, the mouse in its corner, and wait until it is drawn."""
        self.complaints.clear()
        self.requests.clear()
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self._send("Emulation.setTouchEmulationEnabled", enabled=phone)
        if not phone:
            self._send("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
        self._send("Page.navigate", url=path.absolute().as_uri())
        self.wait("document.readyState === 'complete' && !!document.querySelector('.chart svg')")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + TIMEOUT
        while not self.evaluate(f"!!({expression})"):
            assert time.monotonic() < end, f"still not true: {expression}"
            time.sleep(0.05)

    def centre(self, selector: str) -> tuple[float, float]:
        """Where an element's middle is in the window, once it is scrolled into view."""
        text = json.dumps(selector)
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({text}); e.scrollIntoView({{block: 'center'}});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        return float(x), float(y)

    def hover(self, selector: str) -> None:
        """Move the mouse to the middle of an element."""
        x, y = self.centre(selector)
        for shift in (3, 0):
            self._send("Input.dispatchMouseEvent", type="mouseMoved", x=x + shift, y=y)

    def click(self, selector: str) -> None:
        """Press and release the mouse on an element."""
        x, y = self.centre(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, selector: str) -> None:
        """Touch an element."""
        x, y = self.centre(selector)
        self._send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self._send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        """A key, by its DOM name."""
        for kind in ("rawKeyDown", "keyUp"):
            self._send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_CODES[key])

    def screenshot(self, path: Path, whole: bool = True) -> Path:
        """The page, or what the window shows of it, as a PNG file."""
        picture = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(picture["data"]))
        return path

    # The protocol -----------------------------------------------------------------------------------------

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command and its answer; what the browser reports meanwhile is noted."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + TIMEOUT
        while True:
            found = self._receive(end)
            if found.get("id") == self._next:
                assert "error" not in found, f"{method}: {found['error']}"
                return dict(found["result"])
            self._note(found.get("method", ""), found.get("params", {}))

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([part.get("value") for part in parameters["args"]]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


_CODES = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Escape": 27, "End": 35, " ": 32}
