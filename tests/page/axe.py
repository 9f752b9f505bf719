"""axe-core, the common checker of accessibility, run in the page (API-5)."""

import os
import shutil
import subprocess
from typing import Any

import pytest
from playwright.async_api import Page

PACKAGE = "axe-core@4.14.1"
FETCH_SECONDS = 120


def axe_source(cache: pytest.Cache) -> str:
    """Return axe's script, fetched from its registry into a folder that later runs find again."""
    npm = shutil.which("npm")
    if npm is None:
        _unavailable("npm is not installed: axe can't be fetched")
    folder = cache.mkdir(PACKAGE.replace("@", "-"))
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        command = [str(npm), "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), PACKAGE]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=FETCH_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            _unavailable(f"{PACKAGE} could not be fetched from its registry ({type(error).__name__})")
    return script.read_text()


def _unavailable(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


async def grave_faults(page: Page, axe: str) -> list[str]:
    """Return what axe calls serious or critical in the page as it is now, and where."""
    await page.evaluate(axe)  # by the debugger, which the page's own policy does not bind
    found: dict[str, Any] = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{fault['id']} ({fault['impact']}): {[node['html'][:200] for node in fault['nodes']]}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
    ]
