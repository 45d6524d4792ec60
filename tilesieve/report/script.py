"""The page's own script: draw the figures in the colours of the ground, let the legend switch series."""

JS = """
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("study-figures").textContent);
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
      Object.assign(own[axis], {gridcolor: color("--grid"), linecolor: color("--line")});
    }
    return own;
  };
  const draw = (id) => Plotly.react(id, figures[id].data, inked(figures[id].layout), config);
  const drawAll = () => Promise.all(Object.keys(figures).map(draw));

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      for (const plot of button.closest("section").querySelectorAll(".plot")) {
        for (const trace of figures[plot.id].data) {
          if (trace.meta === button.dataset.key) trace.visible = on;
        }
        draw(plot.id);
      }
    });
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll().then(() => { root.dataset.drawn = "yes"; });
})();
"""
