// Predicts a row whose values the reader chooses: f = Σ of the parts on their grids, Var f from their roots, and the
// integral over f that the library takes. Text is set as text, never as HTML.
"use strict";
(() => {
  const { read, element, shown, percent, barTable, explorer } = bayescope;
  const data = read("whatif-data");
  const Z = 1.959963984540054; // of a 95 % interval
  const SHOWN = 16; // columns and parts in sight
  const SMALL = 0.005; // of the largest part: summed with others
  const NODES = 4096; // of an integral over several outputs
  const place = document.querySelector(".whatif");
  const answer = place.querySelector(".answer");
  const body = document.getElementById("whatif-body");
  const C = data.outputs;

  // The data -------------------------------------------------------------------------------------------------------
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const numbers = (grid) =>
    Array.isArray(grid) ? grid : Array.from({ length: grid.count }, (_, k) => grid.from + (k * (grid.to - grid.from)) / (grid.count - 1));
  for (const column of data.columns) if (column.grid) column.grid = numbers(column.grid);
  for (const part of data.parts) {
    part.grids = part.grids.map(numbers);
    part.mean = new Float32Array(bytes(part.mean));
    part.root = new Int16Array(bytes(part.root));
  }
  const state = data.columns.map((column) => column.usual);

  // f ---------------------------------------------------------------------------------------------------------------
  // [position, weight] of the one or two points of a grid that a value is between.
  function between(grid, value) {
    const last = grid.length - 1;
    if (value <= grid[0]) return [[0, 1]];
    if (value >= grid[last]) return [[last, 1]];
    let above = grid.findIndex((point) => point >= value);
    if (grid[above] === value) return [[above, 1]];
    const share = (value - grid[above - 1]) / (grid[above] - grid[above - 1]);
    return [[above - 1, 1 - share], [above, share]];
  }

  // What a part adds to f: its mean for each output, and its root, C × rank.
  function contribution(part, values) {
    let corners = [[0, 1]];
    part.columns.forEach((column, k) => {
      const grid = part.grids[k];
      corners = corners.flatMap(([at, weight]) => between(grid, values[column]).map(([step, share]) => [at * grid.length + step, weight * share]));
    });
    const mean = new Float64Array(C), root = new Float64Array(C * part.rank);
    for (const [at, weight] of corners) {
      for (let c = 0; c < C; c++) mean[c] += weight * part.mean[at * C + c];
      for (let k = 0; k < root.length; k++) root[k] += weight * part.scale * part.root[at * root.length + k];
    }
    return { mean, root, rank: part.rank, group: part.group };
  }

  function squared(root, rank, a, b) {
    let sum = 0;
    for (let k = 0; k < rank; k++) sum += root[a * rank + k] * root[b * rank + k];
    return sum;
  }

  // The mean (C) and covariance (C × C) of f.
  function latent(parts) {
    const mean = new Float64Array(C), covariance = new Float64Array(C * C), groups = new Map();
    for (const part of parts) {
      part.mean.forEach((value, c) => { mean[c] += value; });
      const sum = groups.get(part.group) || { root: new Float64Array(part.root.length), rank: part.rank };
      part.root.forEach((value, k) => { sum.root[k] += value; });
      groups.set(part.group, sum);
    }
    for (const { root, rank } of groups.values()) {
      for (let a = 0; a < C; a++) for (let b = 0; b < C; b++) covariance[a * C + b] += squared(root, rank, a, b);
    }
    return { mean, covariance };
  }

  // Integrals over f ------------------------------------------------------------------------------------------------
  const sigmoid = (f) => (f >= 0 ? 1 / (1 + Math.exp(-f)) : Math.exp(f) / (1 + Math.exp(f)));

  // E σ(m + s z): the trapezoidal rule, whose error falls exponentially with 1/step; of σ's poles at ±πi and the
  // Gaussian it is below 1e-8 for this step.
  function expectedSigmoid(mean, sd) {
    if (sd === 0) return sigmoid(mean);
    const step = Math.min(0.5, 1 / sd), ends = Math.ceil(9 / step);
    let sum = 0, mass = 0;
    for (let k = -ends; k <= ends; k++) {
      const weight = Math.exp(-0.5 * (k * step) ** 2);
      sum += weight * sigmoid(mean + sd * k * step);
      mass += weight;
    }
    return sum / mass;
  }

  // Φ by the series of Φ(x) − ½ about 0 and the continued fraction of Mills' ratio in the tails.
  function normal(x) {
    const size = Math.abs(x), density = Math.exp(-0.5 * x * x) / Math.sqrt(2 * Math.PI);
    let tail;
    if (size < 3) {
      let term = size, sum = size;
      for (let k = 1; k < 100; k++) sum += term *= (size * size) / (2 * k + 1);
      tail = 0.5 - density * sum;
    } else {
      let fraction = size;
      for (let k = 60; k > 0; k--) fraction = size + k / fraction;
      tail = density / fraction;
    }
    return x > 0 ? 1 - tail : tail;
  }

  // The inverse of Φ by bisection and Newton's steps; for the few nodes, once.
  function quantile(p) {
    let x = 0;
    for (let k = 0; k < 60; k++) {
      const step = (normal(x) - p) / Math.max(Math.exp(-0.5 * x * x) / Math.sqrt(2 * Math.PI), 1e-12);
      x -= Math.max(-1, Math.min(1, step));
      if (Math.abs(step) < 1e-12) break;
    }
    return x;
  }

  // Standard normal nodes in D dimensions, of a low-discrepancy sequence (Roberts' R_d).
  const D = C - 1;
  let nodes = null;
  function normalNodes() {
    if (nodes) return nodes;
    let root = 2;
    for (let k = 0; k < 60; k++) root = Math.pow(1 + root, 1 / (D + 1));
    nodes = Array.from({ length: NODES }, (_, n) =>
      Array.from({ length: D }, (_, d) => quantile((0.5 + Math.pow(1 / root, d + 1) * (n + 1)) % 1)));
    return nodes;
  }

  // A lower triangular root of a covariance, D × D, that may be singular.
  function triangular(covariance) {
    const root = new Float64Array(D * D);
    for (let a = 0; a < D; a++) {
      for (let b = 0; b <= a; b++) {
        let rest = covariance(a, b);
        for (let k = 0; k < b; k++) rest -= root[a * D + k] * root[b * D + k];
        const pivot = root[b * D + b];
        root[a * D + b] = a === b ? Math.sqrt(Math.max(rest, 0)) : pivot > 1e-7 ? rest / pivot : 0;
      }
    }
    return root;
  }

  function softmax(f) {
    const most = Math.max(...f), parts = f.map((value) => Math.exp(value - most));
    const sum = parts.reduce((a, b) => a + b, 0);
    return parts.map((part) => part / sum);
  }

  // For each class or number: the mean of y, and the 95 % interval of E(y∣f).
  function predicted({ mean, covariance }) {
    const sd = Math.sqrt(covariance[0]);
    const along = (link) => [link(mean[0] - Z * sd), link(mean[0] + Z * sd)];
    if (data.link === "identity") return [[mean[0], ...along((f) => f)]];
    if (data.link !== "softmax") {
      const link = data.link === "logit" ? sigmoid : normal;
      const value = data.link === "logit" ? expectedSigmoid(mean[0], sd) : normal(mean[0] / Math.sqrt(1 + covariance[0]));
      const [low, high] = along(link);
      return [[1 - value, 1 - high, 1 - low], [value, low, high]];
    }
    // A softmax sees the differences from the last class alone.
    const of = (a, b) => covariance[a * C + b];
    const root = triangular((a, b) => of(a, b) - of(a, D) - of(D, b) + of(D, D));
    const draws = normalNodes().map((z) => softmax(Array.from(mean, (m, a) => {
      let f = m - mean[D];
      for (let k = 0; a < D && k <= a; k++) f += root[a * D + k] * z[k];
      return f;
    })));
    return Array.from(mean, (_, c) => {
      const own = draws.map((draw) => draw[c]).sort((a, b) => a - b);
      return [own.reduce((a, b) => a + b, 0) / own.length, own[Math.round(0.025 * (own.length - 1))], own[Math.round(0.975 * (own.length - 1))]];
    });
  }

  // What is shown ---------------------------------------------------------------------------------------------------
  // The parts' order and the ends of their bars stay as values change.
  const parts = data.parts.slice(1);
  const counted = (many, what) => `${many} ${what}${many === 1 ? "" : "s"}`;
  const size = (part) => Math.max(...Array.from(part.mean, (value, k) => {
    let variance = 0;
    for (let r = 0; r < part.rank; r++) variance += (part.scale * part.root[k * part.rank + r]) ** 2;
    return Math.abs(value) + Z * Math.sqrt(variance);
  }));
  parts.sort((a, b) => size(b) - size(a));
  const sizes = parts.map(size);
  const label = (column, value) => (data.columns[column].labels ? data.columns[column].labels[value] : String(Number(Number(value).toPrecision(6))));

  let output = C > 1 ? C - 1 : 0;
  const apart = parts.filter((_, k) => k < SHOWN && sizes[k] > SMALL * sizes[0]).length;
  function sumTable(found, total) {
    const kept = parts.slice(0, apart), f = total.mean[output], sd = Math.sqrt(total.covariance[output * C + output]);
    const constant = found[0].mean[output], each = found.slice(1);
    // The bars' ends are a power of √2, so that they stay while little changes.
    const ends = each.slice(0, apart).map((part) => Math.abs(part.mean[output]) + Z * Math.sqrt(squared(part.root, part.rank, output, output)));
    const reach = 2 ** (0.5 * Math.ceil(2 * Math.log2(Math.max(...ends, 1e-9))));
    const largest = Math.max(reach, Math.abs(f), Math.abs(constant));
    const lines = kept.map((part, k) => {
      const value = each[k].mean[output], half = Z * Math.sqrt(squared(each[k].root, each[k].rank, output, output));
      return {
        name: `${part.name} = ${part.columns.map((column) => label(column, state[column])).join(", ")}`,
        text: shown(value, largest, true), interval: `${shown(value - half, largest)} to ${shown(value + half, largest)}`,
        value, low: value - half, high: value + half, tint: value > 0 ? "high" : "low", kind: "part",
      };
    });
    const rest = each.slice(apart).reduce((sum, part) => sum + part.mean[output], 0);
    if (each.length > apart) lines.push({ name: counted(each.length - apart, "other part"), text: shown(rest, largest), kind: "rest" });
    lines.push({ name: data.parts[0].name, text: shown(constant, largest), kind: "rest" });
    lines.push({ name: "together", text: shown(f, largest), interval: `${shown(f - Z * sd, largest)} to ${shown(f + Z * sd, largest)}`, kind: "total" });
    const of = C > 1 ? ` for ${data.classes[output]}` : "";
    return barTable(`What each value adds${of}, in ${data.unit}, with 95\u00a0% intervals; all sum to the last line`, lines, [-reach, reach]);
  }

  function update() {
    const found = [data.parts[0], ...parts].map((part) => contribution(part, state));
    const total = latent(found), values = predicted(total);
    const tables = [];
    if (data.link === "identity") {
      const [mean, low, high] = values[0], wide = Z * Math.sqrt(total.covariance[0] + data.noise), size = Math.max(Math.abs(mean), wide);
      answer.textContent = `${data.target} ${shown(mean, size)}: 95\u00a0% interval ${shown(mean - wide, size)} to ${shown(mean + wide, size)}, of the mean ${shown(low, size)} to ${shown(high, size)}`;
    } else {
      const order = values.map((_, k) => k).sort((a, b) => values[b][0] - values[a][0]), best = order[0];
      answer.textContent = `${data.classes[best]}, ${percent(values[best][0])}: 95\u00a0% interval ${percent(values[best][1])} to ${percent(values[best][2])}`;
      const lines = order.slice(0, 8).map((k) => ({
        name: data.classes[k], text: percent(values[k][0]), interval: `${percent(values[k][1])} to ${percent(values[k][2])}`,
        value: values[k][0], low: values[k][1], high: values[k][2], tint: "accent", kind: "class",
      }));
      tables.push(barTable(`Probabilities of ${data.target} with 95\u00a0% intervals`, lines, [0, 1]));
    }
    body.replaceChildren(...tables, sumTable(found, total));
    // The numbers with all their digits, for whoever wants to take them from the page.
    body.dataset.values = JSON.stringify(values);
    body.dataset.variance = JSON.stringify(Array.from(total.covariance));
  }

  // Controls --------------------------------------------------------------------------------------------------------
  const controls = [];
  function control(column, number) {
    const line = element("div", "", { class: "control" });
    const id = `whatif-${number}`;
    line.append(element("label", column.name, { for: id }));
    if (column.labels) {
      const select = element("select", "", { id });
      for (const at of column.order) select.append(element("option", column.labels[at], { value: String(at) }));
      select.addEventListener("input", () => { state[number] = Number(select.value); update(); });
      line.append(select);
      controls[number] = () => { select.value = String(state[number]); };
      return line;
    }
    const last = column.grid.length - 1, low = column.grid[0], high = column.grid[last];
    const nearest = (value) => column.grid.reduce((best, point) => (Math.abs(point - value) < Math.abs(best - value) ? point : best), low);
    const reach = column.stops ? { min: 0, max: last, step: 1 } : { min: low, max: high, step: "any" };
    const unit = 10 ** (Math.floor(Math.log10(high - low || 1)) - 2); // of numbers that are dragged to
    const slider = element("input", "", { id, type: "range", ...reach });
    const field = element("input", "", { type: "number", step: "any", min: low, max: high, "aria-label": `${column.name}, as a number` });
    controls[number] = () => {
      slider.value = String(column.stops ? column.grid.indexOf(state[number]) : state[number]);
      slider.setAttribute("aria-valuetext", label(number, state[number]));
      field.value = label(number, state[number]);
    };
    slider.addEventListener("input", () => {
      const value = Math.min(high, Math.max(low, Math.round(Number(slider.value) / unit) * unit));
      state[number] = column.stops ? column.grid[Number(slider.value)] : Number(value.toPrecision(12));
      controls[number]();
      update();
    });
    field.addEventListener("change", () => {
      const value = Math.min(high, Math.max(low, Number(field.value)));
      if (field.value !== "") state[number] = column.stops ? nearest(value) : value;
      controls[number]();
      update();
    });
    if (last === 0) slider.disabled = field.disabled = true;
    line.append(slider, field);
    return line;
  }

  const start = document.getElementById("whatif-start");
  const note = document.getElementById("whatif-note");
  function begin(row) {
    const missing = [];
    data.columns.forEach((column, number) => {
      const value = row === "" ? column.usual : data.rows[row][number];
      if (value === null) missing.push(column.name);
      state[number] = value === null ? column.usual : value;
      controls[number]();
    });
    note.textContent = missing.length ? `The row has no value for ${missing.join(", ")} that can be chosen here; the usual one takes its place.` : "";
    update();
  }

  data.order.forEach((number, rank) => {
    const others = rank >= SHOWN;
    document.getElementById(others ? "whatif-others" : "whatif-columns").append(control(data.columns[number], number));
  });
  const folded = place.querySelector("details");
  folded.hidden = data.columns.length <= SHOWN;
  folded.querySelector("summary").textContent = `${counted(data.columns.length - SHOWN, "more feature")} of less influence`;
  explorer.rows.forEach((row, k) => start.append(element("option", `${row.name}: predicted ${row.predicted}`, { value: String(k) })));
  start.addEventListener("change", () => begin(start.value));
  // The parts of a row of the page, for comparisons; none where it has no value for a column.
  bayescope.contributions = (place, output) =>
    data.rows[place].includes(null) ? null : parts.map((part) => [part.name, contribution(part, data.rows[place]).mean[C > 1 ? output : 0]]);

  const change = element("button", "Change its values", { type: "button", class: "plain" });
  change.addEventListener("click", () => {
    start.value = String(bayescope.chosen());
    begin(start.value);
    document.getElementById("whatif").scrollIntoView();
    start.focus({ preventScroll: true });
  });
  document.getElementById("explanation").append(change);
  place.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  if (C > 1) {
    const select = document.getElementById("whatif-output");
    data.classes.forEach((name, k) => select.append(element("option", name, { value: String(k) })));
    select.value = String(output);
    select.addEventListener("change", () => { output = Number(select.value); update(); });
    select.closest("p").hidden = false;
  }
  place.hidden = false;
  begin("");
})();
