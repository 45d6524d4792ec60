"""The sample study, its page, and a headless Chromium that may reach nothing but files."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_sample import study as sample_study

from tilesieve.report import write_report

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture
def study() -> dict[str, Any]:
    return sample_study()


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(sample_study(), tmp_path_factory.mktemp("report") / "study.html")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=binary, args=list(FLAGS))
        yield browser
        browser.close()
