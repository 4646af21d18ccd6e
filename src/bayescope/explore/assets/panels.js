// The panels of the page: each draws the state of the controls and the parts of the answer that are there.
"use strict";
const Panels = (() => {
  const { make, frame, line, contour, band, bars, map, pointed, name } = Plots;
  const get = (id) => document.getElementById(id);
  const narrow = matchMedia("(max-width: 40rem)");
  const CLASSES = ["blue", "red"];
  const SURFACE = [["class0", 0.62], ["card", 1], ["class1", 0.62]];
  const EPISTEMIC = [["card", 1], ["class4", 0.85]];
  const FITS = { laplace: "class0", transformed: "class0 dashed", seeking: "class1", covering: "class2" };
  // Log evidences further below the largest, in nats, are not shown: the curve around its top would be flat.
  const DEEP = 60;

  function key(id, entries) {
    get(id).replaceChildren(...entries.map(([look, text]) => {
      const item = document.createElement("li"), mark = document.createElement("i");
      mark.className = look;
      item.append(mark, text);
      return item;
    }));
  }

  // --- the picture of the points or of the density ---------------------------------------------------------------------
  function scene(state, answer) {
    const svg = get("scene"), density = state.kind === "density" && answer.density;
    svg.setAttribute("viewBox", narrow.matches ? "0 0 400 380" : "0 0 640 470");
    const ys = density ? [0, tallest(density)] : state.view[1];
    const plot = frame(svg, state.view[0], ys, { yTicks: state.kind !== "density" });
    const why = answer.functions?.why;
    if (answer.surface) {
      map(plot, answer.surface.p, answer.surface.across, SURFACE);
      contour(plot, (answer.functions?.lines || []).flat(), "faint");
      for (const level of ["0.1", "0.9"]) contour(plot, answer.surface.lines[level], "dashed");
      contour(plot, answer.surface.lines["0.5"], "half");
    }
    if (answer.curve) {
      const { x, mean, bands } = answer.curve;
      band(plot, x, ...bands.outcome, "outcome");
      band(plot, x, ...bands.mean, "mean");
      for (const f of answer.functions?.f || []) line(plot, x, f, "draw");
      line(plot, x, mean, "mean");
    }
    if (density) {
      band(plot, density.x, density.x.map(() => 0), density.p, "");
      line(plot, density.x, density.p, "exact");
      for (const fit of density.fits) line(plot, density.x, fit.q, fit.name);
    }
    key("scene-key", {
      classes: [["ink line", "p = ½ (dashed: 0.1 and 0.9)"], ["ink thin line", why || "borders drawn from the posterior"]],
      numbers: [["accent line", "mean of f, 95 % of f (dark), of y (light)"], ["accent thin line", why || "functions drawn from the posterior"]],
      density: (density?.fits || []).map((fit) => [`${FITS[fit.name]} line`, fit.title]),
    }[state.kind]);
    return plot;
  }

  // The height of a picture of p in which its approximations are whole, unless they are much higher than p.
  function tallest({ p, fits }) {
    const top = Math.max(...p);
    return 1.06 * Math.min(1.9 * top, Math.max(top, ...fits.flatMap((fit) => fit.q)));
  }

  // What has the focus: the place of a point, or "start".
  const focused = () => document.activeElement?.dataset?.place;

  // The points, or the start, over the picture. The focus is on `place` afterwards.
  function marks(plot, state, chosen, place = focused()) {
    plot.over.replaceChildren();
    if (state.kind === "density") start(plot, state);
    else state.points.forEach((each, k) => point(plot, state, each, k, k === chosen));
    if (place !== undefined) plot.over.querySelector(`[data-place="${place}"]`)?.focus({ preventScroll: true });
  }

  function point(plot, state, [x, y, label], place, chosen) {
    const [px, py] = [plot.x(x), plot.y(y)], classes = state.kind === "classes";
    const group = make("g", {
      class: `point ${classes ? `class${label}` : "number"}${chosen ? " chosen" : ""}`, tabindex: 0, role: "button", "data-place": place,
      "aria-label": `${classes ? `${CLASSES[label]} ` : ""}point ${place + 1} of ${state.points.length} at ${name(x)}, ${name(y)}`,
    }, plot.over);
    make("circle", { class: "reach", cx: px, cy: py, r: 13 }, group);
    if (label === 1 && classes) make("rect", { class: "dot", x: px - 4.6, y: py - 4.6, width: 9.2, height: 9.2, rx: 1.5 }, group);
    else make("circle", { class: "dot", cx: px, cy: py, r: 5.2 }, group);
  }

  function start(plot, state) {
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

  // --- densities -------------------------------------------------------------------------------------------------------
  function logarithms(state, { density }) {
    if (!density) return;
    const top = Math.max(...density.log_p.filter((each) => each !== null));
    const panel = frame(get("log"), state.view[0], [top - 7, top + 1]);
    line(panel, density.x, density.log_p, "exact");
    for (const fit of density.fits) line(panel, density.x, fit.log_q, fit.name);
  }

  function numbers(state, { density }) {
    if (!density) return;
    const head = ["", "mean", "sd", "KL(q‖p)", "KL(p‖q)", "log Z"];
    const exact = ["p, by quadrature", density.mean, density.sd, 0, 0, density.log_z];
    const rows = [exact, ...density.fits.map((fit) => [fit.title, fit.mean, fit.sd, fit.kl_qp, fit.kl_pq, fit.log_z])];
    const shown = (value) => (typeof value === "number" ? value.toFixed(3).replace(/^-0.000$/, "0.000").replace("-", "−") : value ?? "—");
    const cells = (values, tag) => {
      const row = document.createElement("tr");
      values.forEach((value, k) => {
        const cell = document.createElement(k ? tag : "th");
        cell.className = k ? "number" : "";
        cell.textContent = shown(value);
        row.append(cell);
      });
      return row;
    };
    const thead = document.createElement("thead"), tbody = document.createElement("tbody");
    thead.append(cells(head, "th"));
    tbody.append(...rows.map((row) => cells(row, "td")));
    get("numbers").replaceChildren(thead, tbody);
    get("numbers-note").textContent = density.note;
  }

  // --- points ----------------------------------------------------------------------------------------------------------
  function epistemic(state, { surface }) {
    const svg = get("epistemic");
    get("epistemic-panel").hidden = state.kind !== "classes";
    if (!surface) { svg.replaceChildren(); return; }
    const panel = frame(svg, ...state.view), largest = Math.max(...surface.sd);
    if (largest > 0) map(panel, surface.sd.map((sd) => sd / largest), surface.across, EPISTEMIC);
    for (const [x, y, label] of state.points) make("circle", { cx: panel.x(x), cy: panel.y(y), r: 2.4, class: `class${label}` }, panel.answer);
    get("epistemic-note").textContent = largest > 0
      ? `The epistemic part: the sd of p(red) under the posterior, 0 where it is uncoloured and up to ${largest.toFixed(2)}. More points would remove it.`
      : "MAP is one point: it has no uncertainty about the weights.";
  }

  // `take` gets the prior precision that is clicked on.
  function evidence(state, answer, take) {
    const svg = get("evidence"), known = answer.evidence?.log_evidence || [];
    get("evidence-panel").hidden = state.kind === "density";
    if (known.length < 2) { svg.replaceChildren(); return; }
    const values = known.map((each) => each[1]), top = Math.max(...values), foot = Math.max(top - DEEP, Math.min(...values));
    const room = 0.12 * (top - foot || 1);
    const panel = frame(svg, [1e-3, 1e3], [foot - room, top + room], { xLabel: "prior precision", logarithmic: true });
    line(panel, known.map((each) => each[0]), values, "laplace");
    const now = panel.x(state.prior_precision), best = known[values.indexOf(top)], x = panel.x(best[0]);
    make("line", { class: "line now", x1: now, x2: now, y1: panel.box.y, y2: panel.box.y + panel.box.height }, panel.answer);
    make("circle", { class: "mark", cx: x, cy: panel.y(top), r: 5 }, panel.over);
    const anchor = x < panel.box.x + 30 ? "start" : x > panel.box.x + panel.box.width - 30 ? "end" : "middle";
    make("text", { class: "label", x: anchor === "start" ? x + 8 : x, y: panel.y(top) - 9, "text-anchor": anchor }, panel.over, name(best[0]));
    svg.onclick = (event) => {
      const { inside, at } = pointed(panel, event);
      if (inside) take(Number(at[0].toPrecision(3)));
    };
  }

  // The marginal posteriors of the weights, or the effects of an additive model. `posterior` is the posterior's title,
  // `compared` whether NUTS is asked for.
  function weights(state, answer, posterior, compared) {
    const effects = answer.effects?.effects, holder = get("weights"), rows = answer.weights?.weights || [];
    get("weights-panel").hidden = !(answer.weights || effects);
    get("weights-panel").classList.toggle("broad", state.kind === "classes");
    holder.classList.toggle("few", Boolean(effects));
    holder.replaceChildren();
    get("weights-title").textContent = effects ? "The effect of each coordinate" : "Marginal posteriors of the weights";
    const small = (id, label) => make("svg", {
      id, class: "plot", viewBox: narrow.matches ? "0 0 190 140" : "0 0 300 180", role: "img", "aria-label": label,
    }, holder);
    if (effects) {
      effects.forEach((each, k) => effect(small(`effect-${k}`, `Effect of ${each.name}`), each));
      key("weights-key", [["accent line", "mean and 95 % of the effect on f"]]);
      get("weights-note").textContent = "";
      return;
    }
    rows.forEach((row, k) => weight(small(`weight-${k}`, `Marginal posterior of ${row.name}`), row, answer.reference?.weights?.[k]));
    const drawn = state.posterior === "nuts" || answer.reference?.weights;
    key("weights-key", [
      ["class0 line", "Laplace"],
      ...(["laplace", "nuts"].includes(state.posterior) ? [] : [["class1 line", posterior]]),
      ...(drawn || (compared && !answer.reference) ? [["muted square", drawn ? "NUTS" : "NUTS, when its chains are done"]] : []),
    ]);
    const some = answer.weights && answer.weights.of > rows.length ? `The ${rows.length} largest of ${answer.weights.of} weights. ` : "";
    get("weights-note").textContent = some + (answer.reference?.why || "");
  }

  function effect(svg, { name: title, grid, mean, low, high }) {
    const reach = Math.max(...high.map(Math.abs), ...low.map(Math.abs)) * 1.08;
    const plot = frame(svg, [grid[0], grid.at(-1)], [-reach, reach], { xLabel: title });
    band(plot, grid, low, high, "mean");
    line(plot, grid, mean, "mean");
  }

  function weight(svg, { name: title, laplace, posterior }, reference) {
    const curves = [...(reference ? [[reference, "nuts"]] : []), [laplace, "laplace"], ...(posterior ? [[posterior, "posterior"]] : [])];
    const xs = curves.flatMap(([each]) => each.x || each.edges || [each.at]);
    const top = Math.max(...curves.flatMap(([each]) => each.y || each.heights || []));
    const plot = frame(svg, [Math.min(...xs), Math.max(...xs)], [0, 1.1 * top], { yTicks: false, xLabel: title });
    for (const [each] of curves) if (each.edges) bars(plot, each.edges, each.heights);
    for (const [each, kind] of curves) {
      if (each.x) line(plot, each.x, each.y, kind);
      else if (each.at !== undefined) make("line", { class: `line ${kind}`, x1: plot.x(each.at), x2: plot.x(each.at), y1: plot.box.y, y2: plot.box.y + plot.box.height }, plot.answer);
    }
  }

  function distance({ reference }) {
    get("distance").hidden = reference?.distance === undefined;
    get("distance").textContent = `distance to NUTS ${(reference?.distance ?? 0).toFixed(3)}`;
  }

  function warnings(answer) {
    const messages = (answer.surface || answer.curve || answer.density)?.warnings || [];
    get("warnings").replaceChildren(...messages.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  }

  return { narrow, focused, scene, marks, logarithms, numbers, epistemic, evidence, weights, distance, warnings };
})();
