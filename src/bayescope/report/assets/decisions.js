// A threshold on the probability of a class: the confusion matrix there, its rates, and what the decisions are worth.
"use strict";
(() => {
  const { read, element, percent, mark } = bayescope;
  const data = read("decisions-data");
  const Z = 1.959963984540054; // of a 95 % interval
  const at = (id) => document.getElementById(id);
  const slider = at("threshold"), menu = at("threshold-class"), best = at("threshold-best");
  const cells = ["tp", "fp", "fn", "tn"];

  // Wilson's interval of a share.
  function rate(name, hits, all) {
    if (all === 0) return `${name} undefined (no such row)`;
    const share = hits / all, wide = 1 + (Z * Z) / all, middle = (share + (Z * Z) / (2 * all)) / wide;
    const half = (Z / wide) * Math.sqrt((share * (1 - share)) / all + (Z * Z) / (4 * all * all));
    return `${name} ${percent(share)} (${percent(Math.max(0, middle - half))} to ${percent(Math.min(1, middle + half))})`;
  }

  const counts = (own, k) => {
    const tp = own.true[k], fp = own.false[k];
    return { tp, fp, fn: own.positives - tp, tn: data.rows - own.positives - fp };
  };
  // What the probabilities expect these counts to be.
  const expected = (own, k) => {
    const called = own.true[k] + own.false[k], tp = own.sums[k], fn = own.expected - tp;
    return { tp, fp: called - tp, fn, tn: data.rows - called - fn };
  };
  const worths = () => Object.fromEntries(cells.map((cell) => [cell, Number(at(`worth-${cell}`).value)]));
  const value = (many, worth) => cells.reduce((sum, cell) => sum + many[cell] * worth[cell], 0) / data.rows;
  const written = (number) => String(Number(number.toPrecision(3))).replace("-", "−");

  function update() {
    const own = data.classes[Number(menu.value)], k = Number(slider.value), many = counts(own, k), worth = worths();
    at("threshold-value").textContent = `${k}\u00a0%`;
    slider.setAttribute("aria-valuetext", `${k} percent`);
    for (const cell of cells) at(`count-${cell}`).textContent = String(many[cell]);
    at("threshold-rates").textContent = [
      rate("True positive rate", many.tp, many.tp + many.fn), rate("false positive rate", many.fp, many.fp + many.tn),
      rate("precision", many.tp, many.tp + many.fp),
    ].join(", ") + "; 95\u00a0% intervals.";
    // Calling a row positive is worth more where p (tp − fn) ≥ (1 − p)(tn − fp).
    const gain = worth.tp - worth.fn, loss = worth.tn - worth.fp, all = own.true.map((_, at) => value(counts(own, at), worth));
    const highest = all.reduce((top, each, at) => (each > all[top] + 1e-12 ? at : top), 0);
    const rational = gain > 0 && loss >= 0 ? loss / (gain + loss) : NaN;
    at("threshold-worth").textContent =
      `Utility: ${written(all[k])} a row in these rows; the probabilities expect ${written(value(expected(own, k), worth))}. ` +
      (Number.isNaN(rational)
        ? "With these numbers no threshold is best: a positive row should be worth more if it is called so, and a negative one if it is not."
        : `If the probabilities are right, the best threshold is ${percent(rational)}; in these rows it would have been ${highest}\u00a0%, at ${written(all[highest])} a row.`);
    best.hidden = Number.isNaN(rational);
    best.dataset.value = String(Math.round(100 * rational));
    best.textContent = `Set the threshold to ${Math.round(100 * rational)}\u00a0%`;
    const recall = many.tp / (many.tp + many.fn || 1);
    mark("roc", many.fp / (many.fp + many.tn || 1), recall);
    if (many.tp + many.fp) mark("precision-recall", recall, many.tp / (many.tp + many.fp));
  }

  data.classes.forEach((own, k) => menu.append(element("option", own.name, { value: String(k) })));
  menu.parentElement.hidden = data.classes.length < 2;
  const named = () => {
    const name = data.classes[Number(menu.value)].name;
    at("is-positive").textContent = `is ${name}`;
    at("is-negative").textContent = `is not ${name}`;
    at("called-positive").textContent = `called ${name}`;
    at("called-negative").textContent = `not called ${name}`;
  };
  menu.addEventListener("change", () => { named(); update(); });
  slider.addEventListener("input", update);
  for (const cell of cells) at(`worth-${cell}`).addEventListener("input", update);
  best.addEventListener("click", () => { slider.value = best.dataset.value; update(); });
  const form = document.querySelector(".decisions");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  named();
  update();
})();
