"""A headless Chromium, controlled over two pipes with the DevTools protocol, without a driver."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)
TIMEOUT = 120  # seconds; a busy machine is slow


class Browser:
    """One page, and the messages on its console since it was opened."""

    def __init__(self, profile: Path):
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        # Chromium reads its descriptor 3 and writes to 4.
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec 3<&{read} 4>&{write} "$@"',
                "-",
                PROGRAM,
                *FLAGS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(read, write),
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._ids, self._buffer = itertools.count(1), b""
        self._session, self._events = None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        for end in (self._to, self._from):
            os.close(end)  # Chromium exits when its pipes close
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, method: str, **params) -> dict:
        """Sends a command and returns its answer. Events that arrive before it are kept."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params} | (
            {"sessionId": self._session} if self._session else {}
        )
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self._events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self) -> dict:
        deadline = time.monotonic() + TIMEOUT
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError(f"no message from {PROGRAM} in {TIMEOUT} s")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise RuntimeError(f"{PROGRAM} ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def show(
        self,
        path: Path,
        *,
        width: int,
        height: int = 900,
        theme: str = "light",
        media: str = "screen",
    ) -> None:
        """Opens a page and waits until it is loaded."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.ask(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": theme}],
        )
        self._events = []
        self.ask("Page.navigate", url=path.as_uri() if isinstance(path, Path) else path)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())

    def run(self, expression: str):
        """The value of a JavaScript expression, awaited if it is a promise."""
        result = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Presses and releases a key."""
        for kind, fields in (("keyDown", {"text": text}), ("keyUp", {})):
            self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **fields,
            )

    def screenshot(self) -> bytes:
        """A PNG of the visible part of the page."""
        return base64.b64decode(
            self.ask("Page.captureScreenshot", captureBeyondViewport=False)["data"]
        )

    def print_to_pdf(self) -> bytes:
        """A PDF of the page on A4."""
        self.ask("Emulation.setEmulatedMedia", media="", features=[])
        result = self.ask(
            "Page.printToPDF",
            paperWidth=8.27,
            paperHeight=11.69,
            printBackground=True,
            preferCSSPageSize=True,
        )
        return base64.b64decode(result["data"])

    def messages(self) -> list[str]:
        """Console messages, exceptions, and the addresses of all network requests."""
        self.run("0")  # reads all earlier events
        out = []
        for event in self._events:
            p = event["params"]
            match event["method"]:
                case "Log.entryAdded":
                    out.append(p["entry"]["text"])
                case "Runtime.consoleAPICalled":
                    out.append(str(p["args"]))
                case "Runtime.exceptionThrown":
                    out.append(p["exceptionDetails"]["text"])
                case "Network.requestWillBeSent":
                    out += [p["request"]["url"]] * (p["type"] != "Document")
        return out
