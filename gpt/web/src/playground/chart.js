import { create, createIn, fill, keyIn, within } from "../dom.js";
import { logTicks, niceTicks, spread } from "./ticks.js";

const LEFT = 58;
const RIGHT = 14;
const LETTER = 7; // about as wide as one of a label
const TOP = 10;
const BOTTOM = 24;
const MAX_DOTS = 60;
const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
const TEMPLATE = `
  <div class="chart-head"><h3 data-part="title"></h3><output class="readout" data-part="readout"></output></div>
  <svg class="chart" data-part="svg" tabindex="0" role="img"></svg>
  <p class="hint chart-axis" data-part="axis"></p>`;
export const COLORS = [
  "light-dark(#0b62b0, #5db1f5)",
  "light-dark(#c04a00, #ff9a5c)",
  "light-dark(#00775a, #43c9a0)",
  "light-dark(#a3307f, #ec8cc9)",
  "light-dark(#7a6200, #d8bd4a)",
  "light-dark(#4b4fc4, #a3a6ff)",
  "light-dark(#c0223b, #ff7585)",
  "light-dark(#4e5a68, #b9c3d0)",
];
export const HUES = 3 * COLORS.length; // a line of one color is drawn in three ways

/** Colors an element of a plot or of its legend, and says whether its line is dashed. */
export function dress(element, hue) {
  element.style.setProperty("--hue", COLORS[hue % COLORS.length]);
  element.classList.add(`dash-${Math.floor(hue / COLORS.length)}`);
  return element;
}

/** A plot of y, which has a `title` and a `unit` and is written by `format(y)`; `base` is a value always in sight. */
export class Chart {
  constructor(root, { title, unit, format, height = 280, base = null }) {
    this.root = root;
    this.title = title;
    this.format = format;
    this.height = height;
    this.base = base;
    this.parts = fill(root, TEMPLATE);
    this.parts.title.textContent = `${title}, ${unit}`;
    root.classList.add("chart-box");
    this.series = [];
    this.across = { name: "", format: String, tick: String };
    this.isLog = false;
    this.xs = [];
    this.at = null; // the x that is read; null: the last one
    this.marked = null; // an x that something else on the page shows
    this.width = 0;
    this.listen();
  }

  listen() {
    const { svg } = this.parts;
    svg.addEventListener("pointermove", (event) => {
      if (!this.xs.length) return;
      const frame = svg.getBoundingClientRect();
      this.read(this.nearest(this.scales.invert(((event.clientX - frame.left) / frame.width) * this.width)));
    });
    svg.addEventListener("pointerleave", () => this.read(null));
    svg.addEventListener("blur", () => this.read(null));
    svg.addEventListener("keydown", (event) => {
      const by = keyIn(STEPS, event);
      if (by === undefined || !this.xs.length) return;
      event.preventDefault();
      const index = this.at === null ? this.xs.length - 1 : this.xs.indexOf(this.nearest(this.at));
      this.read(this.xs[within(index + by, this.xs.length - 1)]);
    });
    new ResizeObserver(() => {
      if (this.root.clientWidth && this.root.clientWidth !== this.width) this.draw();
    }).observe(this.root);
  }

  nearest(x) {
    return this.xs.reduce((best, value) => (Math.abs(value - x) < Math.abs(best - x) ? value : best));
  }

  /**
   * Each of `series` is of a `group`, such as a run, and has a `label` in it, a `hue` from 0, a `kind` (a class of its
   * line; "validation" has dots) and `points`, pairs of x and y in order, where a y of null is a gap; at its end it may
   * have a `name`. One whose label is null is not read. `across` is the x axis, with `name`, `format(x)` for reading and
   * `tick(x)`; one with `isLog` has log(1 + x).
   */
  show(series, across, isLog) {
    Object.assign(this, { series, across, isLog });
    this.draw();
  }

  mark(x) {
    if (x === this.marked) return;
    this.marked = x;
    this.draw();
  }

  draw() {
    const { svg, readout, axis } = this.parts;
    const drawn = this.series.filter(({ points }) => points.some(([, y]) => this.isDrawable(y)));
    this.width = Math.max(200, this.root.clientWidth);
    svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    svg.setAttribute("aria-label", `${this.title} over ${this.across.name}; the arrow keys read values`);
    svg.replaceChildren();
    axis.textContent = this.across.name;
    this.xs = [...new Set(drawn.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
    if (!drawn.length) {
      readout.textContent = "No values yet.";
      return;
    }
    this.scales = this.makeScales(drawn);
    this.drawAxes();
    for (const entry of drawn) this.drawSeries(entry);
    this.drawNames(drawn.filter(({ name }) => name));
    if (this.marked !== null) {
      const place = this.scales.x(this.marked);
      this.add("line", { class: "chart-marked", x1: place, x2: place, y1: TOP, y2: this.height - BOTTOM });
    }
    this.marker = this.add("line", { class: "chart-marker", y1: TOP, y2: this.height - BOTTOM });
    this.read(this.at);
  }

  isDrawable(y) {
    return y !== null && (!this.isLog || y > 0);
  }

  add(tag, attributes, ...children) {
    const element = createIn(this.parts.svg, tag, attributes, ...children);
    this.parts.svg.append(element);
    return element;
  }

  makeScales(series) {
    const ys = series.flatMap(({ points }) => points.map(([, y]) => y).filter((y) => this.isDrawable(y)));
    if (this.base !== null && !this.isLog) ys.push(this.base);
    const bend = this.isLog ? Math.log10 : (y) => y;
    const [least, most] = [ys.reduce((a, b) => Math.min(a, b)), ys.reduce((a, b) => Math.max(a, b))].map(bend);
    const room = (most - least) * 0.05 || Math.abs(most) * 0.1 || 1;
    const [low, high] = [least === this.base ? least : least - room, most + room];
    const [first, last] = [this.xs[0], this.xs.at(-1)];
    const [along, back] = this.across.isLog ? [Math.log1p, Math.expm1] : [(x) => x, (x) => x];
    const longest = series.reduce((most, { name = "" }) => Math.max(most, name.length), 0);
    this.right = this.width - RIGHT - longest * LETTER;
    const across = (this.right - LEFT) / (along(last) - along(first) || 1);
    const up = this.height - TOP - BOTTOM;
    return {
      bounds: [first, last, low, high],
      x: (value) => LEFT + (along(value) - along(first)) * across,
      y: (value) => TOP + (1 - (bend(value) - low) / (high - low)) * up,
      invert: (place) => back(along(first) + (place - LEFT) / across),
    };
  }

  drawAxes() {
    const { width, height, scales } = this;
    const [first, last, low, high] = scales.bounds;
    const [bottom, right] = [height - BOTTOM, this.right];
    for (const value of this.isLog ? logTicks(low, high) : niceTicks(low, high, height / 45)) {
      const y = scales.y(value);
      const isLong = Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 0.001);
      const text = isLong ? this.format(value) : String(value);
      this.add("line", { class: "chart-grid", x1: LEFT, x2: right, y1: y, y2: y });
      this.add("text", { class: "chart-tick", x: LEFT - 7, y: y + 4, "text-anchor": "end" }, text);
    }
    const powers = [0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6].filter((value) => value >= first && value <= last);
    for (const value of this.across.isLog ? powers : niceTicks(first, last, width < 500 ? 4 : 8)) {
      const x = scales.x(value);
      const anchor = x > width - 40 ? "end" : "middle";
      this.add("line", { class: "chart-grid", x1: x, x2: x, y1: bottom, y2: bottom + 4 });
      this.add("text", { class: "chart-tick", x, y: bottom + 17, "text-anchor": anchor }, this.across.tick(value));
    }
    this.add("line", { class: "chart-frame", x1: LEFT, x2: right, y1: bottom, y2: bottom });
  }

  drawSeries({ hue, kind, points }) {
    const { x: across, y: up } = this.scales;
    let path = "";
    let isOpen = false;
    for (const [x, y] of points) {
      if (this.isDrawable(y)) path += `${isOpen ? "L" : "M"}${across(x).toFixed(1)} ${up(y).toFixed(1)}`;
      isOpen = this.isDrawable(y);
    }
    dress(this.add("path", { class: `series ${kind}`, d: path }), hue);
    const drawn = points.filter(([, y]) => this.isDrawable(y));
    if (drawn.length > (kind === "validation" ? MAX_DOTS : 1)) return;
    for (const [x, y] of drawn) dress(this.add("circle", { class: "dot", cx: across(x), cy: up(y), r: 3 }), hue);
  }

  /** Names lines where they end, so that no legend has to be matched with them. */
  drawNames(named) {
    const ends = named.map((entry) => ({ ...entry, end: entry.points.findLast(([, y]) => this.isDrawable(y)) }));
    ends.sort((a, b) => b.end[1] - a.end[1]);
    const places = spread(
      ends.map(({ end }) => this.scales.y(end[1])),
      14,
      this.height - BOTTOM
    );
    ends.forEach(({ hue, name }, index) => {
      const place = { class: "series-name", x: this.right + 7, y: places[index] + 4 };
      dress(this.add("text", place, name), hue);
    });
  }

  /** Writes the values at x, or the last ones. */
  read(x) {
    this.at = x;
    if (!this.xs.length) return;
    const place = String(this.scales.x(x ?? this.xs.at(-1)));
    this.marker.setAttribute("x1", place);
    this.marker.setAttribute("x2", place);
    this.marker.classList.toggle("hidden", x === null);
    const isAlone = new Set(this.series.map(({ group }) => group)).size < 2;
    const entries = new Map(); // by color
    for (const { group, hue, label, points } of this.series) {
      const y = label === null ? null : valueAt(points, x);
      if (y === null) continue;
      const read = `${label} ${this.format(y)}`.trim();
      const head = isAlone ? "" : `${group} `;
      if (entries.has(hue)) entries.get(hue).append(`, ${read}`);
      else entries.set(hue, create("span", "", dress(create("span", "swatch"), hue), head + read));
    }
    const when = create("span", "", x === null ? "last" : this.across.format(x));
    this.parts.readout.replaceChildren(when, ...entries.values());
  }
}

/** The y of the last point up to x, while there are later ones; without an x, that of the last point. Null: there is none. */
function valueAt(points, x) {
  const there = points.filter(([, y]) => y !== null);
  if (x === null) return there.at(-1)?.[1] ?? null;
  if (!there.length || x > there.at(-1)[0]) return null;
  return there.findLast(([place]) => place <= x)?.[1] ?? null;
}
