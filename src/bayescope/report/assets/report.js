// Draws the charts in the colours of the theme, and explains a row when one is chosen. Text is set as text, never as HTML.
"use strict";
// What the scripts of other blocks take from here.
const bayescope = (() => {
  const root = document.documentElement;
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figure-data");
  const explorer = document.getElementById("explorer-data") ? read("explorer-data") : null;
  const charts = [...document.querySelectorAll("[data-figure]")];
  const paper = matchMedia("print");
  // Widths of charts on A4 with the style sheet's margins, in pixels.
  const PAPER = { whole: 640, half: 296 };
  const SETTINGS = { displayModeBar: false, responsive: true, displaylogo: false, scrollZoom: false };

  // Colours are told as "@name", for the style sheet's --name; only where a colour is meant, since labels may look alike.
  function themed(value, css, colour) {
    if (Array.isArray(value)) return value.map((each) => themed(each, css, colour));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(
        Object.entries(value).map(([key, each]) => [key, themed(each, css, /color(scale)?$/.test(key))]),
      );
    }
    return colour && typeof value === "string" && value[0] === "@" ? css.getPropertyValue("--" + value.slice(1)).trim() : value;
  }

  // Numbers between −largest and largest as colours between three tones: Plotly complains of numbers as colours of bars.
  function toned(trace, css) {
    if (!trace.meta || !trace.meta.tones) return trace;
    const tones = trace.meta.tones.map((tone) => {
      const hex = css.getPropertyValue("--" + tone.slice(1)).trim();
      return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    });
    const mix = (value) => {
      const share = Math.min(1, Math.abs(value) / trace.meta.largest);
      const end = tones[value < 0 ? 0 : 2];
      return `rgb(${tones[1].map((from, k) => Math.round(from + share * (end[k] - from))).join(",")})`;
    };
    return { ...trace, marker: { ...trace.marker, color: trace.marker.color.map(mix) } };
  }

  function draw(chart) {
    const css = getComputedStyle(root);
    const tone = (name) => css.getPropertyValue("--" + name).trim();
    const figure = figures[chart.dataset.figure];
    const width = paper.matches ? { width: chart.closest(".half, .small") ? PAPER.half : PAPER.whole } : { autosize: true };
    const frame = {
      ...width,
      height: Number(chart.dataset.height),
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: tone("sans"), color: tone("ink"), size: 12 },
      hoverlabel: {
        bgcolor: tone("card"),
        bordercolor: tone("line"),
        align: "left",
        font: { family: tone("sans"), color: tone("ink"), size: 12 },
      },
    };
    const data = themed(figure.data.map((trace) => toned(trace, css)), css, false);
    const drawn = Plotly.react(chart, data, { ...frame, ...themed(figure.layout, css, false) }, SETTINGS);
    return Promise.resolve(drawn).then(() => { chart.dataset.drawn = "yes"; });
  }

  const drawAll = () => charts.forEach(draw);

  // Each effect has a scale of its own, until all are to have one.
  for (const box of document.querySelectorAll(".one-scale")) {
    box.closest(".live").hidden = false;
    box.addEventListener("change", () => {
      for (const name of box.dataset.figures.split(" ")) {
        const { meta } = figures[name].layout;
        figures[name].layout[meta.axis].range = box.checked ? meta.common : meta.own;
        draw(charts.find((each) => each.dataset.figure === name));
      }
    });
  }

  // The theme: the system's until somebody chooses.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("bayescope-theme", root.dataset.theme);
    } catch {
      // The choice holds for this visit.
    }
    drawAll();
  });
  dark.addEventListener("change", drawAll);
  // On paper everything is light and as wide as the page.
  paper.addEventListener("change", drawAll);

  const capital = (name) => name.slice(0, 1).toUpperCase() + name.slice(1);

  // One row and its reasons.
  const body = document.getElementById("explanation-body");
  let chosen = -1;

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  // A number with as many digits after the point as the largest of its kind has use for.
  function shown(value, largest, sign) {
    const digits = Math.min(8, Math.max(0, 2 - Math.floor(Math.log10(largest || 1))));
    const text = value.toFixed(digits);
    return ((sign && Number(text) > 0 ? "+" : "") + (Number(text) === 0 ? text.replace("-", "") : text)).replace("-", "−");
  }
  const percent = (share) => (100 * share).toFixed(share < 0.1 || share > 0.9 ? 1 : 0) + "\u00a0%";

  // [name, text, value, low, high, tint, kind] lines as a table with bars between the ends of `span`.
  function barTable(caption, lines, span) {
    const table = element("table", "", { class: "bars" });
    table.append(element("caption", caption));
    const rows = element("tbody", "");
    const place = (at) => (100 * (at - span[0])) / (span[1] - span[0] || 1);
    for (const line of lines) {
      const row = element("tr", "", { class: line.kind });
      row.append(element("th", line.name, { scope: "row" }));
      const track = element("td", "", { class: "track", "aria-hidden": "true" });
      if (line.tint) {
        const box = element("div", "");
        const [from, to] = [place(0), place(line.value)].sort((a, b) => a - b);
        const add = (kind, left, width) => {
          const mark = element("i", "", { class: kind });
          mark.style.left = left + "%";
          if (width !== undefined) mark.style.width = width + "%";
          box.append(mark);
        };
        add("zero", place(0));
        add("length " + line.tint, from, to - from);
        if (line.high > line.low) add("whisker", place(line.low), place(line.high) - place(line.low));
        track.append(box);
      }
      const numbers = element("td", line.text, { class: "number" });
      if (line.interval) numbers.append(" ", element("small", line.interval));
      row.append(track, numbers);
      rows.append(row);
    }
    table.append(rows);
    return table;
  }

  function probabilities(row) {
    const order = row.probs.map((_, k) => k).sort((a, b) => row.probs[b][0] - row.probs[a][0]).slice(0, 8);
    const lines = order.map((k) => {
      const [value, low, high] = row.probs[k];
      return { name: explorer.classes[k], text: percent(value), interval: `${percent(low)} to ${percent(high)}`, value, low, high, tint: "accent", kind: "class" };
    });
    return barTable("Class probabilities with 95\u00a0% intervals", lines, [0, 1]);
  }

  function reasons(row, output) {
    const parts = row.parts[output];
    const bars = parts.filter((part) => part[4] === "part");
    const span = [Math.min(0, ...bars.map((part) => part[2])), Math.max(0, ...bars.map((part) => part[3]))];
    const largest = Math.max(...parts.map((part) => Math.abs(part[1])));
    const lines = parts.map(([name, value, low, high, kind]) => ({
      name, value, low, high, kind,
      text: shown(value, largest, kind === "part"),
      interval: high > low ? `${shown(low, largest)} to ${shown(high, largest)}` : "",
      tint: kind === "part" ? (value > 0 ? "high" : "low") : "",
    }));
    const caption = explorer.sums
      ? `Contributions to the prediction, in ${explorer.unit}, with 95\u00a0% intervals; they sum to the last line.`
      : `What the prediction would lose, in ${explorer.unit}, if this one value were the usual one.`;
    return barTable(caption, lines, span);
  }

  function chooser(row, place) {
    const label = element("label", "Reasons for ");
    const select = element("select", "", { id: "output" });
    explorer.outputs.forEach((name, k) => select.append(element("option", name, { value: String(k) })));
    select.value = String(row.output);
    label.append(select);
    select.addEventListener("change", () => place.replaceChildren(reasons(row, Number(select.value))));
    return label;
  }

  function explain(place) {
    const row = explorer.rows[place];
    document.getElementById("explanation-heading").textContent = `${capital(row.name)} and its reasons`;
    const told = element("p", `Predicted ${row.predicted}, ${row.interval}. Truth: `, { class: "told" });
    const wrong = row.right === false && explorer.classes.length > 0;
    told.append(element("span", row.truth, wrong ? { class: "wrong" } : {}));
    if (wrong) told.append(" (wrong)");
    const why = element("div", "");
    why.append(reasons(row, row.output));
    body.replaceChildren(told, ...(row.probs.length ? [probabilities(row)] : []), ...(explorer.outputs.length > 1 ? [chooser(row, why)] : []), why);
  }

  // A ring about a point of a chart, in place of the one before: one more trace.
  function mark(name, x, y) {
    const marker = { size: 17, symbol: "circle-open", color: "@ink", line: { width: 2 } };
    const ring = { type: "scatter", mode: "markers", name: "chosen", showlegend: false, hoverinfo: "skip", x: [x], y: [y], marker };
    const figure = figures[name];
    if (!figure) return;
    figure.data = [...figure.data.filter((trace) => trace.name !== "chosen"), ring];
    draw(charts.find((each) => each.dataset.figure === name));
  }

  function ring(place) {
    const own = figures.rows.data.find((trace) => (trace.customdata || []).includes(place));
    if (own) mark("rows", own.x[own.customdata.indexOf(place)], own.y[own.customdata.indexOf(place)]);
  }

  function choose(place, scroll) {
    chosen = (place + explorer.rows.length) % explorer.rows.length;
    for (const line of document.querySelectorAll("tr[data-place]")) {
      const own = Number(line.dataset.place) === chosen;
      line.classList.toggle("chosen", own);
      if (own) line.setAttribute("aria-current", "true");
      else line.removeAttribute("aria-current");
    }
    explain(chosen);
    compare();
    ring(chosen);
    const panel = document.getElementById("explanation");
    const box = panel.getBoundingClientRect();
    if (scroll && (box.top > innerHeight - 120 || box.bottom < 120)) panel.scrollIntoView({ block: "start" });
  }

  // Two rows side by side: what makes the difference between their predictions.
  const comparison = document.getElementById("comparison");
  let kept = -1;

  // [name, value] of the parts of a row: all of them where the page can compute them, else the largest.
  function partsOf(place, output) {
    const all = bayescope.contributions ? bayescope.contributions(place, output) : null;
    return all || explorer.rows[place].parts[output].filter((part) => part[4] === "part").map(([name, value]) => [...name.split(" = ", 1), value]);
  }

  function compare() {
    const button = document.getElementById("keep");
    button.textContent = kept < 0 ? "Compare with another row" : `Stop comparing with ${explorer.rows[kept].name}`;
    button.setAttribute("aria-pressed", String(kept >= 0));
    comparison.replaceChildren();
    if (kept < 0) return;
    if (kept === chosen) return comparison.append(element("p", "Choose the other row.", { class: "muted" }));
    const output = explorer.rows[chosen].output;
    const [here, there] = [new Map(partsOf(chosen, output)), new Map(partsOf(kept, output))];
    const names = [...new Set([...here.keys(), ...there.keys()])];
    const known = names.filter((name) => here.has(name) && there.has(name));
    const lines = known.map((name) => ({ name, value: here.get(name) - there.get(name) })).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const totals = [chosen, kept].map((place) => explorer.rows[place].parts[output].at(-1)[1]);
    const shownLines = lines.slice(0, 10);
    const largest = Math.max(...totals.map(Math.abs), ...lines.map((line) => Math.abs(line.value)));
    const rest = totals[0] - totals[1] - shownLines.reduce((sum, line) => sum + line.value, 0);
    const rows = shownLines.map((line) => ({ ...line, text: shown(line.value, largest, true), low: 0, high: 0, tint: line.value > 0 ? "high" : "low", kind: "part" }));
    if (explorer.sums) rows.push({ name: "all else", text: shown(rest, largest, true), kind: "rest" });
    rows.push({ name: explorer.sums ? "together" : "prediction", text: shown(totals[0] - totals[1], largest, true), kind: "total" });
    const ends = [Math.min(0, ...shownLines.map((line) => line.value)), Math.max(0, ...shownLines.map((line) => line.value))];
    const of = explorer.outputs.length > 1 ? ` for ${explorer.outputs[output]}` : "";
    comparison.append(barTable(`${capital(explorer.rows[chosen].name)} less ${explorer.rows[kept].name}${of}, in ${explorer.unit}: ${shown(totals[0], largest)} less ${shown(totals[1], largest)}`, rows, ends));
  }

  // Rows by their numbers, classes and values: words, or columns with bounds, with commas between.
  const BOUNDS = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "=": (a, b) => a === b };
  function searched() {
    const table = explorer.table || read("whatif-data");
    const value = (place, k) => {
      const at = table.rows[place][k], labels = table.columns[k].labels;
      return at === null ? "missing" : labels ? labels[at] : at;
    };
    const texts = explorer.rows.map((row, place) =>
      [row.name, row.predicted, row.truth, ...table.columns.map((column, k) => `${column.name} = ${value(place, k)}`)].join(" \n").toLowerCase());
    const fits = (place, word) => {
      const [, name, bound, wanted] = /^(.+?)\s*(<=|>=|<|>|=)\s*(.+)$/.exec(word) || [];
      const k = name === undefined ? -1 : table.columns.findIndex((column) => column.name.toLowerCase() === name);
      if (k < 0) return texts[place].includes(word);
      const own = value(place, k);
      return typeof own === "number" ? BOUNDS[bound](own, Number(wanted)) : bound === "=" && own.toLowerCase() === wanted;
    };
    const text = document.getElementById("row-text"), filter = document.getElementById("row-filter");
    const list = document.getElementById("row-results"), counted = document.getElementById("row-count");
    const search = () => {
      const words = text.value.toLowerCase().split(",").map((word) => word.trim()).filter(Boolean);
      const found = explorer.rows.map((_, place) => place).filter((place) =>
        (!filter.value || explorer.rows[place].right === (filter.value === "right")) && words.every((word) => fits(place, word)));
      const idle = !words.length && !filter.value;
      counted.hidden = idle;
      counted.textContent = `${found.length} of ${explorer.rows.length} rows${found.length > 20 ? "; the first 20:" : ""}`;
      list.replaceChildren(...(idle ? [] : found.slice(0, 20)).map((place) => {
        const row = explorer.rows[place], line = element("li", ""), button = element("button", row.name, { type: "button", class: "row", "aria-label": `Explain ${row.name}` });
        button.addEventListener("click", () => choose(place, true));
        line.append(button, ` ${row.predicted}, truth ${row.truth}`);
        return line;
      }));
    };
    const [right, wrong] = explorer.names;
    filter.options[1].textContent = wrong;
    filter.options[2].textContent = right;
    const numeric = table.columns.findIndex((column, k) => !column.labels && typeof value(0, k) === "number");
    document.getElementById("row-example").textContent = numeric < 0 ? `${table.columns[0].name} = ${value(0, 0)}` : `${table.columns[numeric].name} > ${value(0, numeric)}`;
    text.addEventListener("input", search);
    filter.addEventListener("change", search);
    const form = document.getElementById("row-search");
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = false;
  }

  drawAll();
  if (body) {
    searched();
    const keep = document.getElementById("keep");
    keep.addEventListener("click", () => {
      kept = kept < 0 ? chosen : -1;
      compare();
    });
    keep.parentElement.hidden = false;
    for (const line of document.querySelectorAll("tr[data-place]")) {
      line.addEventListener("click", () => choose(Number(line.dataset.place), true));
    }
    document.getElementById("explanation").querySelector(".steps").hidden = false;
    document.getElementById("previous").addEventListener("click", () => choose(chosen - 1, false));
    document.getElementById("next").addEventListener("click", () => choose(chosen + 1, false));
    charts.find((each) => each.dataset.figure === "rows").on("plotly_click", (event) => {
      const place = event.points[0].customdata;
      if (place !== undefined) choose(place, true);
    });
    choose(0, false);
  }
  return { read, element, shown, percent, barTable, explorer, mark, chosen: () => chosen };
})();
