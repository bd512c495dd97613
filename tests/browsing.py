"""A page in the tests' Chromium (`browser`, a fixture of all tests) that must neither complain nor ask for anything from
elsewhere.

Pictures for the docs are made by `PARALLELSEARCH_SCREENSHOTS=FOLDER pytest tests/server/test_page.py
tests/viewer/test_viewer_browser.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DESKTOP = {"width": 1280, "height": 860}
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


class Watched:
    """A page, what it complains about, and every foreign address it asks for."""

    def __init__(self, browser, url: str, ready: str, **context) -> None:
        self.context = browser.new_context(**{"viewport": DESKTOP, **context})
        self.context.set_default_timeout(120_000)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.origin = url.split("/", 3)[:3]
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.on("request", self._note)
        self.page.goto(url)
        self.page.locator(ready).wait_for(timeout=120_000)

    def _note(self, request) -> None:
        if request.url.split("/", 3)[:3] != self.origin:
            self.foreign.append(request.url)

    def axe_violations(self) -> list[str]:
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing")
        found = axe.Axe().run(self.page).response["violations"]
        return [f"{one['id']}: {[node['html'][:100] for node in one['nodes']]}" for one in found]

    def keep(self, name: str, full_page: bool = False) -> None:
        """A picture for the docs, when they are being made."""
        if folder := os.environ.get("PARALLELSEARCH_SCREENSHOTS"):
            from PIL import Image

            path = Path(folder) / f"{name}.png"
            self.page.screenshot(path=path, full_page=full_page)
            # A third of the bytes, no loss to see.
            Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []
        assert self.foreign == []
