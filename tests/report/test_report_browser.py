"""The page in a real browser: drawn, offline, quiet, and with the numbers of its own data."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_checks import embedded, numbers_of_study
from report_sample import study as sample_study
from report_sections import trace
from test_report_page import HOSTILE, PARTIAL, poison

from tilesieve.report import write_compare, write_report

Open = Callable[..., Any]

# Compares the cells with the embedded JSON inside the browser; returns how many agree, and those that do not.
COMPARE = """() => {
  const study = JSON.parse(document.getElementById("study-data").textContent);
  const runs = Object.fromEntries((study.runs || []).map((run) => [run.name, run]));
  const bad = [], cells = [...document.querySelectorAll("[data-field]")];
  for (const {dataset: {run, field, value}} of cells) {
    const wanted = field.split(".").reduce((at, key) => at[key] ?? null, run ? runs[run] : study);
    if (!Object.is(JSON.parse(value), wanted)) bad.push(`${run} ${field}: ${value} is not ${wanted}`);
  }
  return {cells: cells.length, bad};
}"""


# What is drawn in some plots, as a number: other pixels or other paths, another number.
DRAWN = """(ids) => {
  let sum = 0;
  for (const id of ids) {
    const marks = document.querySelectorAll(`#${id} .main-svg`);
    const text = [...marks].map((svg) => svg.innerHTML).join("") + id;
    for (let at = 0; at < text.length; at++) sum = (sum * 31 + text.charCodeAt(at)) | 0;
  }
  return sum;
}"""
# Plots without a mark, a bar, a line or a heat map that has a size.
EMPTY = """() => [...document.querySelectorAll(".plot")].filter((plot) => {
  const marks = plot.querySelectorAll(".point path, path.point, .js-line, .heatmaplayer image");
  return ![...marks].some((mark) => {
    const box = mark.getBoundingClientRect();
    return box.width > 0 || box.height > 0;
  });
}).map((plot) => plot.id)"""
# Tick labels of one axis that print over each other.
OVERLAPPING = """() => [...document.querySelectorAll(".plot")].flatMap((plot) => ["xtick", "ytick"].map((axis) => {
  const boxes = [...plot.querySelectorAll(`.${axis} text`)].map((text) => text.getBoundingClientRect());
  const hit = boxes.some((a, i) => boxes.slice(i + 1).some((b) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
  return hit ? `${plot.id} ${axis}` : "";
})).filter(Boolean)"""


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


@pytest.fixture(scope="module")
def small(open_page: Open, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A page for clicking through: every picture, fewer layers."""
    return open_page(write_report(sample_study(6, 3), tmp_path_factory.mktemp("small") / "study.html"))


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
    assert result["bad"] == [] and result["cells"] > len(numbers_of_study(sample_study()))


def test_a_broken_number_is_seen(wide: Any) -> None:
    change = "(cell, value) => { const old = cell.dataset.value; cell.dataset.value = value; return old; }"
    cell = wide.locator('[data-run="exact-256"][data-field="nll"]').first
    old = cell.evaluate(change, "3.7")
    assert [line.split(":")[0] for line in wide.evaluate(COMPARE)["bad"]] == ["exact-256 nll"]
    cell.evaluate(change, old)


def test_every_plot_is_drawn(wide: Any) -> None:
    study = sample_study()
    sparse = [run for run in study["runs"] if run["layers"]]
    beside = len(study["sections"]["ladder"]["rungs"]) + len(study["sections"]["sensitivity"]["exempt"])
    assert points(wide, "plot-budget") == points(wide, "plot-bytes") - beside == len(sparse)
    assert wide.locator("#plot-budget .scatterlayer .js-line").count() == 2, "dense and the exact curve"
    for id_ in ("plot-mass-mean", "plot-mass-worst", "plot-overlap"):
        assert points(wide, id_) == sum(len(run["layers"]) for run in sparse)
    for at, phase in enumerate(("pass", "decode")):
        bars = sum(stage["phase"] == phase for run in study["runs"] for stage in run["stages"])
        assert points(wide, f"plot-stages-{at}") == bars
    count = wide.locator(".plot").count()
    assert count == wide.locator(".plot.js-plotly-plot").count() > 30
    assert wide.evaluate(EMPTY) == []
    assert wide.locator("#retrieval select").evaluate("(list) => list.selectedIndex") == 1, "not on dense"


def test_a_map_without_numbers_says_so(open_page: Open, tmp_path: Path) -> None:
    study = sample_study(4, 2)
    for cell in study["sections"]["retrieval"]["runs"][0]["cells"]:
        cell["held"] = None
    page = open_page(write_report(study, tmp_path / "study.html"))
    page.select_option("#retrieval select", label="dense")
    assert page.evaluate(EMPTY) == ["plot-retrieval-held"]
    assert "not measured" in page.locator("#plot-retrieval-held .annotation").first.text_content()


def test_ticks_are_plain_numbers(open_page: Open, tmp_path: Path) -> None:
    study = sample_study(6, 3)
    for row in study["sections"]["sensitivity"]["layers"]:
        row |= {"cost": row["cost"] / 100, "heads": [cost / 100 for cost in row["heads"]]}
    page = open_page(write_report(study, tmp_path / "study.html"))
    plots = ("plot-sensitivity-layers", "plot-sensitivity")
    texts = [page.locator(f"#{id_} :is(.ytick, .cbaxis, .xtick) text").all_text_contents() for id_ in plots]
    assert all(any("0.00" in text for text in each) for each in texts)
    ticks = page.locator(":is(.xtick, .ytick, .cbaxis) text").all_text_contents()
    assert not [tick for tick in ticks if re.search(r"\d[fpnµmkMBG]$", tick)]


@pytest.mark.parametrize("layer", [0, 7])
def test_one_query_and_one_layer_have_whole_ticks(layer: int, open_page: Open, tmp_path: Path) -> None:
    study = trace()
    look = study["timeline"][0]
    study["timeline"] = [look | {"layer": layer, "queries": [4000], "cells": look["cells"][:1], "count": [70],
                                 "length": 4096}]  # fmt: skip
    study["sections"]["gather"] |= {"runs_by_layer": [41.0], "layer_ids": [layer]}
    study["overlaps"] |= {"layers": [[1.0]], "layer_ids": [layer]}
    for step in study["overlaps"]["steps"]:
        step["layers"] = step["layers"][:1]
    page = open_page(write_report(study, tmp_path / "study.html"))

    def ticks(plot: str, axis: str) -> list[str]:
        return [text.replace(",", "") for text in page.locator(f"#{plot} .{axis}tick text").all_text_contents()]

    assert ticks("plot-timeline", "x") == ["4000"]
    for plot in ("plot-gather-layers", "plot-overlap-layers", "plot-overlap-lag-layers"):
        assert ticks(plot, "x") == [str(layer)], plot
    assert ticks("plot-overlap-layers", "y") == [str(layer)]
    assert page.evaluate(EMPTY) == [] and page.troubles == []


def test_letters_over_lines_do_not_overlap(open_page: Open, tmp_path: Path) -> None:
    study = sample_study(4, 2)
    study["sections"]["limits"]["lines"] = [{"name": str(k), "k": k} for k in (317, 1110, 341, 1730, 325)]
    for width in (1280, 390):
        page = open_page(write_report(study, tmp_path / "study.html"), width)
        boxes = [note.bounding_box() for note in page.locator("#plot-budget .annotation-text-g text").all()]
        assert len(boxes) == 5
        for at, a in enumerate(boxes):
            for b in boxes[at + 1 :]:
                apart = abs(a["x"] - b["x"]) >= a["width"] or abs(a["y"] - b["y"]) >= 13
                assert apart, f"{a} and {b} at {width}"
        top = page.locator("#plot-budget").bounding_box()["y"]
        assert min(box["y"] for box in boxes) >= top


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


def plots_of(control: Any, within: str) -> list[str]:
    return control.evaluate(f"(c) => [...c.closest('{within}').querySelectorAll('.plot')].map((plot) => plot.id)")


def test_every_legend_entry_switches_something(small: Any) -> None:
    buttons = small.locator(".legend button")
    assert buttons.count() > 25
    for at in range(buttons.count()):
        button = buttons.nth(at)
        ids, name = plots_of(button, ".group"), button.text_content()
        before = small.evaluate(DRAWN, ids)
        button.click()
        assert small.evaluate(DRAWN, ids) != before, f"{name} switches nothing off"
        button.click()
    assert small.locator(".legend button[aria-pressed=false]").count() == 0 and small.troubles == []


def test_every_selector_position_draws_its_own(small: Any) -> None:
    lists = small.locator("select[data-plots]")
    assert lists.count() == 4
    for at in range(lists.count()):
        pick = lists.nth(at)
        ids, seen = pick.get_attribute("data-plots").split(), set()
        for place in range(pick.locator("option").count()):
            pick.select_option(index=place)
            seen.add(small.evaluate(DRAWN, ids))
            for id_ in ids:
                shown = f'details[data-choice^="{id_}/"]:not([hidden])'
                assert [d.get_attribute("data-choice") for d in small.locator(shown).all()] == [f"{id_}/{place}"]
        assert len(seen) == place + 1 > 1, f"{ids}: two choices draw the same"
        back = pick.locator("xpath=ancestor::div[1]").locator('.step[data-step="-1"]')
        back.click()
        assert pick.evaluate("(list) => list.selectedIndex") == place - 1 and small.evaluate(DRAWN, ids) in seen
        pick.select_option(index=0)
    assert small.troubles == []


def test_the_timeline_goes_everywhere(small: Any) -> None:
    study, drawn = sample_study(6, 3), set()
    at = 0
    for run in range(2):
        small.select_option("#scrub-run", index=run)
        for layer in range(3):
            small.locator('[data-slide="layer"] input').fill(str(layer))
            for head in range(4):
                small.locator('[data-slide="head"] input').fill(str(head))
                look = study["timeline"][at]
                facts = small.locator("#scrub-facts data").all()
                for key, fact in zip(("near", "spread", "stay", "drift"), facts, strict=True):
                    assert fact.get_attribute("data-field") == f"timeline.{at}.{key}"
                    assert float(fact.get_attribute("data-value")) == look[key]
                queries = small.locator("#scrub-table tbody tr")
                assert queries.count() == len(look["queries"])
                ninth = queries.nth(9).locator("data").all_text_contents()
                assert ninth == [str(look["queries"][9]), str(look["count"][9])]
                z = small.evaluate("() => document.getElementById('plot-timeline').data[0].z.map((r) => [...r])")
                for column, cells in enumerate(look["cells"]):
                    bits = bin(int("1" + cells, 16))[3:]
                    assert [row[column] == 1 for row in z] == [bit == "1" for bit in bits[: len(z)]]
                drawn.add(small.evaluate(DRAWN, ["plot-timeline"]))
                at += 1
        assert small.evaluate(COMPARE)["bad"] == []
    assert len(drawn) == at == len(study["timeline"]) and small.troubles == []


def test_the_sliders_obey_keys_and_buttons(small: Any) -> None:
    small.select_option("#scrub-run", index=0)
    slider = small.locator('[data-slide="layer"] input')
    slider.fill("0")
    title = small.locator("#timeline figure h3")
    slider.focus()
    small.keyboard.press("ArrowRight")
    assert "layer 3" in title.inner_text() and slider.get_attribute("aria-valuetext") == "3"
    small.locator('[data-slide="layer"] .step[data-step="1"]').click()
    assert "layer 5" in title.inner_text()
    small.locator('[data-slide="head"] input').fill("2")
    assert title.inner_text() == "exact top-256, layer 5, head 1"
    # Another run is shown at the layer and the head at which the sliders stand.
    small.locator('#scrub .row:has(select) .step[data-step="1"]').click()
    assert title.inner_text() == "low rank int8 d16, 256, layer 5, head 1"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_never_scrolls_sideways(width: int, scheme: str, open_page: Open, page_file: Path) -> None:
    page = open_page(page_file, width, scheme)
    page.evaluate("document.querySelectorAll('summary').forEach((fold) => fold.click())")
    assert page.locator("details[open]").count() == page.locator("details").count() > 40
    assert page.evaluate("document.documentElement.scrollWidth") == width
    narrow = page.evaluate("[...document.querySelectorAll('.plot')].filter((p) => p.clientWidth < 300).length")
    assert narrow == 0 and page.troubles == []
    small = page.evaluate("""() => [...document.querySelectorAll(".step, select, input")]
        .filter((c) => c.getBoundingClientRect().height < 44).length""")
    assert small == 0, "too small for a thumb"
    assert page.evaluate(OVERLAPPING) == []
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<div style=\"width:2000px\">wide</div>')")
    assert page.evaluate("document.documentElement.scrollWidth") > width, "this check could not fail"


def test_the_summary_is_whole_on_a_laptop(wide: Any) -> None:
    cut = wide.evaluate("""() => [...document.querySelectorAll("#summary .scroll")]
        .filter((box) => box.scrollWidth > box.clientWidth).length""")
    assert cut == 0


def test_the_ink_follows_the_ground(small: Any) -> None:
    page = small
    page.emulate_media(color_scheme="dark")
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect(page.locator("#plot-budget .xtick text").first).to_have_css("fill", "rgb(230, 233, 237)")
    page.emulate_media(color_scheme="light")
    # Not wait_for_function: it evaluates a string in the page, which the page's policy refuses.
    sync_api.expect(page.locator("#plot-budget .xtick text").first).to_have_css("fill", "rgb(27, 32, 39)")


def test_hostile_strings_run_nothing(open_page: Open, tmp_path: Path) -> None:
    study = sample_study(4, 2)
    poison(study)
    study["meta"] |= {"model": HOSTILE, "text": HOSTILE}
    for at, run in enumerate(study["runs"]):
        run |= {"name": f"{at} {HOSTILE}", "label": HOSTILE}
        run["continuation"]["text"] = HOSTILE
    page = open_page(write_report(study, tmp_path / "study.html"))
    for place in ("#plot-budget .point >> nth=1", "#plot-ladder .point >> nth=1", "#plot-timeline"):
        page.hover(place, force=True)
    assert page.evaluate("window.hacked") is None and page.locator("img").count() == 0
    assert page.troubles == []


@pytest.mark.parametrize("name", ["meta", "not finite", "timeline of no picks"])
def test_partial_studies_are_quiet(name: str, open_page: Open, tmp_path: Path) -> None:
    path = write_report(PARTIAL[name], tmp_path / "study.html")
    figures = embedded(path.read_text(), "study-figures")
    page = open_page(path, drawn=bool(figures))
    assert page.troubles == [] and page.locator(".js-plotly-plot").count() == len(figures)


def test_two_studies_on_one_page(open_page: Open, tmp_path: Path) -> None:
    a, b = sample_study(6, 3), sample_study(6, 3)
    for run in b["sections"]["retrieval"]["runs"]:
        for at, cell in enumerate(run["cells"]):
            cell["right"] *= 1 - 0.01 * at * len(run["name"]) / 10
    page = open_page(write_compare(a, b, tmp_path / "compare.html"), 390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(COMPARE)["bad"] == [] and page.evaluate(COMPARE)["cells"] > 200
    seen = set()
    for place in range(3):
        page.locator("select[data-plots]").select_option(index=place)
        seen.add(page.evaluate(DRAWN, ["plot-compare-right"]))
    assert len(seen) == 3 and page.troubles == []


def test_a_trace_on_a_page(open_page: Open, tmp_path: Path) -> None:
    page = open_page(write_report(trace(), tmp_path / "trace.html"), 390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(EMPTY) == [] and page.evaluate(COMPARE)["bad"] == []
    page.locator('[data-slide="layer"] input').fill("4")
    assert page.locator("#timeline figure h3").inner_text() == "trace, layer 4, head all (one set)"
    assert page.troubles == []
