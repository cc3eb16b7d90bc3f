"""The page at / in headless Chromium: a photo in, labels and boxes out."""

from __future__ import annotations

import time

import pytest

from ..support.shipped import MODELS
from ..unit.report.test_browser import browser  # noqa: F401
from .conftest import has_packages
from .process import WAIT, ask, serving
from .test_http import PHOTO

if not has_packages():
    pytest.skip("needs the extra `serve`", allow_module_level=True)
if not (MODELS / "nanodet_m.f16.pnnx.bin").exists():
    pytest.skip("the weights of the example models are missing", allow_module_level=True)
pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def photos():
    with serving("mobilenet_v2", "nanodet_m", "selfie", "--batch", "1") as running:
        yield running


def test_the_page_names_no_other_server(photos):
    status, headers, body = ask(photos.http, "GET", "/")
    assert status == 200
    assert "default-src 'self'" in headers["content-security-policy"]
    assert b"http://" not in body
    assert b"https://" not in body


def test_a_photo_is_classified_detected_and_segmented(photos, browser):  # noqa: F811
    def status(word: str) -> str:
        end = time.monotonic() + WAIT
        while True:
            text = browser.find_element("id", "status").text
            if word in text or time.monotonic() > end:
                return text
            time.sleep(0.05)

    def choose(identity: str, value: str) -> None:
        script = """const e = document.getElementById(arguments[0]); e.value = arguments[1];
                    e.dispatchEvent(new Event('change'));"""
        browser.execute_script(script, identity, value)

    browser.get(f"http://{photos.http}/")
    end = time.monotonic() + WAIT
    while len(browser.find_elements("css selector", "#model option")) < 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    browser.find_element("id", "file").send_keys(str(PHOTO))
    assert "5 results" in status("results")
    assert "Egyptian cat" in browser.find_element("id", "rows").text
    choose("model", "nanodet_m")
    assert "1 result " in status("1 result ")
    assert browser.find_element("id", "task").get_attribute("value") == "detect"
    assert "cat" in browser.find_element("id", "rows").text
    choose("model", "selfie")
    assert "segmented" in status("segmented")
    assert browser.find_element("id", "shown").get_attribute("width") == "451"
    choose("task", "classify")
    assert "one row of scores" in status("scores")
    complaints = [e["message"] for e in browser.get_log("browser")]
    assert all("favicon" in text or "400" in text for text in complaints), complaints
