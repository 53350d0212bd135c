"""A real browser for tests: headless Chromium over its own pipe, no driver and no network."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BINARY = os.environ.get("FEDVISAGE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
WHY = "no browser: the pages were not looked at (install Chromium, or name one in FEDVISAGE_BROWSER)"
STARTER = """
import os, sys
down, up = os.dup2(int(sys.argv[1]), 100), os.dup2(int(sys.argv[2]), 101)
os.dup2(down, 3)
os.dup2(up, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from its file 3 and answers on its file 4."""


class Browser:
    """A running browser with one tab. Commands are those of the DevTools protocol."""

    def __init__(self) -> None:
        assert BINARY is not None
        self._home = tempfile.mkdtemp(prefix="fedvisage-browser-")
        down, self._to = os.pipe()
        self._from, up = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--no-first-run", "--disable-extensions", "--disable-background-networking"]
        options += [f"--user-data-dir={self._home}", "--remote-debugging-pipe", "about:blank"]

        start = [sys.executable, "-c", STARTER, str(down), str(up), BINARY, *options]
        silent = subprocess.DEVNULL
        self._process = subprocess.Popen(start, pass_fds=(down, up), stdout=silent, stderr=silent)
        os.close(down)
        os.close(up)
        self._number, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        """Take over the tab that the browser opened."""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run a command and give its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self, patience: float = 60) -> dict[str, Any]:
        end = time.monotonic() + patience
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def close(self) -> None:
        """End the browser."""
        os.close(self._to)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        shutil.rmtree(self._home, ignore_errors=True)

    def look(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> Sight:
        """Open a page at a size and in a colour scheme, and say what is to be seen."""
        self.events.clear()
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())
        return Sight(
            self._complaints(),
            [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"],
            **self.evaluate(MEASURE),
        )

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"]["value"]

    def shoot(self, path: Path) -> None:
        """A picture of the whole page as it is now."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12000), "scale": 1}
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _complaints(self) -> list[str]:
        said = []
        for event in self.events:
            name, more = event.get("method"), event.get("params", {})
            if name == "Runtime.exceptionThrown":
                said.append(str(more["exceptionDetails"]))
            elif name == "Log.entryAdded" and more["entry"]["level"] in ("error", "warning"):
                said.append(more["entry"]["text"])
            elif name == "Runtime.consoleAPICalled" and more["type"] in ("error", "warning", "assert"):
                said.append(str(more["args"]))
        return said


@dataclass
class Sight:
    """What a browser saw of a page."""

    complaints: list[str]
    requests: list[str]
    overflow: float = 0
    """By how many pixels the page is wider than the window."""
    figures: list[dict[str, Any]] = field(default_factory=list)
    """Every drawing: its size, how many of its marks can be seen, and whether its text lies within it."""
    background: str = ""
    ink: str = ""


MEASURE = """(() => {
  const root = document.documentElement;
  const figures = [...document.querySelectorAll("svg.chart")].map(svg => {
    const box = svg.getBoundingClientRect();
    const marks = [...svg.querySelectorAll("path, circle, rect, line, polygon")].filter(mark => {
      const style = getComputedStyle(mark), size = mark.getBoundingClientRect();
      const drawn = (style.fill !== "none" && style.fill !== "rgba(0, 0, 0, 0)") || style.stroke !== "none";
      return drawn && style.visibility === "visible" && (size.width > 0 || size.height > 0);
    }).length;
    const outside = [...svg.querySelectorAll("text")].filter(text => {
      const size = text.getBoundingClientRect();
      return size.left < box.left - 2 || size.right > box.right + 2;
    }).map(text => text.textContent);
    return {label: svg.getAttribute("aria-label"), width: box.width, height: box.height, marks, outside};
  });
  const style = getComputedStyle(document.body);
  return {overflow: root.scrollWidth - root.clientWidth, figures, background: style.backgroundColor, ink: style.color};
})()"""
