// What the controls are set to, the question that this makes, and the parts of the answer as they come.
"use strict";
(() => {
  const { make, frame, line, contour, band, bars, map, pointed, name } = Plots;
  const get = (id) => document.getElementById(id);
  const root = document.documentElement;
  const CLASSES = ["blue", "red"];
  // Milliseconds that a question waits for the first part of the answer to the one before: dragging shows every step.
  const WAIT = 300;
  const STEP = 1 / 80;
  const narrow = matchMedia("(max-width: 40rem)");

  const POSTERIORS = {
    map: ["MAP", "One point: the weights of greatest posterior density. It has no epistemic part."],
    laplace: ["Laplace", "A Gaussian at the mode with the curvature of the log posterior there."],
    last_layer: ["Last layer", "Laplace's approximation of the last layer's weights; the others stay at the mode."],
    variational: ["VI", "The Gaussian of least KL(q‖p): with all covariances for linear models, with none for networks."],
    mean_field: ["Mean field", "The Gaussian of least KL(q‖p) whose weights are independent: it is narrower than the posterior."],
    ep: ["EP", "Expectation propagation: a Gaussian whose moments match the posterior's, row by row."],
    mc_dropout: ["MC dropout", "Passes with random hidden units left out."],
    ensemble: ["Ensemble", "Five networks, each trained from its own first weights."],
    nuts: ["NUTS", "Draws from the posterior itself by Hamiltonian Monte Carlo: the reference."],
  };
  const MODELS = {
    linear: "f is linear in x.",
    polynomial: "f is linear in all monomials up to a degree.",
    rbf: "f is a sum of Gaussian bumps.",
    network: "One hidden layer of tanh units.",
    additive: "A sum of one small net for each coordinate (LA-NAM).",
  };
  const KEYS = {
    classes: "Click or tap to add a point, drag it to move it, double-click to relabel it. With the keyboard: Tab to a point, arrows move it (Shift: faster), L relabels it, Delete removes it, A adds one.",
    numbers: "Click or tap to add a point, drag it to move it. With the keyboard: Tab to a point, arrows move it (Shift: faster), Delete removes it, A adds one.",
    density: "Drag the marked start to lead Laplace and VI to another mode; arrows move it when it has the focus.",
  };
  const TITLES = { classes: "p(red) under the posterior", numbers: "y under the posterior", density: "The density and its approximations" };

  // --- state ---------------------------------------------------------------------------------------------------------
  const common = {
    model: "linear", posterior: "laplace", prior_precision: 1, temperature: 1, noise_sd: 0.3, degree: 3,
    bumps: "lattice", count: 8, width: 0.7, hidden: 10,
  };
  let state = null;
  let facts = null;
  const left = {};
  let answer = {};
  let chosen = null;
  let past = [];
  let plot = null;
  let running = null, waiting = null;
  // Whether a point or a slider is on its way: then only what is quick is asked, and the rest when it has come to rest.
  let moving = false;
  const count = (what) => { document.body.dataset[what] = Number(document.body.dataset[what] || 0) + 1; };

  // --- asking --------------------------------------------------------------------------------------------------------
  async function post(question, take, signal) {
    const reply = await fetch("answer", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question), signal,
    });
    if (!reply.ok) throw new Error((await reply.text()).trim());
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.forEach((text) => take(JSON.parse(text)));
    }
  }

  function question() {
    return { ...state, moving, reference: get("reference").checked };
  }

  // Asks about the present state; a newer question ends an older one, once that has shown its first part or is slow.
  function ask() {
    if (waiting !== null) return;
    const free = !running || running.first ? 0 : Math.max(0, running.begun + WAIT - performance.now());
    waiting = setTimeout(() => { waiting = null; send(); }, free);
  }

  async function send() {
    if (running) running.control.abort();
    const mine = running = { control: new AbortController(), begun: performance.now(), first: false, moving };
    const slow = setTimeout(() => {
      if (mine !== running || mine.first) return;
      document.body.classList.add("stale");
      say("computing");
    }, WAIT);
    try {
      await post({ ask: "answer", ...question() }, (part) => { if (mine === running) take(part, mine); }, mine.control.signal);
    } catch (error) {
      if (mine === running && error.name !== "AbortError") say(`The server does not answer: ${error.message}`, true);
    } finally {
      clearTimeout(slow);
    }
  }

  function take(part, mine) {
    if (part.part === "progress") {
      if (performance.now() - mine.begun < WAIT) return;
      get("bar").hidden = false;
      if (part.steps) { get("bar").max = part.steps; get("bar").value = part.done; } else get("bar").removeAttribute("value");
      say(part.name + (part.steps ? ` · ${part.done} of ${part.steps}` : ""));
      return;
    }
    if (part.part === "end") {
      get("bar").hidden = true;
      if (!mine.refused) say(`${state.kind === "density" ? "" : `${state.points.length} points · `}first answer after ${Math.round(mine.took)} ms`);
      if (!mine.moving) count("answered");
      return;
    }
    if (part.part === "overtaken") return;
    if (!mine.first) {
      mine.first = true;
      mine.took = performance.now() - mine.begun;
      document.body.classList.remove("stale");
      answer = moving ? { evidence: answer.evidence } : {};
      get("bar").hidden = true;
      if (waiting !== null) { clearTimeout(waiting); waiting = null; ask(); }
    }
    if (part.part === "refused") {
      mine.refused = true;
      say(part.message, true);
    } else {
      answer[part.part] = part;
    }
    draw(part.part);
  }

  function say(text, refused = false) {
    get("status").textContent = text;
    get("status").parentElement.classList.toggle("refused", refused);
  }

  // --- the picture of the points -------------------------------------------------------------------------------------
  function draw(part) {
    if (["surface", "curve", "functions", "refused", "density"].includes(part)) drawScene();
    if (["surface", "refused"].includes(part)) drawEpistemic();
    if (part === "density") { drawLog(); drawNumbers(); }
    if (["evidence", "refused"].includes(part)) drawEvidence();
    if (["weights", "reference", "effects", "refused", "surface", "curve"].includes(part)) drawWeights();
    if (["surface", "curve", "reference"].includes(part)) drawDistance();
    if (["surface", "curve", "density"].includes(part)) { drawWarnings(); count("drawn"); }
  }

  function drawAll() {
    drawScene(); drawEpistemic(); drawEvidence(); drawWeights(); drawDistance(); drawLog(); drawNumbers(); drawWarnings();
  }

  const surfaceTones = [["class0", 0.62], ["card", 1], ["class1", 0.62]];

  function drawScene() {
    get("scene").setAttribute("viewBox", narrow.matches ? "0 0 400 380" : "0 0 640 470");
    const density = state.kind === "density" && answer.density;
    const view = density ? [state.view[0], [0, tallest(density)]] : state.view;
    const focused = document.activeElement?.dataset?.place;
    plot = frame(get("scene"), view[0], view[1], { yTicks: state.kind !== "density" });
    if (answer.surface && state.kind === "classes") {
      map(plot, answer.surface.p, answer.surface.across, surfaceTones);
      for (const lines of answer.functions?.lines || []) contour(plot, lines, "faint");
      for (const level of ["0.1", "0.9"]) contour(plot, answer.surface.lines[level], "dashed");
      contour(plot, answer.surface.lines["0.5"], "half");
    }
    if (answer.curve && state.kind === "numbers") {
      const { x, mean, bands } = answer.curve;
      band(plot, x, ...bands.outcome, "outcome");
      band(plot, x, ...bands.mean, "mean");
      for (const f of answer.functions?.f || []) line(plot, x, f, "draw");
      line(plot, x, mean, "mean");
    }
    if (density) drawDensity(density);
    if (state.kind === "density") drawStart(); else drawPoints();
    if (focused !== undefined) plot.over.querySelector(`[data-place="${focused}"]`)?.focus({ preventScroll: true });
    key("scene-key", {
      classes: [["ink line", "p = ½ (dashed: 0.1 and 0.9)"], ["muted line", answer.functions?.why || "borders drawn from the posterior"]],
      numbers: [["accent line", "mean of f, 95 % of f (dark), of y (light)"], ["muted line", answer.functions?.why || "functions drawn from the posterior"]],
      density: (density?.fits || []).map((fit) => [`${TONES[fit.name]} line`, fit.title]),
    }[state.kind]);
  }

  // The height of a picture of p in which its approximations are whole, unless they are much higher than p.
  function tallest({ p, fits }) {
    const top = Math.max(...p);
    return 1.06 * Math.min(1.9 * top, Math.max(top, ...fits.flatMap((fit) => fit.q)));
  }

  const TONES = { laplace: "class0", transformed: "class0 dashed", seeking: "class1", covering: "class2" };

  function key(id, entries) {
    get(id).replaceChildren(...entries.map(([look, text]) => {
      const item = document.createElement("li"), mark = document.createElement("i");
      mark.className = look;
      item.append(mark, text);
      return item;
    }));
  }

  function drawPoints() {
    state.points.forEach((point, place) => {
      const label = state.kind === "classes" ? point[2] : null;
      const kind = label === null ? "number" : `class${label}`;
      const [px, py] = [plot.x(point[0]), plot.y(point[1])];
      const what = label === null ? "point" : `${CLASSES[label]} point`;
      const group = make("g", {
        class: `point ${kind}${place === chosen ? " chosen" : ""}`, tabindex: 0, role: "button", "data-place": place,
        "aria-label": `${what} ${place + 1} of ${state.points.length} at ${name(point[0])}, ${name(point[1])}`,
      }, plot.over);
      make("circle", { class: "reach", cx: px, cy: py, r: 13 }, group);
      if (label === 1) make("rect", { class: "dot", x: px - 4.6, y: py - 4.6, width: 9.2, height: 9.2, rx: 1.5 }, group);
      else make("circle", { class: "dot", cx: px, cy: py, r: 5.2 }, group);
    });
  }

  function rest() {
    if (!moving) return;
    moving = false;
    ask();
  }

  function remember() {
    past.push(JSON.stringify(state.points));
    if (past.length > 200) past.shift();
  }

  const tidy = (value) => Number(value.toFixed(3));

  function changed(mark = "") {
    if (mark !== "quiet") get("preset").value = "";
    drawScene();
    ask();
  }

  function addPoint(at) {
    remember();
    const label = Number(document.querySelector('input[name="label"]:checked').value);
    state.points.push(state.kind === "classes" ? [tidy(at[0]), tidy(at[1]), label] : [tidy(at[0]), tidy(at[1])]);
    changed();
    focusOn(state.points.length - 1);
  }

  // Drawing anew keeps the focus where it was; this moves it, and with it the choice.
  function focusOn(place) {
    chosen = place;
    plot.over.querySelector(`[data-place="${place}"]`)?.focus({ preventScroll: true });
  }

  function movePoint(place, at) {
    const clamp = (value, [low, high]) => tidy(Math.min(high, Math.max(low, value)));
    state.points[place][0] = clamp(at[0], state.view[0]);
    state.points[place][1] = clamp(at[1], state.view[1]);
    changed();
  }

  function relabel(place) {
    if (state.kind !== "classes" || place === null || !state.points[place]) return;
    remember();
    state.points[place][2] = 1 - state.points[place][2];
    changed();
  }

  function removePoint(place) {
    if (place === null || !state.points[place]) return;
    remember();
    state.points.splice(place, 1);
    chosen = null;
    changed();
    if (state.points.length) focusOn(Math.min(place, state.points.length - 1));
  }

  function scenePointers() {
    const svg = get("scene");
    let drag = null;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button || !plot) return;
      const start = event.target.closest(".start"), point = event.target.closest(".point");
      if (start) drag = { start: true, id: event.pointerId };
      else if (point) {
        chosen = Number(point.dataset.place);
        drag = { place: chosen, id: event.pointerId, moved: false, from: [event.clientX, event.clientY] };
      }
      if (drag) { svg.setPointerCapture(event.pointerId); event.preventDefault(); }
    });
    svg.addEventListener("pointermove", (event) => {
      if (!drag || drag.id !== event.pointerId) return;
      const { at } = pointed(plot, event);
      if (drag.start) { moving = true; moveStart(at[0]); return; }
      if (!drag.moved && Math.hypot(event.clientX - drag.from[0], event.clientY - drag.from[1]) < 3) return;
      if (!drag.moved) remember();
      drag.moved = moving = true;
      movePoint(drag.place, at);
    });
    const drop = (event) => {
      if (drag && drag.id === event.pointerId) {
        rest();
        if (!drag.start) { drawScene(); focusOn(drag.place); }
        setTimeout(() => { drag = null; });
      }
    };
    svg.addEventListener("pointerup", drop);
    svg.addEventListener("pointercancel", drop);
    svg.addEventListener("click", (event) => {
      if (drag || state.kind === "density") return;
      const { inside, at } = pointed(plot, event);
      if (inside) addPoint(at);
    });
    let last = { place: null, at: 0 };
    svg.addEventListener("pointerup", (event) => {
      if (!drag || drag.start || drag.moved) return;
      if (last.place === drag.place && event.timeStamp - last.at < 400) relabel(drag.place);
      last = { place: drag.place, at: event.timeStamp };
    });
    svg.addEventListener("focusin", (event) => {
      const point = event.target.closest(".point");
      if (!point || Number(point.dataset.place) === chosen) return;
      chosen = Number(point.dataset.place);
      svg.querySelectorAll(".chosen").forEach((each) => each.classList.remove("chosen"));
      point.classList.add("chosen");
    });
    svg.addEventListener("keydown", onKey);
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? 5 : 1;
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (event.target.closest(".start")) {
      if (way && way[0]) { moveStart(state.start + way[0] * far * STEP * (state.view[0][1] - state.view[0][0])); event.preventDefault(); }
      return;
    }
    const point = event.target.closest(".point");
    if (!point) return;
    const place = Number(point.dataset.place);
    if (way) {
      const size = state.view.map(([low, high]) => (high - low) * STEP * far);
      remember();
      movePoint(place, [0, 1].map((k) => state.points[place][k] + way[k] * size[k]));
    } else if (event.key === "Delete" || event.key === "Backspace") removePoint(place);
    else if (["l", "L", "Enter", " "].includes(event.key)) relabel(place);
    else if (event.key === "a" || event.key === "A") addInTheMiddle();
    else return;
    event.preventDefault();
  }

  function addInTheMiddle() {
    addPoint(state.view.map(([low, high]) => (low + high) / 2));
  }

  // --- densities -----------------------------------------------------------------------------------------------------
  function drawDensity(part) {
    band(plot, part.x, part.x.map(() => 0), part.p, "");
    line(plot, part.x, part.p, "exact");
    for (const fit of part.fits) line(plot, part.x, fit.q, fit.name);
  }

  function drawStart() {
    const px = plot.x(state.start), { y, height } = plot.box;
    const group = make("g", {
      class: "start", tabindex: 0, role: "slider", "aria-label": "where Laplace and VI start", "data-place": "start",
      "aria-valuenow": state.start, "aria-valuemin": state.view[0][0], "aria-valuemax": state.view[0][1],
    }, plot.over);
    make("rect", { x: px - 12, y, width: 24, height, fill: "transparent" }, group);
    make("line", { x1: px, x2: px, y1: y + height - 22, y2: y + height }, group);
    make("path", { d: `M${px - 6} ${y + height - 22}h12l-6 8z` }, group);
    make("text", { x: px + 9, y: y + height - 13 }, group, "start");
  }

  function moveStart(value) {
    const spec = facts.densities[state.density], [low, high] = spec.inside;
    state.start = tidy(Math.min(high, Math.max(low, value)));
    changed();
  }

  function drawLog() {
    const part = answer.density;
    if (state.kind !== "density" || !part) return;
    const top = Math.max(...part.log_p.filter((each) => each !== null));
    const panel = frame(get("log"), state.view[0], [top - 7, top + 1]);
    line(panel, part.x, part.log_p, "exact");
    for (const fit of part.fits) line(panel, part.x, fit.log_q, fit.name);
  }

  function drawNumbers() {
    const part = answer.density;
    if (state.kind !== "density" || !part) return;
    const head = ["", "mean", "sd", "KL(q‖p)", "KL(p‖q)", "log Z"];
    const rows = [["p, by quadrature", part.mean, part.sd, 0, 0, part.log_z], ...part.fits.map((fit) => [fit.title, fit.mean, fit.sd, fit.kl_qp, fit.kl_pq, fit.log_z])];
    const cells = (values, tag) => {
      const row = document.createElement("tr");
      values.forEach((value, k) => {
        const cell = document.createElement(k ? tag : "th");
        cell.className = k ? "number" : "";
        cell.textContent = value === null ? "—" : typeof value === "number" ? value.toFixed(3).replace("-", "−") : value;
        row.append(cell);
      });
      return row;
    };
    const thead = document.createElement("thead"), tbody = document.createElement("tbody");
    thead.append(cells(head, "th"));
    tbody.append(...rows.map((row) => cells(row, "td")));
    get("numbers").replaceChildren(thead, tbody);
    get("numbers-note").textContent = part.note;
  }

  // --- the other panels ----------------------------------------------------------------------------------------------
  function drawEpistemic() {
    get("epistemic-panel").hidden = state.kind !== "classes";
    if (state.kind !== "classes") return;
    const panel = frame(get("epistemic"), ...state.view);
    if (!answer.surface) return;
    const largest = Math.max(...answer.surface.sd);
    if (largest > 0) map(panel, answer.surface.sd.map((sd) => sd / largest), answer.surface.across, [["card", 1], ["class4", 0.85]]);
    for (const [x, y, label] of state.points) make("circle", { cx: panel.x(x), cy: panel.y(y), r: 2.4, class: `point class${label}`, fill: `var(--class${label})` }, panel.answer);
    get("epistemic-note").textContent = largest > 0
      ? `The epistemic part: the sd of p(red) under the posterior, up to ${largest.toFixed(2)}. More points would remove it.`
      : "MAP is one point: it knows nothing of what it does not know.";
  }

  function drawEvidence() {
    get("evidence-panel").hidden = state.kind === "density";
    if (state.kind === "density") return;
    const known = answer.evidence?.log_evidence || [];
    const svg = get("evidence");
    if (known.length < 2) { svg.replaceChildren(); return; }
    const values = known.map((each) => each[1]);
    const [top, foot] = [Math.max(...values), Math.min(...values)], room = 0.12 * (top - foot || 1);
    const panel = frame(svg, [1e-3, 1e3], [foot - room, top + room], { xLabel: "prior precision", logarithmic: true });
    line(panel, known.map((each) => each[0]), values, "laplace");
    const best = known[values.indexOf(top)];
    make("circle", { class: "mark", cx: panel.x(best[0]), cy: panel.y(best[1]), r: 5 }, panel.answer);
    make("text", { x: panel.x(best[0]), y: panel.y(best[1]) - 9, "text-anchor": "middle" }, panel.over, name(best[0]));
    const now = panel.x(state.prior_precision);
    make("line", { class: "line now", x1: now, x2: now, y1: panel.box.y, y2: panel.box.y + panel.box.height }, panel.answer);
    svg.onclick = (event) => {
      const { inside, at } = pointed(panel, event);
      if (inside) { state.prior_precision = Number(at[0].toPrecision(3)); drawControls(); changed("quiet"); }
    };
  }

  function drawWeights() {
    const panel = get("weights-panel"), holder = get("weights");
    const part = answer.weights, effects = answer.effects?.effects;
    panel.hidden = state.kind === "density" || !(part || effects || state.model === "network");
    panel.classList.toggle("broad", state.kind === "classes");
    holder.classList.toggle("few", Boolean(effects));
    if (panel.hidden) return;
    get("weights-title").textContent = effects ? "The effect of each coordinate" : "Marginal posteriors of the weights";
    const small = (id) => {
      const svg = make("svg", { id, class: "plot", viewBox: narrow.matches ? "0 0 190 140" : "0 0 300 180", role: "img" });
      holder.append(svg);
      return svg;
    };
    holder.replaceChildren();
    if (effects) {
      effects.forEach((effect, k) => {
        const reach = Math.max(...effect.high.map(Math.abs), ...effect.low.map(Math.abs)) * 1.08;
        const plot = frame(small(`effect-${k}`), [effect.grid[0], effect.grid.at(-1)], [-reach, reach], { xLabel: effect.name });
        band(plot, effect.grid, effect.low, effect.high, "mean");
        line(plot, effect.grid, effect.mean, "mean");
      });
      key("weights-key", [["accent line", "mean and 95 % of the effect on f"]]);
      get("weights-note").textContent = "";
      return;
    }
    if (!part) {
      key("weights-key", []);
      get("weights-note").textContent = "Not shown for a network: its hidden units can be exchanged, so a single weight has no meaning of its own.";
      return;
    }
    part.weights.forEach((row, k) => drawWeight(small(`weight-${k}`), row, answer.reference?.weights[k]));
    key("weights-key", [
      ["class0 line", "Laplace"],
      ...(state.posterior !== "laplace" ? [["class1 line", POSTERIORS[state.posterior][0]]] : []),
      ...(get("reference").checked && !facts.why_not[state.model].nuts ? [["muted square", answer.reference ? "NUTS" : "NUTS is on its way"]] : []),
    ]);
    get("weights-note").textContent = part.of > part.weights.length ? `The ${part.weights.length} largest of ${part.of} weights.` : "";
  }

  function drawWeight(svg, row, nuts) {
    const curves = [[row.laplace, "laplace"], ...(row.posterior ? [[row.posterior, "posterior"]] : [])];
    const all = [...curves.map(([each]) => each), ...(nuts ? [nuts] : [])];
    const xs = all.flatMap((each) => each.x || each.edges || [each.at]);
    const tallest = Math.max(...all.flatMap((each) => each.y || each.heights || []));
    const plot = frame(svg, [Math.min(...xs), Math.max(...xs)], [0, 1.1 * tallest], { yTicks: false, xLabel: row.name });
    svg.setAttribute("aria-label", `Marginal posterior of ${row.name}`);
    if (nuts) bars(plot, nuts.edges, nuts.heights);
    for (const [each, kind] of curves) {
      if (each.x) line(plot, each.x, each.y, kind);
      else if (each.edges) line(plot, each.edges.flatMap((edge, k) => (k < each.heights.length ? [edge, each.edges[k + 1]] : [])), each.heights.flatMap((height) => [height, height]), kind);
      else make("line", { class: `line ${kind}`, x1: plot.x(each.at), x2: plot.x(each.at), y1: plot.box.y, y2: plot.box.y + plot.box.height }, plot.answer);
    }
  }

  function drawDistance() {
    const distance = answer.reference?.distance;
    get("distance").hidden = distance === undefined || state.kind !== "classes";
    if (distance !== undefined) {
      get("distance").textContent = `distance to NUTS ${distance.toFixed(3)}`;
      get("distance").title = "The mean total variation of the predictives over the picture: 0 is the same, 1 is the opposite.";
    }
  }

  function drawWarnings() {
    const told = (answer.surface || answer.curve || answer.density)?.warnings || [];
    get("warnings").replaceChildren(...told.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  }

  // --- controls ------------------------------------------------------------------------------------------------------
  function slider(holder, key, title, { low, high, step, logarithmic = false, digits = 3 }, owner = state) {
    const label = document.createElement("label"), head = document.createElement("span"), input = document.createElement("input");
    const shown = document.createElement("output");
    label.className = "slider";
    Object.assign(input, { type: "range", id: `slider-${key}`, min: logarithmic ? Math.log10(low) : low, max: logarithmic ? Math.log10(high) : high, step: logarithmic ? 0.05 : step });
    input.value = logarithmic ? Math.log10(owner[key]) : owner[key];
    const tell = () => { shown.textContent = name(owner[key]); input.setAttribute("aria-valuetext", name(owner[key])); };
    input.addEventListener("input", () => {
      owner[key] = logarithmic ? Number((10 ** Number(input.value)).toPrecision(digits)) : Number(input.value);
      tell();
      moving = true;
      changed("quiet");
      if (key === "prior_precision") drawEvidence();
    });
    input.addEventListener("change", rest);
    head.append(title, shown);
    label.append(head, input);
    holder.append(label);
    tell();
  }

  function select(holder, key, title, options) {
    const label = document.createElement("label"), text = document.createElement("span"), menu = document.createElement("select");
    label.className = "row";
    text.textContent = title;
    for (const [value, shown] of options) menu.append(new Option(shown, value, false, value === state[key]));
    menu.addEventListener("change", () => { state[key] = menu.value; drawControls(); changed("quiet"); });
    label.append(text, menu);
    holder.append(label);
  }

  function drawControls() {
    const density = state.kind === "density";
    document.querySelector(".for-points").hidden = density;
    document.querySelector(".for-density").hidden = !density;
    for (const id of ["log-panel", "table-panel"]) get(id).hidden = !density;
    get("tools").hidden = density;
    get("labels").hidden = get("relabel").hidden = state.kind !== "classes";
    get("keys").textContent = KEYS[state.kind];
    get("scene-title").textContent = TITLES[state.kind];
    document.querySelectorAll("[role=tab]").forEach((tab) => tab.setAttribute("aria-selected", tab.dataset.kind === state.kind));
    const sliders = get("sliders");
    sliders.replaceChildren();
    if (density) {
      get("density").value = state.density;
      for (const [key, spec] of Object.entries(facts.densities[state.density].parameters)) slider(sliders, key, spec.title, spec, state.parameters);
      return;
    }
    get("model").value = state.model;
    drawModelOptions();
    drawPosteriors();
    slider(sliders, "prior_precision", "Prior precision", { low: 1e-3, high: 1e3, logarithmic: true });
    if (state.kind === "numbers") slider(sliders, "noise_sd", "Noise sd", { low: 0.02, high: 3, logarithmic: true });
    slider(sliders, "temperature", "Temperature", { low: 0.1, high: 10, logarithmic: true });
  }

  function drawModelOptions() {
    const holder = get("model-options");
    holder.replaceChildren();
    if (state.model === "polynomial") slider(holder, "degree", "Degree", { low: 1, high: 6, step: 1 });
    if (state.model === "rbf") {
      select(holder, "bumps", "Bumps", [["lattice", "on a lattice"], ["points", "on some points"]]);
      const many = state.bumps === "points";
      state.count = Math.min(state.count, many ? 100 : 14);
      slider(holder, "count", many ? "How many" : state.kind === "classes" ? "Along each side" : "How many", { low: 2, high: many ? 100 : 14, step: 1 });
      slider(holder, "width", "Width", { low: 0.05, high: 5, logarithmic: true });
    }
    if (state.model === "network" || state.model === "additive") slider(holder, "hidden", "Hidden units", { low: 2, high: 30, step: 1 });
  }

  function drawPosteriors() {
    const reasons = facts.why_not[state.model], holder = get("posteriors");
    if (reasons[state.posterior]) state.posterior = "laplace";
    holder.replaceChildren(holder.querySelector("legend"));
    for (const [key, [title]] of Object.entries(POSTERIORS)) {
      const label = document.createElement("label"), input = document.createElement("input"), text = document.createElement("span");
      Object.assign(input, { type: "radio", name: "posterior", value: key, checked: key === state.posterior });
      if (reasons[key]) { input.setAttribute("aria-disabled", "true"); label.title = reasons[key]; }
      text.textContent = title;
      label.append(input, text);
      holder.append(label);
    }
    note();
    get("reference-row").hidden = !["linear", "polynomial", "rbf"].includes(state.model);
    get("reference").disabled = Boolean(reasons.nuts);
  }

  const note = (why = "") => { get("posterior-note").textContent = why || `${POSTERIORS[state.posterior][1]} ${MODELS[state.model]}`; };

  function choosePosterior(event) {
    if (event.target.name !== "posterior") return;
    const why = facts.why_not[state.model][event.target.value];
    if (why) {
      note(`${POSTERIORS[event.target.value][0]} is not offered: ${why}`);
      document.querySelector(`input[name="posterior"][value="${state.posterior}"]`).checked = true;
      return;
    }
    state.posterior = event.target.value;
    note();
    changed("quiet");
  }

  function begin(preset) {
    const set = JSON.parse(JSON.stringify(preset.state));
    state = set.kind === "density" ? set : { ...common, ...set };
    chosen = null;
    past = [];
    answer = {};
    say("computing");
    get("preset").replaceChildren(
      new Option("your own", "", false, false),
      ...facts.presets.filter((each) => each.state.kind === state.kind).map((each) => new Option(each.title, each.name, false, each === preset)),
    );
    get("caption").textContent = preset.caption;
    drawControls();
    drawAll();
    changed("quiet");
  }

  function show(kind) {
    if (kind === state.kind) return;
    left[state.kind] = { state, preset: get("preset").value, caption: get("caption").textContent };
    const back = left[kind];
    const first = facts.presets.find((each) => each.state.kind === kind);
    begin(back ? { ...first, state: back.state, caption: back.caption } : first);
    if (back) get("preset").value = back.preset;
  }

  async function showCode() {
    let code = "";
    try {
      await post({ ask: "code", ...question() }, (part) => { code += part.code || part.message || ""; });
    } catch (error) {
      code = `# The server does not answer: ${error.message}`;
    }
    get("code-text").textContent = code;
    get("copy").textContent = "Copy";
    get("code-dialog").showModal();
    ask();
  }

  async function copyCode() {
    try {
      await navigator.clipboard.writeText(get("code-text").textContent);
      get("copy").textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(get("code-text"));
      get("copy").textContent = "Selected: press Ctrl-C";
    }
  }

  function listen() {
    scenePointers();
    document.querySelectorAll("[role=tab]").forEach((tab) => tab.addEventListener("click", () => show(tab.dataset.kind)));
    get("preset").addEventListener("change", () => {
      const preset = facts.presets.find((each) => each.name === get("preset").value);
      if (preset) begin(preset);
    });
    get("model").addEventListener("change", () => { state.model = get("model").value; answer = {}; drawControls(); drawAll(); changed("quiet"); });
    get("density").addEventListener("change", () => {
      const spec = facts.densities[get("density").value];
      const parameters = Object.fromEntries(Object.entries(spec.parameters).map(([key, each]) => [key, each.value]));
      state = { kind: "density", density: get("density").value, parameters, start: spec.start, view: spec.view };
      answer = {};
      drawControls();
      changed();
    });
    get("posteriors").addEventListener("change", choosePosterior);
    get("reference").addEventListener("change", () => changed("quiet"));
    get("controls").addEventListener("submit", (event) => event.preventDefault());
    get("add").addEventListener("click", addInTheMiddle);
    get("relabel").addEventListener("click", () => relabel(chosen));
    get("remove").addEventListener("click", () => removePoint(chosen));
    get("undo").addEventListener("click", () => {
      if (!past.length) return;
      state.points = JSON.parse(past.pop());
      chosen = null;
      changed();
    });
    get("clear").addEventListener("click", () => { remember(); state.points = []; chosen = null; changed(); });
    get("code").addEventListener("click", showCode);
    get("copy").addEventListener("click", copyCode);
    get("close").addEventListener("click", () => get("code-dialog").close());
    get("theme").addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("bayescope-theme", root.dataset.theme); } catch { /* it holds for this page */ }
      drawAll();
    });
    for (const media of [matchMedia("(prefers-color-scheme: dark)"), narrow]) media.addEventListener("change", drawAll);
  }

  async function start() {
    try {
      await post({ ask: "start" }, (part) => { if (part.part === "start") facts = part; });
    } catch (error) {
      say(`The server does not answer: ${error.message}`, true);
      return;
    }
    for (const [key, spec] of Object.entries(facts.densities)) get("density").append(new Option(spec.title, key));
    listen();
    begin(facts.presets[0]);
  }

  start();
})();
