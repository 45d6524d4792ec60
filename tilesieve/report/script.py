"""The page's own script: draw the figures in the colours of the ground, let legends and selectors switch them."""

from tilesieve.report.scrub_script import SCRUB

_START = """
(() => {
  "use strict";
  const block = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = block("study-figures"), choices = block("study-choices");
  const root = document.documentElement;
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  // plotly.js 4 puts a button on every plot that uploads its data to a server; a study is nobody's but its owner's.
  const config = {
    showSendToCloud: false, plotlyServerURL: "", displaylogo: false, responsive: true,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };

  // The figures come without ink: it depends on the reader's ground, which only the browser knows.
  const inked = (layout) => {
    const own = structuredClone(layout);
    own.font = {...own.font, color: color("--ink")};
    own.hoverlabel = {...own.hoverlabel, bgcolor: color("--card"), bordercolor: color("--line"),
                      font: {color: color("--ink"), family: own.font.family}};
    own.modebar = {bgcolor: "rgba(0,0,0,0)", color: color("--soft"), activecolor: color("--ink")};
    for (const axis of Object.keys(own).filter((key) => /^[xy]axis/.test(key))) {
      Object.assign(own[axis], {gridcolor: color("--grid"), linecolor: color("--line"),
                                zerolinecolor: color("--soft")});
    }
    return own;
  };
  // Nought in a signed heat map is the ground's own colour.
  const stop = ([at, tone]) => [at, tone.startsWith("var(") ? color(tone.slice(4, -1)) : tone];
  const tinted = (data) => data.map((trace) =>
    Array.isArray(trace.colorscale) ? {...trace, colorscale: trace.colorscale.map(stop)} : trace);
  const draw = (id) => Plotly.react(id, tinted(figures[id].data), inked(figures[id].layout), config);
  const drawAll = () => Promise.all(Object.keys(figures).map(draw));

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      for (const plot of button.closest(".group").querySelectorAll(".plot")) {
        for (const figure of [figures[plot.id], ...(choices[plot.id] || [])]) {
          for (const trace of figure.data) {
            if (trace.meta === button.dataset.key) trace.visible = on;
          }
        }
        draw(plot.id);
      }
    });
  }

  // One position of a selector: its figure, and of the tables below only its own.
  const choose = (id, at) => {
    figures[id] = choices[id][at];
    const tables = document.getElementById(id).parentElement.querySelectorAll("[data-choice]");
    tables.forEach((table) => { table.hidden = true; });
    const own = [...tables].filter((table) => table.dataset.choice === `${id}/${at}`);
    own.forEach((table) => { table.hidden = false; });
  };
  const step = (list, by) => {
    const to = Math.min(list.length - 1, Math.max(0, list.selectedIndex + by));
    if (to !== list.selectedIndex) {
      list.selectedIndex = to;
      list.dispatchEvent(new Event("change"));
    }
  };
  for (const list of document.querySelectorAll("select[data-plots]")) {
    const ids = list.dataset.plots.split(" ");
    // A browser remembers a selector over a reload, so read it instead of assuming the first.
    ids.forEach((id) => choose(id, Math.max(0, list.selectedIndex)));
    list.addEventListener("change", () => ids.forEach((id) => { choose(id, list.selectedIndex); draw(id); }));
  }
  for (const list of document.querySelectorAll(".row select")) {
    for (const button of list.closest(".row").querySelectorAll(".step")) {
      button.addEventListener("click", () => step(list, Number(button.dataset.step)));
    }
  }
"""

_END = """
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll().then(() => { root.dataset.drawn = "yes"; });
})();
"""

JS = _START + SCRUB + _END
