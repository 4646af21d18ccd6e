// Frames, lines and maps as SVG, drawn from numbers that the server computed.
"use strict";
const Plots = (() => {
  const SPACE = "http://www.w3.org/2000/svg";

  function make(tag, attributes = {}, parent = null, text = null) {
    const element = document.createElementNS(SPACE, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }

  // Round numbers between two ends, at most `about`.
  function ticks([low, high], about) {
    const rough = (high - low) / about;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 5, 10].find((each) => each * power >= rough) || 10);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
    return found;
  }

  const name = (value) => String(Number(value.toPrecision(3))).replace("-", "−");

  // An empty frame with its axes, and the functions from data to places and back.
  function frame(svg, xs, ys, { xLabel = "", yLabel = "", logarithmic = false, yTicks = true, ground = true } = {}) {
    svg.replaceChildren();
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    const margin = { left: yTicks ? 44 : 10, right: 10, top: 8, bottom: 24 + (xLabel ? 16 : 0) };
    const inner = { width: width - margin.left - margin.right, height: height - margin.top - margin.bottom };
    const shape = logarithmic ? Math.log10 : (value) => value;
    const [low, high] = xs.map(shape);
    const x = (value) => margin.left + ((shape(value) - low) / (high - low)) * inner.width;
    const y = (value) => margin.top + ((ys[1] - value) / (ys[1] - ys[0])) * inner.height;
    const back = (px, py) => {
      const at = low + ((px - margin.left) / inner.width) * (high - low);
      return [logarithmic ? 10 ** at : at, ys[1] - ((py - margin.top) / inner.height) * (ys[1] - ys[0])];
    };
    const box = { x: margin.left, y: margin.top, width: inner.width, height: inner.height };
    const clip = `clip-${svg.id}`;
    make("rect", box, make("clipPath", { id: clip }, make("defs", {}, svg)));
    if (ground) make("rect", { ...box, class: "ground" }, svg);
    const axes = make("g", {}, svg);
    const bottom = margin.top + inner.height;
    const few = Math.max(3, Math.round(inner.width / 75));
    const at = logarithmic ? ticks([low, high], Math.min(6, few)).filter(Number.isInteger).map((each) => 10 ** each) : ticks(xs, few);
    for (const value of at) {
      make("line", { class: "tick", x1: x(value), x2: x(value), y1: margin.top, y2: bottom }, axes);
      make("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, axes, name(value));
    }
    for (const value of yTicks ? ticks(ys, 5) : []) {
      make("line", { class: "tick", x1: margin.left, x2: margin.left + inner.width, y1: y(value), y2: y(value) }, axes);
      make("text", { x: margin.left - 6, y: y(value) + 4, "text-anchor": "end" }, axes, name(value));
    }
    if (xLabel) make("text", { x: margin.left + inner.width / 2, y: height - 3, "text-anchor": "middle" }, axes, xLabel);
    if (yLabel) make("text", { x: margin.left + 6, y: margin.top + 15 }, axes, yLabel);
    const answer = make("g", { class: "answer", "clip-path": `url(#${clip})` }, svg);
    make("rect", { ...box, class: "frame" }, svg);
    return { svg, x, y, back, box, answer, over: make("g", {}, svg) };
  }

  function path(xs, ys, plot) {
    let text = "", pen = "M";
    for (let k = 0; k < xs.length; k++) {
      if (ys[k] === null) { pen = "M"; continue; }
      text += `${pen}${plot.x(xs[k]).toFixed(1)} ${plot.y(ys[k]).toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  const line = (plot, xs, ys, kind) => make("path", { class: `line ${kind}`, d: path(xs, ys, plot) }, plot.answer);
  const contour = (plot, lines, kind) => make("path", {
    class: `line ${kind}`, d: lines.map(([xs, ys]) => path(xs, ys, plot)).join(""),
  }, plot.answer);

  function band(plot, xs, low, high, kind) {
    const there = path(xs, high, plot), back = path([...xs].reverse(), [...low].reverse(), plot);
    make("path", { class: `area ${kind}`, d: `${there}L${back.slice(1)}Z` }, plot.answer);
  }

  function bars(plot, edges, heights) {
    const foot = plot.y(0);
    const text = heights.map((height, k) => {
      const [left, right, top] = [plot.x(edges[k]), plot.x(edges[k + 1]), plot.y(height)];
      return `M${left.toFixed(1)} ${foot.toFixed(1)}V${top.toFixed(1)}H${right.toFixed(1)}V${foot.toFixed(1)}Z`;
    });
    make("path", { class: "area", d: text.join("") }, plot.answer);
  }

  const channels = (tone) => {
    const hex = getComputedStyle(document.documentElement).getPropertyValue("--" + tone).trim();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };

  // A tone as far as a share of it over the card's.
  function mixed([tone, share]) {
    const card = channels("card");
    return channels(tone).map((value, c) => card[c] + share * (value - card[c]));
  }

  // Values between 0 and 1 in colours between the tones, as one picture: nodes of the lattice are the middles of pixels.
  function map(plot, values, across, tones) {
    const colours = tones.map(mixed), up = values.length / across;
    const canvas = document.createElement("canvas");
    canvas.width = across;
    canvas.height = up;
    const context = canvas.getContext("2d"), image = context.createImageData(across, up);
    values.forEach((value, k) => {
      const place = Math.min(1, Math.max(0, value)) * (colours.length - 1);
      const left = Math.min(colours.length - 2, Math.floor(place)), share = place - left;
      const row = up - 1 - Math.floor(k / across), at = 4 * (row * across + (k % across));
      for (let c = 0; c < 3; c++) image.data[at + c] = colours[left][c] + share * (colours[left + 1][c] - colours[left][c]);
      image.data[at + 3] = 255;
    });
    context.putImageData(image, 0, 0);
    const half = { x: plot.box.width / (across - 1) / 2, y: plot.box.height / (up - 1) / 2 };
    make("image", {
      href: canvas.toDataURL(), preserveAspectRatio: "none", x: plot.box.x - half.x, y: plot.box.y - half.y,
      width: plot.box.width + 2 * half.x, height: plot.box.height + 2 * half.y,
    }, plot.answer);
  }

  // Where on the plot a pointer is, in units of the data, within the frame.
  function pointed(plot, event) {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(plot.svg.getScreenCTM().inverse());
    const box = plot.box;
    const inside = place.x >= box.x && place.x <= box.x + box.width && place.y >= box.y && place.y <= box.y + box.height;
    const kept = [Math.min(box.x + box.width, Math.max(box.x, place.x)), Math.min(box.y + box.height, Math.max(box.y, place.y))];
    return { inside, at: plot.back(...kept) };
  }

  return { make, frame, line, contour, band, bars, map, pointed, name };
})();
