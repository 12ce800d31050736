"""Drive headless Chromium by its DevTools protocol, over a pipe: messages are JSON, each ended by a NUL byte.

    with Browser() as browser:
        browser.open(Path("senses.html"))
        browser.evaluate("document.title")

What the page logs, throws and asks the network for is in `logged` and `requested`.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe"
).split()
KEYS = {"Enter": 13, "Tab": 9, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
SECONDS = 120.0


class Browser:
    """A browser with one page. Chromium reads commands from file descriptor 3 and answers on 4."""

    def __init__(self) -> None:
        self.logged: list[str] = []
        self.requested: list[str] = []
        self._profile = TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        shell = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, str(CHROMIUM), *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._count = 0
        self._buffer = b""
        self._results: dict[int, dict[str, Any]] = {}
        self._session: str | None = None
        target = self.send("Target.getTargets")["targetInfos"]
        page = next(info["targetId"] for info in target if info["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            self.send("Browser.close")
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    # -------------------------------------------------------------------------------------------------- messages

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._count += 1
        number = self._count
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._commands, content) :]
        end = time.monotonic() + SECONDS
        while number not in self._results:
            self._receive(end)
        result = self._results.pop(number)
        if "error" in result:
            raise RuntimeError(f"{method}: {result['error']['message']}")
        return result["result"]

    def _receive(self, end: float) -> None:
        if not select.select([self._answers], [], [], max(end - time.monotonic(), 0))[0]:
            raise TimeoutError(f"the browser did not answer in {SECONDS:.0f} s")
        content = os.read(self._answers, 1 << 20)
        if not content:
            raise RuntimeError("the browser has ended")
        *messages, self._buffer = (self._buffer + content).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._results[message["id"]] = message
            else:
                self._note(message["method"], message["params"])

    def _note(self, event: str, parameters: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.logged.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif event == "Runtime.consoleAPICalled":
            self.logged.append(json.dumps(parameters["args"])[:500])
        elif event == "Log.entryAdded":
            self.logged.append(parameters["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])

    # ------------------------------------------------------------------------------------------------------ page

    def open(self, page: Path) -> float:
        """Open a page of senses from its file and wait until it is ready; return the seconds that took."""
        started = time.monotonic()
        self.send("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("document.documentElement?.dataset.ready === 'true'")
        return time.monotonic() - started

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def ask(self, kind: str, **request: Any) -> Any:
        """Return what the page's engine answers."""
        return self.evaluate(f"elmo.ask({json.dumps({'kind': kind, **request})})")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {condition}; logged: {self.logged}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def texts(self, selector: str) -> list[str]:
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")

    def page_seconds(self) -> float:
        """Return the processor time that the page's processes have taken."""
        ticks = 0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                if b"--type=renderer" in command and self._profile.name.encode() in command:
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    ticks += int(fields[11]) + int(fields[12])  # in user and in system mode
        return ticks / os.sysconf("SC_CLK_TCK")

    # ------------------------------------------------------------------------------------------------------ user

    def click(self, selector: str) -> None:
        """Click with the mouse in the middle of an element."""
        middle = """(element => {
            element.scrollIntoView({ block: "center" });
            const box = element.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        })"""
        x, y = self.evaluate(f"{middle}(document.querySelector({json.dumps(selector)}))")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press and release a key."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **code)
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        self.evaluate(f"(e => {{ e.focus(); e.select(); }})(document.querySelector({json.dumps(selector)}))")
        self.send("Input.insertText", text=text)

    def resize(self, width: int, height: int, scale: float = 1, is_phone: bool = False) -> None:
        settings = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone}
        self.send("Emulation.setDeviceMetricsOverride", **settings)

    def prefer(self, scheme: str) -> None:
        """Take the system for light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, file: Path, whole: bool = False) -> None:
        content = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(content))
