"""The page in a real browser: drawn, offline, quiet, and with the numbers of its own data."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_checks import embedded, numbers_of_study
from report_sample import study as sample_study
from test_report_page import HOSTILE, PARTIAL

from tilesieve.report import write_report
from tilesieve.report.plots import DOTS
from tilesieve.report.timeline import thinned

Open = Callable[..., Any]

# Compares the cells with the embedded JSON inside the browser; returns how many agree, and those that do not.
COMPARE = """() => {
  const study = JSON.parse(document.getElementById("study-data").textContent);
  const runs = Object.fromEntries(study.runs.map((run) => [run.name, run]));
  const bad = [], cells = [...document.querySelectorAll("[data-field]")];
  for (const {dataset: {run, field, value}} of cells) {
    const wanted = field.split(".").reduce((at, key) => at[key], runs[run]);
    if (!Object.is(JSON.parse(value), wanted)) bad.push(`${run} ${field}: ${value} is not ${wanted}`);
  }
  return {cells: cells.length, bad};
}"""


@pytest.fixture(scope="module")
def open_page(chromium: Any) -> Iterator[Open]:
    """Opens a file, waits until it says that it has drawn, and keeps what went wrong in `page.troubles`."""
    pages: list[Any] = []

    def load(path: Path, width: int = 1280, scheme: str = "light", drawn: bool = True) -> Any:
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        pages.append(page)
        page.troubles, page.requests = [], []
        page.on("console", lambda said: page.troubles.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(path.as_uri())
        if drawn:
            page.wait_for_selector("html[data-drawn]", timeout=60_000)
        return page

    yield load
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def wide(open_page: Open, page_file: Path) -> Any:
    return open_page(page_file)


def points(page: Any, id_: str) -> int:
    """Marks of a plot that have a size on the screen."""
    return page.evaluate(
        """(id) => [...document.querySelectorAll(`#${id}.js-plotly-plot .point`)].filter((mark) => {
             const shape = mark.tagName === "path" ? mark : mark.querySelector("path");
             const box = shape.getBoundingClientRect();
             return box.width > 0 && box.height > 0;
           }).length""",
        id_,
    )


def test_it_is_quiet_and_fetches_nothing(wide: Any, page_file: Path) -> None:
    assert wide.troubles == []
    assert wide.requests == [page_file.as_uri()]


def test_no_button_uploads_the_study(wide: Any) -> None:
    titles = "all => all.map((button) => button.dataset.title || '')"
    ours = wide.eval_on_selector_all(".plot .modebar-btn", titles)
    assert "Zoom" in ours and not any("Share" in title for title in ours)
    # With plotly's own settings the button is there: the title asked for above is the right one.
    wide.evaluate("""() => {
        document.body.insertAdjacentHTML("beforeend", '<div id="careless"></div>');
        return Plotly.newPlot("careless", [{y: [1, 2]}]).then(() => 0);
    }""")
    careless = wide.eval_on_selector_all("#careless .modebar-btn", titles)
    wide.evaluate("document.getElementById('careless').remove()")
    assert any("Share" in title for title in careless)


def test_a_fetch_would_be_seen(open_page: Open, page_file: Path, tmp_path: Path) -> None:
    leaky = tmp_path / "leaky.html"
    leaky.write_text(page_file.read_text().replace("<main>", "<main><img src='http://127.0.0.1:9/a.png'>", 1))
    assert open_page(leaky, drawn=False).troubles != [], "the page's own policy must refuse it"


def test_the_numbers_are_those_of_the_data(wide: Any) -> None:
    result = wide.evaluate(COMPARE)
    assert result["bad"] == [] and result["cells"] == len(numbers_of_study(sample_study()))


def test_a_broken_number_is_seen(wide: Any) -> None:
    change = "(cell, value) => { const old = cell.dataset.value; cell.dataset.value = value; return old; }"
    cell = wide.locator('[data-run="exact-256"][data-field="nll"]')
    old = cell.evaluate(change, "3.7")
    assert [line.split(":")[0] for line in wide.evaluate(COMPARE)["bad"]] == ["exact-256 nll"]
    cell.evaluate(change, old)


def test_every_plot_is_drawn(wide: Any) -> None:
    study = sample_study()
    sparse = [run for run in study["runs"] if run["layers"]]
    assert points(wide, "plot-budget") == points(wide, "plot-bytes") == len(sparse)
    assert wide.locator("#plot-budget .scatterlayer .js-line").count() == 2, "dense and the exact curve"
    for id_ in ("plot-mass-mean", "plot-mass-worst", "plot-overlap"):
        assert points(wide, id_) == sum(len(run["layers"]) for run in sparse)
    for at, look in enumerate(study["timeline"]):
        drawn = points(wide, f"plot-timeline-{at}")
        assert DOTS // 3 < drawn == sum(len(picks) for _, picks in thinned(look, DOTS))
    for at, phase in enumerate(("pass", "decode")):
        bars = sum(stage["phase"] == phase for run in study["runs"] for stage in run["stages"])
        assert points(wide, f"plot-stages-{at}") == bars
    assert wide.locator(".plot").count() == wide.locator(".plot.js-plotly-plot").count() == 9


def test_a_plot_without_data_is_seen(wide: Any) -> None:
    wide.evaluate("""() => {
        const {data, layout} = document.getElementById("plot-bytes");
        window.kept = [data, layout];
        return Plotly.react("plot-bytes", [], {}).then(() => 0);
    }""")
    assert points(wide, "plot-bytes") == 0
    wide.evaluate("Plotly.react('plot-bytes', ...window.kept).then(() => 0)")
    assert points(wide, "plot-bytes") > 0


def test_the_legend_switches_a_run_in_every_panel(wide: Any) -> None:
    before = points(wide, "plot-mass-mean")
    button = wide.locator('#mass .legend button[data-key="window-256"]')
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert points(wide, "plot-mass-mean") == points(wide, "plot-overlap") == before - 30
    button.click()
    assert points(wide, "plot-mass-mean") == before


@pytest.mark.parametrize("width", [1280, 420])
def test_the_page_never_scrolls_sideways(width: int, open_page: Open, page_file: Path) -> None:
    page = open_page(page_file, width)
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    narrow = page.evaluate("[...document.querySelectorAll('.plot')].filter((p) => p.clientWidth < 300).length")
    assert narrow == 0 and page.troubles == []
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<div style=\"width:2000px\">wide</div>')")
    assert page.evaluate("document.documentElement.scrollWidth") > width, "this check could not fail"


def test_the_ink_follows_the_ground(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file, scheme="dark")
    sync_api = pytest.importorskip("playwright.sync_api")
    ink = "getComputedStyle(document.querySelector('#plot-budget .xtick text')).fill"
    assert page.evaluate(ink) == "rgb(230, 233, 237)"
    page.emulate_media(color_scheme="light")
    # Not wait_for_function: it evaluates a string in the page, which the page's policy refuses.
    sync_api.expect(page.locator("#plot-budget .xtick text").first).to_have_css("fill", "rgb(27, 32, 39)")


def test_hostile_strings_run_nothing(open_page: Open, tmp_path: Path) -> None:
    study = sample_study() | {"timeline": []}
    study["meta"] |= {"model": HOSTILE, "text": HOSTILE}
    for at, run in enumerate(study["runs"]):
        run |= {"name": f"{at} {HOSTILE}", "label": HOSTILE}
        run["continuation"]["text"] = HOSTILE
    page = open_page(write_report(study, tmp_path / "study.html"))
    page.hover("#plot-budget .point >> nth=1", force=True)
    assert page.evaluate("window.hacked") is None and page.locator("img").count() == 0
    assert page.troubles == []


@pytest.mark.parametrize("name", ["meta", "dense", "not finite", "timeline of no picks", "empty stage"])
def test_partial_studies_are_quiet(name: str, open_page: Open, tmp_path: Path) -> None:
    path = write_report(PARTIAL[name], tmp_path / "study.html")
    figures = embedded(path.read_text(), "study-figures")
    page = open_page(path, drawn=bool(figures))
    assert page.troubles == [] and page.locator(".js-plotly-plot").count() == len(figures)
