"""The report page in a real browser: clicks, search, appearance.

Needs Chromium, its driver and selenium (Debian: chromium chromium-driver; PyPI: selenium); skipped
if one of them is missing.
"""

from __future__ import annotations

import shutil
import time

import numpy as np
import pytest

import kuiper
from kuiper import report

from ...support.pages import chain_graph, make_small_page
from ...support.shipped import MODELS

needs_weights = pytest.mark.skipif(
    not (MODELS / "nanodet_m.f16.pnnx.bin").exists(),
    reason="the weights of the example models are in the repository, not in the sdist",
)


@pytest.fixture(scope="module")
def small_page() -> str:
    return make_small_page()


@pytest.fixture(scope="module")
def browser():
    """Return a headless Chromium driven by selenium."""
    selenium = pytest.importorskip("selenium", reason="the browser is driven by selenium")
    assert selenium
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    driver_path = shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        pytest.skip("no chromium and chromedriver here (Debian: chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,900",
                     "--disable-dev-shm-usage"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    yield driver
    driver.quit()


def open_page(browser, text: str, folder) -> None:
    """Open a page without a network; fail on errors of its script."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
    )
    browser.get(path.as_uri())
    complaints = [e for e in browser.get_log("browser") if "favicon" not in e["message"]]
    assert complaints == []


def one(browser, selector: str):
    return browser.find_element("css selector", selector)


def click_operator(browser, name: str, graph: str = "file") -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    box = one(browser, f'.pane[data-graph="{graph}"] .op[data-op="{name}"] rect')
    ActionChains(browser).move_to_element(box).click().perform()


def test_click_on_an_operator(browser, small_page, tmp_path):
    open_page(browser, small_page, tmp_path)
    click_operator(browser, "stem.conv")
    details = one(browser, "#details").text
    for text in ("stem.conv", "nn.Conv2d", "kernel_size", "(3, 3)", "(8,3,3,3)f32", "GFLOP/s",
                 "deviation", "stem.act"):  # fmt: skip
        assert text in details
    assert "op=stem.conv" in browser.current_url
    click_operator(browser, "gate")
    assert "%r * tanh(%c)" in one(browser, "#details").text
    assert one(browser, "#details .tree svg").is_displayed()
    one(browser, "#details a[data-go]").click()  # a link to the neighbour
    assert "gate" not in one(browser, "#details h2").text


def test_search(browser, small_page, tmp_path):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, small_page, tmp_path)
    field = one(browser, "#search")
    field.send_keys("stem")
    assert one(browser, "#hits").text == "2 found"
    hits = browser.find_elements("css selector", '.pane[data-graph="file"] .op.hit')
    assert {hit.get_attribute("data-op") for hit in hits} == {"stem.conv", "stem.act"}
    field.send_keys(Keys.ENTER)
    assert one(browser, "#hits").text == "1 of 2"
    first = one(browser, "#details h2").text
    field.send_keys(Keys.ENTER)
    assert {first, one(browser, "#details h2").text} == {"stem.conv", "stem.act"}
    field.send_keys(Keys.ESCAPE)
    assert one(browser, "#hits").text == ""
    one(browser, "body").send_keys("/")
    assert browser.switch_to.active_element == field


def view_box(browser) -> list[float]:
    svg = one(browser, '.pane[data-graph="file"] > svg')
    return [float(value) for value in svg.get_dom_attribute("viewBox").split()]


def test_zoom_and_pan(browser, small_page, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains

    open_page(browser, small_page, tmp_path)
    before = view_box(browser)
    one(browser, "#plus").click()
    closer = view_box(browser)
    assert closer[2] == pytest.approx(before[2] / 1.4)
    one(browser, "#minus").click()
    assert view_box(browser) == pytest.approx(before)
    svg = one(browser, '.pane[data-graph="file"] > svg')
    ActionChains(browser).move_to_element_with_offset(
        svg, -300, 200
    ).click_and_hold().move_by_offset(60, -40).release().perform()
    moved = view_box(browser)
    assert moved[0] < before[0]
    assert moved[1] > before[1]
    browser.execute_script(
        "arguments[0].dispatchEvent(new WheelEvent('wheel', "
        "{deltaY: -200, clientX: 400, clientY: 400, cancelable: true}))", svg,
    )  # fmt: skip
    assert view_box(browser)[2] < moved[2]
    one(browser, "#fit").click()
    size = [float(svg.get_dom_attribute(f"data-{side}")) for side in ("width", "height")]
    assert view_box(browser) == pytest.approx([0, 0, *size])


def test_views_and_colours(browser, small_page, tmp_path):
    open_page(browser, small_page, tmp_path)
    for view in ("timeline", "memory", "operators", "graph"):
        one(browser, f'nav button[data-view="{view}"]').click()
        panes = browser.find_elements("css selector", ".pane")
        shown = [pane.get_attribute("data-pane") for pane in panes if pane.is_displayed()]
        assert shown == [view]
    rect = one(browser, '.pane[data-graph="file"] .op[data-op="stem.conv"] rect')
    by_time = rect.get_attribute("fill")
    one(browser, '#colour option[value="type"]').click()
    assert rect.get_attribute("fill") != by_time
    one(browser, '#which option[value="run"]').click()
    assert one(browser, '.pane[data-graph="run"]').is_displayed()
    one(browser, 'nav button[data-view="operators"]').click()
    one(browser, "tr[data-op]").click()
    assert one(browser, "#details h2").text != ""


def press(browser, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def test_keyboard_control(browser, small_page, tmp_path):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, small_page, tmp_path)
    press(browser, Keys.ARROW_DOWN)
    first = one(browser, "#details h2").text
    press(browser, Keys.ARROW_DOWN)
    second = one(browser, "#details h2").text
    assert second != first
    press(browser, Keys.ARROW_UP)
    assert one(browser, "#details h2").text == first
    before = view_box(browser)
    press(browser, "+")
    assert view_box(browser)[2] < before[2]
    press(browser, "0", "/", "x")
    assert one(browser, "#search").get_attribute("value") == "x"
    press(browser, Keys.ESCAPE)
    link = one(browser, "#details a")
    goal = link.get_attribute("data-go")
    link.send_keys(Keys.ENTER)
    assert one(browser, "#details h2").text == goal
    one(browser, 'nav button[data-view="operators"]').click()
    row = one(browser, ".pane:not([hidden]) tr[data-op]")
    row.send_keys(Keys.ENTER)
    assert one(browser, "#details h2").text == row.get_attribute("data-op")


def test_the_page_follows_the_dark_mode_and_prints_light(browser, small_page, tmp_path):
    open_page(browser, small_page, tmp_path)

    def paper(media: str, scheme: str) -> str:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        arguments = {"media": media, "features": features}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", arguments)
        return one(browser, "body").value_of_css_property("background-color")

    try:
        light = paper("screen", "light")
        assert light.startswith("rgba(255, 255, 255")
        assert paper("screen", "dark") != light
        assert paper("print", "dark") == light
        assert one(browser, "nav").value_of_css_property("display") == "none"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_a_link_to_an_operator(browser, small_page, tmp_path):
    open_page(browser, small_page, tmp_path)
    browser.get((tmp_path / "page.html").as_uri() + "#op=gate")
    browser.refresh()
    assert one(browser, "#details h2").text == "gate"


def test_edges_of_the_selected_operator_are_highlighted_through_the_trunk(browser, tmp_path):
    graph = kuiper.ir.Graph()
    graph.add_operand("x", (1, 2), "f32")
    graph.add_operator("pnnx.Input", "in", outputs=["x"])
    last = "x"
    for i in range(5):  # as in DenseNet: each reads the input, too
        graph.add_operator("nn.Tanh", f"tanh{i}", [last], [f"t{i}"])
        graph.add_operator(
            "pnnx.Expression", f"sum{i}", ["x", f"t{i}"], [f"s{i}"], params={"expr": "add(@0,@1)"}
        )
        last = f"s{i}"
    graph.add_operator("pnnx.Output", "out", [last])
    page = report.page(kuiper.Model(graph), [np.ones((1, 2), np.float32)], title="trunk", runs=1)
    open_page(browser, page, tmp_path)
    click_operator(browser, "sum2")
    near = browser.find_elements("css selector", '.pane[data-graph="file"] path.near')
    named = [(p.get_dom_attribute("data-from"), p.get_dom_attribute("data-to")) for p in near]
    # Its inputs, through three pieces of the trunk, and its readers, but no edges between others.
    assert sorted(named, key=str) == sorted(
        [
            ("in", None),
            ("in", None),
            ("in", None),
            ("in", "sum2"),
            ("tanh2", "sum2"),
            ("sum2", "tanh3"),
        ],
        key=str,
    )


def test_six_hundred_operators_in_a_browser(browser, tmp_path):
    model = kuiper.Model(chain_graph(600, skip=7), optimize=False)
    page = report.page(model, [np.ones((1, 4, 8, 8), np.float32)], title="long", runs=1)
    assert len(page) < 5_000_000
    start = time.monotonic()
    open_page(browser, page, tmp_path)
    # It takes a third of a second; the limit detects quadratic time.
    assert time.monotonic() - start < 20
    field = one(browser, "#search")
    field.send_keys("op577")
    from selenium.webdriver.common.keys import Keys

    field.send_keys(Keys.ENTER)
    assert one(browser, "#details h2").text == "op577"
    box = one(browser, '.pane[data-graph="file"] .op[data-op="op577"] rect').rect
    assert 0 < box["y"] < 900  # scrolled into view
    assert box["width"] > 20


@needs_weights
def test_a_screenshot_of_a_real_model_is_not_blank(browser, tmp_path):
    cv2 = pytest.importorskip("cv2")
    model = kuiper.load(MODELS / "nanodet_m.f16.pnnx.param")
    page = report.page(model, [np.zeros((1, 3, 320, 320), np.float32)], title="nanodet_m", runs=1)
    open_page(browser, page, tmp_path)
    target = tmp_path / "page.png"
    browser.save_screenshot(str(target))
    picture = cv2.imread(str(target))
    assert picture.shape[0] > 500
    colours = np.unique(picture.reshape(-1, 3), axis=0)
    assert len(colours) > 100
