// The state of the controls and of the points, and what changes it: pointer, keyboard, sliders and menus.
"use strict";
(() => {
  const { pointed, name } = Plots;
  const { narrow } = Panels;
  const get = (id) => document.getElementById(id);
  const root = document.documentElement;
  // One press of an arrow, as a share of the view.
  const STEP = 1 / 80;

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
  let state = null;
  let facts = null;
  const left = {};
  let answer = {};
  let chosen = null;
  let past = [];
  let plot = null;
  // Whether a point or a slider is being moved: then only what is quick is asked for, and the rest at the end.
  let moving = false;
  const count = (what) => { document.body.dataset[what] = Number(document.body.dataset[what] || 0) + 1; };

  // --- the answer ----------------------------------------------------------------------------------------------------
  const question = () => ({ ...state, moving, reference: get("reference").checked });
  const asking = Asking.queue(question, {
    slow() {
      document.body.classList.add("stale");
      say("computing");
    },
    progress({ done, steps, name: what }) {
      get("bar").hidden = false;
      if (steps) { get("bar").max = steps; get("bar").value = done; } else get("bar").removeAttribute("value");
      say(what + (steps ? ` · ${done} of ${steps}` : ""));
    },
    // The comparison with NUTS is of the points that were. Other parts stay until the new ones come.
    first() {
      document.body.classList.remove("stale");
      get("bar").hidden = true;
      answer = { ...answer, reference: undefined };
    },
    part(part) {
      answer = part.part === "refused" ? part : { ...answer, message: undefined, [part.part]: part };
      if (part.part === "refused") { say(part.message, true); drawAll(); } else draw(part.part);
    },
    end({ took, asked }) {
      get("bar").hidden = true;
      if (!answer.message) say(`${state.kind === "density" ? "" : `${state.points.length} points · `}first answer after ${Math.round(took)} ms`);
      if (!asked.moving) count("answered");
    },
    failed(error) { say(`The server does not answer: ${error.message}`, true); },
  });

  function say(text, refused = false) {
    get("status").textContent = text;
    get("status").parentElement.classList.toggle("refused", refused);
  }

  const DRAWN = {
    scene: ["surface", "curve", "functions", "density"], epistemic: ["surface"], densities: ["density"], evidence: ["evidence"],
    weights: ["surface", "curve", "weights", "effects", "reference"], notes: ["surface", "curve", "density", "reference"],
  };
  const panels = {
    scene() {
      const place = Panels.focused(); // the new picture takes the focus away
      plot = Panels.scene(state, answer);
      Panels.marks(plot, state, chosen, place);
    },
    epistemic() { Panels.epistemic(state, answer); },
    densities() { Panels.logarithms(state, answer); Panels.numbers(state, answer); },
    evidence() { Panels.evidence(state, answer, (precision) => { state.prior_precision = precision; drawControls(); changed("quiet"); panels.evidence(); }); },
    weights() { Panels.weights(state, answer, POSTERIORS[state.posterior]?.[0], compared()); },
    notes() { Panels.distance(answer); Panels.warnings(answer); },
  };

  function draw(part) {
    for (const [panel, parts] of Object.entries(DRAWN)) if (parts.includes(part)) panels[panel]();
    if (["surface", "curve", "density"].includes(part)) count("drawn");
  }

  function drawAll() {
    Object.values(panels).forEach((each) => each());
  }

  const drawMarks = () => Panels.marks(plot, state, chosen);
  const compared = () => state.kind !== "density" && get("reference").checked && !facts.why_not[state.model].nuts;

  // Another model or another kind of picture: nothing of the old answer is shown any more.
  function forget() {
    asking.drop();
    answer = {};
    drawControls();
    drawAll();
  }

  // --- points and the start -------------------------------------------------------------------------------------------
  function rest() {
    if (!moving) return;
    moving = false;
    asking.ask();
  }

  function remember() {
    past.push(JSON.stringify(state.points));
    if (past.length > 200) past.shift();
  }

  const tidy = (value) => Number(value.toFixed(3));

  function changed(mark = "") {
    if (mark !== "quiet" && state.kind !== "density") get("preset").value = "";
    drawMarks();
    asking.ask();
  }

  function addPoint(at) {
    remember();
    const label = Number(document.querySelector('input[name="label"]:checked').value);
    state.points.push(state.kind === "classes" ? [tidy(at[0]), tidy(at[1]), label] : [tidy(at[0]), tidy(at[1])]);
    changed();
    focusOn(state.points.length - 1);
  }

  // Drawing keeps the focus where it was; this moves the focus and the choice.
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
        if (!drag.start) { drawMarks(); focusOn(drag.place); }
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

  function moveStart(value) {
    const { low, high } = facts.densities[state.density].where;
    state.start = tidy(Math.min(high, Math.max(low, value)));
    changed();
  }

  // --- controls ------------------------------------------------------------------------------------------------------
  function slider(holder, key, { title, low, high, step, logarithmic }, owner = state) {
    const label = document.createElement("label"), head = document.createElement("span"), input = document.createElement("input");
    const shown = document.createElement("output");
    label.className = "slider";
    Object.assign(input, { type: "range", id: `slider-${key}`, min: logarithmic ? Math.log10(low) : low, max: logarithmic ? Math.log10(high) : high, step });
    input.value = logarithmic ? Math.log10(owner[key]) : owner[key];
    const write = () => { shown.textContent = name(owner[key]); input.setAttribute("aria-valuetext", name(owner[key])); };
    input.addEventListener("input", () => {
      owner[key] = logarithmic ? Number((10 ** Number(input.value)).toPrecision(3)) : Number(input.value);
      write();
      moving = true;
      changed("quiet");
      if (key === "prior_precision") panels.evidence();
    });
    input.addEventListener("change", rest);
    head.append(title, shown);
    label.append(head, input);
    holder.append(label);
    write();
  }

  const options = () => ({
    linear: [], polynomial: ["degree"], rbf: [state.bumps === "lattice" ? "side" : "count", "width"], network: ["hidden"], additive: ["hidden"],
  }[state.model]);

  function drawControls() {
    const density = state.kind === "density";
    document.querySelector(".for-points").hidden = density;
    for (const id of ["log-panel", "table-panel"]) get(id).hidden = !density;
    get("tools").hidden = density;
    get("labels").hidden = get("relabel").hidden = state.kind !== "classes";
    get("keys").textContent = KEYS[state.kind];
    get("scene-title").textContent = TITLES[state.kind];
    document.querySelectorAll("[role=tab]").forEach((tab) => tab.setAttribute("aria-selected", tab.dataset.kind === state.kind));
    const sliders = get("sliders");
    sliders.replaceChildren();
    if (density) {
      for (const [key, control] of Object.entries(facts.densities[state.density].parameters)) slider(sliders, key, control, state.parameters);
      return;
    }
    get("model").value = state.model;
    get("bumps").value = state.bumps;
    get("bumps-row").hidden = state.model !== "rbf";
    get("model-options").replaceChildren();
    for (const key of options()) slider(get("model-options"), key, facts.controls[key]);
    drawPosteriors();
    for (const key of ["prior_precision", ...(state.kind === "numbers" ? ["noise_sd"] : []), "temperature"]) slider(sliders, key, facts.controls[key]);
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
    const values = Object.fromEntries(Object.entries(facts.controls).map(([key, { value }]) => [key, value]));
    state = set.kind === "density" ? set : { model: "linear", posterior: "laplace", bumps: "lattice", ...values, ...set };
    chosen = null;
    past = [];
    say("computing");
    get("preset").replaceChildren(
      ...(state.kind === "density" ? [] : [new Option("your own", "", false, false)]),
      ...facts.presets.filter((each) => each.state.kind === state.kind).map((each) => new Option(each.title, each.name, false, each.name === preset.name)),
    );
    get("caption").textContent = preset.caption;
    forget();
    changed("quiet");
  }

  function show(kind) {
    if (kind === state.kind) return;
    left[state.kind] = { state, name: get("preset").value, caption: get("caption").textContent };
    begin(left[kind] || facts.presets.find((each) => each.state.kind === kind));
  }

  async function showCode() {
    let code = "";
    try {
      await Asking.post({ ask: "code", ...question() }, (part) => { code += part.code || part.message || ""; });
    } catch (error) {
      code = `# The server does not answer: ${error.message}`;
    }
    get("code-text").textContent = code;
    get("copy").textContent = "Copy";
    get("code-dialog").showModal();
    asking.ask();
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
    get("model").addEventListener("change", () => { state.model = get("model").value; forget(); changed("quiet"); });
    get("bumps").addEventListener("change", () => { state.bumps = get("bumps").value; drawControls(); changed("quiet"); });
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
      try { localStorage.setItem("bayescope-theme", root.dataset.theme); } catch { /* The browser stores nothing: the theme lasts as long as the page. */ }
      drawAll();
    });
    for (const media of [matchMedia("(prefers-color-scheme: dark)"), narrow]) media.addEventListener("change", drawAll);
  }

  async function start() {
    try {
      await Asking.post({ ask: "start" }, (part) => { if (part.part === "start") facts = part; });
    } catch (error) {
      say(`The server does not answer: ${error.message}`, true);
      return;
    }
    listen();
    begin(facts.presets[0]);
  }

  start();
})();
