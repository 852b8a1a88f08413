"""A headless Chromium without any network, and pages to open in it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import unavailable

# Address of the conversation of hostile texts in the page about two models.
HOSTILE = "#c=hostile+%3Cimg+src%3Dx+onerror%3Dalert%281%29%3E&b=0"


def _program(name: str) -> str:
    return shutil.which(name) or unavailable(
        f"{name} is not installed; on Debian: apt-get install chromium chromium-driver"
    )


class Browser:
    """Drives one Chromium; names are ids of elements.

    Attributes:
        driver: Selenium's.
        downloads: Folder that takes what the page saves.
    """

    def __init__(self, driver: Any, downloads: Path) -> None:
        self.driver = driver
        self.downloads = downloads

    def command(self, name: str, **arguments: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def run(self, script: str, *arguments: object) -> Any:
        """The value that JavaScript returns."""
        return self.driver.execute_script(script, *arguments)

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file afresh and wait until its first conversation is there."""
        self.driver.get("about:blank")
        self.driver.get(f"{path.as_uri()}{fragment}")
        self.wait("return document.querySelectorAll('#strip .t').length > 0")

    def wait(self, condition: str, timeout_s: float = 20.0) -> Any:
        """Wait until a script returns something true."""
        deadline = time.monotonic() + timeout_s
        while not (value := self.run(condition)):
            assert time.monotonic() < deadline, f"never true: {condition}\n{self.errors()}"
            time.sleep(0.02)
        return value

    def click(self, name: str) -> None:
        self.driver.find_element("id", name).click()

    def press(self, key: str, name: str | None = None) -> None:
        """A key for one element, or for the page."""
        self.driver.find_element(*(("tag name", "body") if name is None else ("id", name))).send_keys(key)

    def choose(self, name: str, value: str) -> None:
        """A value of a select element."""
        script = "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        self.run(script + "e.dispatchEvent(new Event('change'))", name, value)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return list(self.run(script, selector))

    def state(self) -> dict[str, str]:
        """The fragment of the address."""
        return dict(self.run("return Object.fromEntries(new URLSearchParams(location.hash.slice(1)))"))

    def errors(self) -> list[str]:
        """Console messages since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if url != "about:blank"]

    def resize(self, width: int, height: int = 900) -> None:
        """The size of the visible page, in CSS pixels."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium, chromedriver = _program("chromium"), _program("chromedriver")
    try:
        from selenium import webdriver
    except ImportError:
        unavailable("selenium is not installed; it comes with the extra dev")
    folder = tmp_path_factory.mktemp("chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
    ):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(folder / "downloads")})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    try:
        started = Browser(driver, folder / "downloads")
        started.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(started.downloads))
        started.command("Network.enable")
        offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        started.command("Network.emulateNetworkConditions", **offline)
        yield started
    finally:
        driver.quit()


@pytest.fixture(scope="session")
def exact_page(tiny_model: Path, other_tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about two models whose values over the whole vocabulary are known."""
    pytest.importorskip("torch")
    from tests.analytics.exact.pairs import ALPHAS, score_pair, write_conversations
    from tokscore.analytics.exact.report import exact_report
    from tokscore.analytics.report import write_diff_report

    folder = tmp_path_factory.mktemp("exact")
    pair = score_pair(folder, write_conversations(folder / "convs.jsonl"), tiny_model, other_tiny_model)
    exact = exact_report(pair.run(folder / "parts"))
    write_diff_report(pair.teacher, pair.student, folder / "page.html", alpha=ALPHAS[0], exact=exact)
    return folder / "page.html"


@pytest.fixture(scope="session")
def report(write_scores: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about two models: one conversation of hostile texts, one long, and sixty short ones."""
    from tokscore.analytics.report import write_diff_report

    folder = tmp_path_factory.mktemp("report")
    samples = [
        ("hostile <img src=x onerror=alert(1)>", (("user", tuple(range(1, 16))), ("tool", (3, 11, 4)))),
        ("long", (("user", (1, 2)), ("assistant", tuple(16 + i * i % 34 for i in range(5000))))),
        *(
            (f"short-{i}", (("user", (1, 2, 15 + i % 30)), ("assistant", (16 + i % 20, 3))))
            for i in range(60)
        ),
    ]
    teacher = write_scores(folder / "teacher", samples)
    student = write_scores(folder / "student", samples, noise=0.7, model="student")
    write_diff_report(teacher, student, folder / "report.html")
    return folder / "report.html"


@pytest.fixture
def page(browser: Any, report: Path) -> Any:
    browser.resize(1280)
    browser.open(report)
    browser.errors()
    return browser
