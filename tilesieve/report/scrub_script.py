"""The script of the one timeline: decode a look's cells, draw them, say its numbers."""

SCRUB = """
  const looks = block("study-looks");
  const scrub = document.getElementById("scrub");
  if (scrub && looks.length) {
    const timeline = block("study-data").timeline;
    const list = document.getElementById("scrub-run");
    const facts = document.getElementById("scrub-facts"), numbers = document.getElementById("scrub-table");
    const heading = document.getElementById("plot-timeline").parentElement.querySelector("h3");
    const unique = (values) => [...new Set(values)];
    const runs = unique(looks.map((look) => look.run));
    for (const run of runs) list.add(new Option(looks.find((look) => look.run === run).label));
    const slide = (key) => {
      const box = scrub.querySelector(`[data-slide="${key}"]`);
      return {box, input: box.querySelector("input"), output: box.querySelector("output"), values: [], wanted: null};
    };
    const layer = slide("layer"), head = slide("head");
    const named = {layer: (value) => value ?? "–", head: (value) => value === -1 ? "all (one set)" : value ?? "–"};

    // The slider keeps the value it stood at, not the place: another run may have other layers.
    const fill = (key, part, values) => {
      part.values = values.sort((a, b) => (a ?? -2) - (b ?? -2));
      const at = Math.max(0, part.values.indexOf(part.wanted));
      part.input.max = part.values.length - 1;
      part.input.value = at;
      part.output.textContent = named[key](part.values[at]);
      part.input.setAttribute("aria-valuetext", part.output.textContent);
      part.box.classList.toggle("lone", part.values.length < 2);
      return part.values[at];
    };
    // "Bit b" of the string, four bits to a digit, the most significant first.
    const held = (cells, b) => (parseInt(cells[b >> 2] || "0", 16) >> (3 - (b & 3))) & 1;
    const entry = (text, field, value) => {
      const cell = document.createElement(field ? "data" : "span");
      cell.textContent = text;
      if (field) Object.assign(cell.dataset, {run: "", field, value: JSON.stringify(value ?? null)});
      return cell;
    };
    const share = (value) => value == null ? "–" : `${(100 * value).toFixed(1)} %`;

    const say = (at, look) => {
      const said = [
        ["near", share, "of the picks lie close behind the query"],
        ["spread", share, "of the cells further back are touched"],
        ["stay", share, "of the picks stay for the next query drawn"],
        ["drift", share, "of the distant picks move along with the query"],
      ];
      facts.replaceChildren(...said.map(([key, show, means]) => {
        const box = document.createElement("p"), note = document.createElement("span");
        note.textContent = means;
        box.append(entry(show(look[key]), `timeline.${at}.${key}`, look[key]), note);
        return box;
      }));
      const table = document.createElement("table"), body = table.createTBody();
      const top = table.createTHead().insertRow();
      for (const title of ["query", "picks"]) {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.textContent = title;
        top.append(cell);
      }
      look.queries.forEach((query, i) => {
        const row = body.insertRow(), count = (look.count || [])[i] ?? null;
        row.insertCell().append(entry(query, `timeline.${at}.queries.${i}`, query));
        row.insertCell().append(count === null ? entry("–") : entry(count, `timeline.${at}.count.${i}`, count));
      });
      const box = document.createElement("div");
      box.className = "scroll tall";
      box.tabIndex = 0;
      box.append(table);
      numbers.replaceChildren(box);
    };

    const figureOf = (known, look) => {
      const count = Math.ceil(look.length / look.bin), last = look.queries[look.queries.length - 1];
      const z = Array.from({length: count}, (_, b) => look.cells.map((cells) => held(cells, b) ? 1 : null));
      const layout = structuredClone(figures["plot-timeline"].layout), first = look.queries[0];
      const side = look.queries.length > 1 ? (last - first) / (look.queries.length - 1) / 2 : 0.5;
      layout.xaxis.range = [first - side, last + side];
      // A little room below zero: the first positions matter too much here to be half hidden by the axis.
      layout.yaxis.range = [-0.02 * look.length, 1.02 * Math.min(look.length, last + 4 * look.bin)];
      // Positions are counted: where few are shown, no tick between two of them.
      for (const axis of [layout.xaxis, layout.yaxis]) {
        const span = axis.range[1] - axis.range[0];
        if (span < 20) Object.assign(axis, {tickmode: "linear", tick0: 0, dtick: Math.ceil(span / 8)});
      }
      return {layout, data: [
        {type: "heatmap", x: look.queries, y0: look.bin / 2 - 0.5, dy: look.bin, z, zmin: 0, zmax: 1,
         showscale: false, colorscale: [[0, known.color], [1, known.color]], hoverongaps: false,
         hovertemplate: `query %{x}<br>looked near %{y:.0f} (${look.bin} positions a cell)<extra></extra>`},
        {type: "scatter", mode: "lines", x: [first - side, last + side], y: [first - side, last + side],
         line: {color: color("--ink"), width: 1.5}, hoverinfo: "skip"},
      ]};
    };

    const show = (redraw = true) => {
      const run = runs[Math.max(0, list.selectedIndex)];
      const mine = looks.filter((look) => look.run === run);
      const l = fill("layer", layer, unique(mine.map((look) => look.layer)));
      const here = mine.filter((look) => look.layer === l);
      const h = fill("head", head, unique(here.map((look) => look.head)));
      const known = here.find((look) => look.head === h), look = timeline[known.at];
      heading.textContent = `${known.label}, layer ${named.layer(l)}, head ${named.head(h)}`;
      figures["plot-timeline"] = figureOf(known, look);
      say(known.at, look);
      return redraw ? draw("plot-timeline") : null;
    };
    list.addEventListener("change", () => show());
    for (const part of [layer, head]) {
      const take = () => { part.wanted = part.values[Number(part.input.value)]; return show(); };
      part.input.addEventListener("input", take);
      for (const button of part.box.querySelectorAll(".step")) {
        button.addEventListener("click", () => {
          part.input.value = Number(part.input.value) + Number(button.dataset.step);
          take();
        });
      }
    }
    show(false);
  }
"""
