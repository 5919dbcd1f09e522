const CHART_MARGIN = { left: 58, right: 14, top: 10, bottom: 24 };
const MAX_DOTS = 60;

/**
 * Fills `root` with a plot of y, which has a `unit` and is written by `format(y)`; `base` is a value that is always in
 * sight. Returns `draw({ series, across, isLog })`: each of `series` is of a `group`, such as a run, and has a `label` in
 * it, a `hue` from 0, a `kind` (a class of its line; "validation" has dots) and `points`, pairs of x and y in order,
 * where a y of null is a gap. `across` is the x axis, with `name`, `format(x)` for reading and `tick(x)`.
 */
function showChart(root, { title, unit, format, height = 280, base }) {
  const heading = create("h3", "chart-title", `${title}, ${unit}`);
  const readout = create("output", "readout chart-readout");
  const svg = createSvg("svg", { class: "chart", tabindex: 0, role: "img" });
  const axis = create("p", "hint chart-axis");
  root.classList.add("chart-box");
  root.append(heading, readout, svg, axis);
  let plot = { series: [], across: { name: "", format: String }, isLog: false, height, base };
  let at = null; // the x that is read; null: the last one

  function draw(given = plot) {
    plot = { ...given, height, base };
    const drawn = plot.series.filter(({ points }) => points.some(([, y]) => isDrawable(y, plot.isLog)));
    const width = Math.max(200, root.clientWidth);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("aria-label", `${title} over ${plot.across.name}; the arrow keys read values`);
    svg.replaceChildren();
    axis.textContent = plot.across.name;
    plot.xs = [...new Set(drawn.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
    if (!drawn.length) {
      readout.textContent = "No values yet.";
      return;
    }
    plot.scales = makeScales(drawn, plot, width);
    drawAxes(svg, plot, width, format);
    drawn.forEach((entry) => drawSeries(svg, entry, plot));
    plot.marker = createSvg("line", { class: "chart-marker", y1: CHART_MARGIN.top, y2: height - CHART_MARGIN.bottom });
    svg.append(plot.marker);
    read(at);
  }

  /** Writes the values at x, or the last ones. */
  function read(x) {
    at = x;
    if (!plot.xs.length) return;
    const place = x ?? plot.xs.at(-1);
    plot.marker.setAttribute("x1", plot.scales.x(place));
    plot.marker.setAttribute("x2", plot.scales.x(place));
    plot.marker.classList.toggle("hidden", x === null);
    const groups = new Map();
    for (const { group, hue, label, points } of plot.series) {
      const y = valueAt(points, x);
      if (y === null) continue;
      if (!groups.has(group)) groups.set(group, { hue, values: [] });
      groups.get(group).values.push(`${label} ${format(y)}`.trim());
    }
    const isAlone = new Set(plot.series.map(({ group }) => group)).size < 2;
    const entries = [...groups].map(([group, { hue, values }]) => {
      const entry = create("span", "chart-value", `${isAlone ? "" : `${group} `}${values.join(", ")}`);
      entry.prepend(create("span", `swatch ${hueClass(hue)}`));
      return entry;
    });
    readout.replaceChildren(create("span", "chart-value", x === null ? "last" : plot.across.format(place)), ...entries);
  }

  function step(by) {
    const index = at === null ? plot.xs.length - 1 : plot.xs.indexOf(nearest(plot.xs, at));
    const next = Math.min(plot.xs.length - 1, Math.max(0, index + by));
    read(plot.xs[next]);
  }

  svg.addEventListener("pointermove", (event) => {
    if (!plot.xs?.length) return;
    const frame = svg.getBoundingClientRect();
    read(nearest(plot.xs, plot.scales.invert(((event.clientX - frame.left) / frame.width) * plot.scales.width)));
  });
  svg.addEventListener("pointerleave", () => read(null));
  svg.addEventListener("blur", () => read(null));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || event.ctrlKey || event.altKey || event.metaKey || !plot.xs?.length) return;
    event.preventDefault();
    step(by);
  });
  let width = 0;
  new ResizeObserver(() => {
    if (root.clientWidth === width || !root.clientWidth) return;
    width = root.clientWidth;
    draw();
  }).observe(root);
  return draw;
}

function createSvg(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  if (text !== undefined) element.textContent = text;
  return element;
}

/** The classes that color and dash a line. */
function hueClass(hue) {
  return `hue-${hue % HUES} dash-${Math.floor(hue / HUES)}`;
}

function isDrawable(y, isLog) {
  return y !== null && (!isLog || y > 0);
}

function makeScales(series, { isLog, xs, height, base }, width) {
  const ys = series.flatMap(({ points }) => points.map(([, y]) => y).filter((y) => isDrawable(y, isLog)));
  if (base !== undefined && !isLog) ys.push(base);
  const bend = isLog ? Math.log10 : (y) => y;
  let [low, high] = [ys.reduce((a, b) => Math.min(a, b)), ys.reduce((a, b) => Math.max(a, b))].map(bend);
  const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  [low, high] = [low - room, high + room];
  if (low + room === base) low = base;
  const [first, last] = [xs[0], xs.at(-1)];
  const across = width - CHART_MARGIN.left - CHART_MARGIN.right;
  const up = height - CHART_MARGIN.top - CHART_MARGIN.bottom;
  const span = last - first || 1;
  return {
    width,
    bounds: { first, last, low, high },
    x: (value) => CHART_MARGIN.left + ((value - first) / span) * across,
    y: (value) => CHART_MARGIN.top + (1 - (bend(value) - low) / (high - low)) * up,
    invert: (place) => first + ((place - CHART_MARGIN.left) / across) * span,
  };
}

function drawAxes(svg, { scales, across, isLog, height }, width, format) {
  const { first, last, low, high } = scales.bounds;
  const bottom = height - CHART_MARGIN.bottom;
  for (const value of isLog ? logTicks(low, high) : niceTicks(low, high, height / 45)) {
    const y = scales.y(value);
    svg.append(
      createSvg("line", { class: "chart-grid", x1: CHART_MARGIN.left, x2: width - CHART_MARGIN.right, y1: y, y2: y }),
      createSvg("text", { class: "chart-tick", x: CHART_MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, tickText(value, format))
    );
  }
  for (const value of niceTicks(first, last, width < 500 ? 4 : 8)) {
    const x = scales.x(value);
    const anchor = x > width - 40 ? "end" : "middle";
    svg.append(
      createSvg("line", { class: "chart-grid", x1: x, x2: x, y1: bottom, y2: bottom + 4 }),
      createSvg("text", { class: "chart-tick", x, y: bottom + 17, "text-anchor": anchor }, across.tick(value))
    );
  }
  svg.append(
    createSvg("line", { class: "chart-frame", x1: CHART_MARGIN.left, x2: width - CHART_MARGIN.right, y1: bottom, y2: bottom })
  );
}

function drawSeries(svg, { hue, kind, points }, { scales, isLog }) {
  let path = "";
  let isOpen = false;
  const drawn = points.filter(([, y]) => isDrawable(y, isLog));
  for (const [x, y] of points) {
    if (isDrawable(y, isLog)) path += `${isOpen ? "L" : "M"}${scales.x(x).toFixed(1)} ${scales.y(y).toFixed(1)}`;
    isOpen = isDrawable(y, isLog);
  }
  svg.append(createSvg("path", { class: `series ${kind} ${hueClass(hue)}`, d: path }));
  if (drawn.length > (kind === "validation" ? MAX_DOTS : 1)) return;
  for (const [x, y] of drawn) {
    svg.append(createSvg("circle", { class: `dot ${hueClass(hue)}`, cx: scales.x(x), cy: scales.y(y), r: 3 }));
  }
}

/** Round values between two, about `count` of them. */
function niceTicks(low, high, count) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= raw) ?? 10);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
    ticks.push(Number((index * step).toPrecision(12)));
  }
  return ticks;
}

/** Round values between two powers of ten; where these are close, as far apart as niceTicks has them. */
function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(low); power <= high; power++) {
    for (const factor of [1, 2, 5]) ticks.push(Number((factor * 10 ** power).toPrecision(12)));
  }
  const inside = ticks.filter((tick) => Math.log10(tick) >= low && Math.log10(tick) <= high);
  return inside.length >= 3 ? inside : niceTicks(10 ** low, 10 ** high, 6).filter((tick) => tick > 0);
}

function tickText(value, format) {
  return Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 0.001) ? format(value) : String(value);
}

function nearest(sorted, x) {
  return sorted.reduce((best, value) => (Math.abs(value - x) < Math.abs(best - x) ? value : best), sorted[0]);
}

/** The y of the last point up to x, while there are later ones; without an x, that of the last point. Null: there is none. */
function valueAt(points, x) {
  const there = points.filter(([, y]) => y !== null);
  if (x === null) return there.at(-1)?.[1] ?? null;
  if (!there.length || x > there.at(-1)[0]) return null;
  return there.findLast(([place]) => place <= x)?.[1] ?? null;
}
