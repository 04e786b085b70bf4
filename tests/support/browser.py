"""Debian's chromium, headless, for the tests and the benchmark of the page.

One browser serves all; each page is opened anew. What the page says on its console and every
request that it makes are kept: there must be neither.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from places import BUSY
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--force-device-scale-factor=1",
)  # fmt: skip
PATIENCE_S = 60 * BUSY


class Browser:
    """A browser with a profile of its own; ``downloads`` is where it saves files."""

    def __init__(self, place: Path) -> None:
        self.downloads = place / "downloads"
        self.downloads.mkdir()
        options = Options()
        options.binary_location = program("chromium")
        for flag in (*_FLAGS, f"--user-data-dir={place / 'profile'}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(program("chromedriver")))
        self.driver.set_script_timeout(PATIENCE_S)
        self.command("Page.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))

    def command(self, name: str, **values: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, values)

    def open(
        self, page: Path, hash_: str = "", *, width: int = 1600, height: int = 1000,
        dark: bool = False, scripts: bool = True,
    ) -> None:  # fmt: skip
        """Open a file, and wait until it has done all that it does by itself."""
        self.driver.get("about:blank")
        self.messages(), self.requests()  # of the page before
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.command("Emulation.setEmulatedMedia", features=scheme)
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.command("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.driver.get(page.as_uri() + hash_)
        if scripts:
            self.wait("document.documentElement.dataset.ready")

    def run(self, script: str, *values: Any) -> Any:
        """The value of a piece of JavaScript, run in the page; ``arguments`` are ``values``."""
        return self.driver.execute_script(script, *values)

    def wait(self, condition: str) -> None:
        """Until a JavaScript expression is true."""
        WebDriverWait(self.driver, PATIENCE_S, 0.02).until(
            lambda _: self.run(f"return {condition}")
        )

    def texts(self, what: str) -> list[str]:
        """Texts of the elements that such a selector finds and that are visible."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility())"
            ".map(e => e.textContent.trim().replace(/[ \\n]+/g, ' '))",
            what,
        )
        return found

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """A PNG of the page, or of the part in view."""
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        """The page as it is printed."""
        made = self.command("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def messages(self) -> list[str]:
        """What stood on the console since the last call."""
        return [entry["message"] for entry in self._log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last call, but for the page's own."""
        events = (json.loads(entry["message"]) for entry in self._log("performance"))
        found = [event["message"] for event in events]
        sent = [
            event["params"]["request"]["url"]
            for event in found
            if event["method"] == "Network.requestWillBeSent"
            and event["params"].get("type") != "Document"
        ]
        return [address for address in sent if not address.startswith(("data:", "blob:"))]

    def _log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return found

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()


def program(name: str) -> str:
    """The path of ``chromium`` or ``chromedriver``; FileNotFoundError with what to do."""
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: run `make browser`, once, as root")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block, and leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="dlperf-browser-", ignore_cleanup_errors=True) as place:
        opened = Browser(Path(place))
        try:
            yield opened
        finally:
            opened.close()
