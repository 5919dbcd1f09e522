"use strict";
var page = (() => {
  // gpt/web/src/dom.js
  function create(tag, className = "", ...children) {
    const element = document.createElement(tag);
    element.className = className;
    element.append(...children);
    return element;
  }
  function createButton(className, text, act, label = "") {
    const button = create("button", className, text);
    button.type = "button";
    if (label) button.setAttribute("aria-label", label);
    button.addEventListener("click", act);
    return button;
  }
  function createIn(svg, tag, attributes = {}, ...children) {
    const element = document.createElementNS(svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  function fill(root, template) {
    root.replaceChildren(...new DOMParser().parseFromString(template, "text/html").body.childNodes);
    return partsOf(root);
  }
  function partsOf(root) {
    const parts2 = {};
    for (const element of root.querySelectorAll("[data-part], [id]")) {
      parts2[camelCase(element.dataset.part ?? element.id)] = element;
    }
    return parts2;
  }
  function camelCase(name) {
    return name.replace(/[-_]([a-z])/g, (_, letter) => letter.toUpperCase());
  }
  function setOptions(select, options, chosen = select.value) {
    select.replaceChildren(
      ...options.map((option) => typeof option === "string" ? new Option(option, option) : option)
    );
    select.value = chosen;
    if (select.selectedIndex < 0) select.selectedIndex = 0;
  }
  function say(status, message, isWrong = false) {
    status.textContent = message;
    status.classList.toggle("wrong", isWrong);
  }
  function isSubmit(event) {
    return event.key === "Enter" && (event.ctrlKey || event.metaKey);
  }
  function keyIn(table, event) {
    return event.ctrlKey || event.altKey || event.metaKey ? void 0 : table[event.key];
  }
  function within(value, most) {
    return Math.min(most, Math.max(0, value));
  }
  function recall(name, fallback = void 0) {
    try {
      return JSON.parse(sessionStorage.getItem(`gpt.${name}`)) ?? fallback;
    } catch {
      return fallback;
    }
  }
  function remember(name, value) {
    try {
      sessionStorage.setItem(`gpt.${name}`, JSON.stringify(value));
    } catch {
    }
  }

  // gpt/web/src/playground/compare.js
  var ONE_MODEL = "This server has one model only; train another one, or name two with --checkpoint.";
  function comparing(showWriter2) {
    return {
      name: "compare",
      title: "Compare",
      sentence: "Two models continue one prompt with the same random numbers. Look for where their texts part, at the bar between two characters, and for how much fainter, that is likelier, the better model's characters are.",
      show(root, context) {
        const { models, model } = context;
        const other = models.find((name) => name !== model) ?? model;
        const chosen = recall("compare", [model, other]);
        const labels = ["First model ", "Second model "].map(
          (title) => create("label", "model", title, create("select"))
        );
        const selects = labels.map((label) => label.querySelector("select"));
        selects.forEach((select, side) => setOptions(select, models, chosen[side]));
        root.classList.add("comparing");
        if (models.length === 1) root.before(create("p", "hint", ONE_MODEL));
        root.addEventListener(
          "change",
          () => remember(
            "compare",
            selects.map((select) => select.value)
          )
        );
        const sides = selects.map((select, side) => ({ name: () => select.value, heading: labels[side] }));
        return showWriter2(root, context, sides);
      }
    };
  }

  // gpt/web/src/playground/header.html
  var header_default = '<a class="brand" href="#">gpt</a>\n<nav id="views" aria-label="Views"></nav>\n<label class="model" id="model-label" hidden>Model <select id="model"></select></label>\n';

  // gpt/web/src/playground/main.html
  var main_default = '<p class="facts hint" id="facts"></p>\n<form class="key" id="key-form" hidden>\n  <label for="key">This server asks for its API key</label>\n  <div class="actions">\n    <input type="password" id="key" autocomplete="off" required>\n    <button type="submit">Open</button>\n  </div>\n</form>\n<p class="status" id="page-status" role="status"></p>\n<div id="view"></div>\n';

  // gpt/web/src/playground/ticks.js
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
  function logTicks(low, high) {
    const ticks = [];
    for (let power = Math.floor(low); power <= high; power++) {
      for (const factor of [1, 2, 5]) ticks.push(Number((factor * 10 ** power).toPrecision(12)));
    }
    const inside = ticks.filter((tick) => Math.log10(tick) >= low && Math.log10(tick) <= high);
    return inside.length >= 3 ? inside : niceTicks(10 ** low, 10 ** high, 6).filter((tick) => tick > 0);
  }

  // gpt/web/src/playground/chart.js
  var LEFT = 58;
  var RIGHT = 14;
  var TOP = 10;
  var BOTTOM = 24;
  var MAX_DOTS = 60;
  var STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  var TEMPLATE = `
  <h3 data-part="title"></h3>
  <output class="readout" data-part="readout"></output>
  <svg class="chart" data-part="svg" tabindex="0" role="img"></svg>
  <p class="hint chart-axis" data-part="axis"></p>`;
  var COLORS = [
    "light-dark(#0b62b0, #5db1f5)",
    "light-dark(#c04a00, #ff9a5c)",
    "light-dark(#00775a, #43c9a0)",
    "light-dark(#a3307f, #ec8cc9)",
    "light-dark(#7a6200, #d8bd4a)",
    "light-dark(#4b4fc4, #a3a6ff)",
    "light-dark(#c0223b, #ff7585)",
    "light-dark(#4e5a68, #b9c3d0)"
  ];
  var HUES = 3 * COLORS.length;
  function dress(element, hue) {
    element.style.setProperty("--hue", COLORS[hue % COLORS.length]);
    element.classList.add(`dash-${Math.floor(hue / COLORS.length)}`);
    return element;
  }
  var Chart = class {
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
      this.at = null;
      this.width = 0;
      this.listen();
    }
    listen() {
      const { svg } = this.parts;
      svg.addEventListener("pointermove", (event) => {
        if (!this.xs.length) return;
        const frame = svg.getBoundingClientRect();
        this.read(this.nearest(this.scales.invert((event.clientX - frame.left) / frame.width * this.width)));
      });
      svg.addEventListener("pointerleave", () => this.read(null));
      svg.addEventListener("blur", () => this.read(null));
      svg.addEventListener("keydown", (event) => {
        const by = keyIn(STEPS, event);
        if (by === void 0 || !this.xs.length) return;
        event.preventDefault();
        const index = this.at === null ? this.xs.length - 1 : this.xs.indexOf(this.nearest(this.at));
        this.read(this.xs[within(index + by, this.xs.length - 1)]);
      });
      new ResizeObserver(() => {
        if (this.root.clientWidth && this.root.clientWidth !== this.width) this.draw();
      }).observe(this.root);
    }
    nearest(x) {
      return this.xs.reduce((best, value) => Math.abs(value - x) < Math.abs(best - x) ? value : best);
    }
    /**
     * Each of `series` is of a `group`, such as a run, and has a `label` in it, a `hue` from 0, a `kind` (a class of its
     * line; "validation" has dots) and `points`, pairs of x and y in order, where a y of null is a gap. `across` is the x
     * axis, with `name`, `format(x)` for reading and `tick(x)`.
     */
    show(series, across, isLog) {
      Object.assign(this, { series, across, isLog });
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
      const across = (this.width - LEFT - RIGHT) / (last - first || 1);
      const up = this.height - TOP - BOTTOM;
      return {
        bounds: [first, last, low, high],
        x: (value) => LEFT + (value - first) * across,
        y: (value) => TOP + (1 - (bend(value) - low) / (high - low)) * up,
        invert: (place) => first + (place - LEFT) / across
      };
    }
    drawAxes() {
      const { width, height, scales } = this;
      const [first, last, low, high] = scales.bounds;
      const [bottom, right] = [height - BOTTOM, width - RIGHT];
      for (const value of this.isLog ? logTicks(low, high) : niceTicks(low, high, height / 45)) {
        const y = scales.y(value);
        const isLong = Math.abs(value) >= 1e3 || value !== 0 && Math.abs(value) < 1e-3;
        const text = isLong ? this.format(value) : String(value);
        this.add("line", { class: "chart-grid", x1: LEFT, x2: right, y1: y, y2: y });
        this.add("text", { class: "chart-tick", x: LEFT - 7, y: y + 4, "text-anchor": "end" }, text);
      }
      for (const value of niceTicks(first, last, width < 500 ? 4 : 8)) {
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
    /** Writes the values at x, or the last ones. */
    read(x) {
      this.at = x;
      if (!this.xs.length) return;
      const place = String(this.scales.x(x ?? this.xs.at(-1)));
      this.marker.setAttribute("x1", place);
      this.marker.setAttribute("x2", place);
      this.marker.classList.toggle("hidden", x === null);
      const groups = /* @__PURE__ */ new Map();
      for (const { group, hue, label, points } of this.series) {
        const y = valueAt(points, x);
        if (y === null) continue;
        if (!groups.has(group)) groups.set(group, { hue, values: [] });
        groups.get(group).values.push(`${label} ${this.format(y)}`.trim());
      }
      const isAlone = new Set(this.series.map(({ group }) => group)).size < 2;
      const entries = [...groups].map(([group, { hue, values }]) => {
        const swatch = dress(create("span", "swatch"), hue);
        return create("span", "", swatch, `${isAlone ? "" : `${group} `}${values.join(", ")}`);
      });
      const when = create("span", "", x === null ? "last" : this.across.format(x));
      this.parts.readout.replaceChildren(when, ...entries);
    }
  };
  function valueAt(points, x) {
    const there = points.filter(([, y]) => y !== null);
    if (x === null) return there.at(-1)?.[1] ?? null;
    if (!there.length || x > there.at(-1)[0]) return null;
    return there.findLast(([place]) => place <= x)?.[1] ?? null;
  }

  // gpt/web/src/playground/words.js
  function compact(value) {
    return value >= 1e4 ? new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value) : Number(value.toPrecision(3)).toLocaleString("en");
  }
  function withCommas(value) {
    return value.toLocaleString("en");
  }
  function describeSeconds(seconds) {
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 90 * 60) {
      const rest = Math.round(seconds % 60);
      return seconds < 600 && rest ? `${Math.floor(seconds / 60)} min ${rest} s` : `${Math.round(seconds / 60)} min`;
    }
    return seconds < 36 * 3600 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
  }
  function describeRough(seconds) {
    if (seconds >= 600) return describeSeconds(seconds);
    const step = seconds < 60 ? 10 : 30;
    return describeSeconds((seconds < 60 ? Math.ceil(seconds / step) : Math.round(seconds / step)) * step);
  }
  function joined(...parts2) {
    return parts2.filter((part) => part).join(" · ");
  }

  // gpt/web/src/playground/curves.js
  var MAX_KEPT = 2e3;
  var POLL_MILLISECONDS = 2500;
  var NATS = { title: "Loss", unit: "nats per token", format: (value) => value.toFixed(4) };
  var RATE = { title: "Learning rate", unit: "no unit", format: writeRate, height: 200, base: 0 };
  var SPEED = { title: "Throughput", unit: "training tokens per second", format: compact, height: 200, base: 0 };
  var AXES = {
    step: { name: "optimizer steps", format: (value) => `step ${withCommas(value)}`, tick: compact },
    seconds: { name: "time of training, evaluations included", format: describeSeconds, tick: describeSeconds }
  };
  var FollowedCurves = class {
    constructor(source) {
      this.source = source;
      this.known = /* @__PURE__ */ new Map();
      this.pending = /* @__PURE__ */ new Map();
    }
    update(name) {
      if (!this.pending.has(name)) {
        this.pending.set(
          name,
          this.ask(name).finally(() => this.pending.delete(name))
        );
      }
      return this.pending.get(name);
    }
    async ask(name) {
      const known = this.known.get(name);
      const run = await this.source.run({ name, after: known?.last_step ?? -1 });
      this.known.set(name, grown(known, run) ?? await this.source.run({ name }));
      return this.known.get(name);
    }
  };
  function grown(known, run) {
    if (!known || known.last_step === null) return run;
    if (run.last_step === null || run.last_step < known.last_step) return null;
    const more = { ...run, every: known.every };
    for (const curve of ["training_curve", "validation_curve"]) {
      const columns = Object.entries(known[curve]);
      more[curve] = Object.fromEntries(columns.map(([name, values]) => [name, [...values, ...run[curve][name]]]));
    }
    return more.training_curve.step.length > MAX_KEPT ? null : more;
  }
  function showCurves({ loss, rate, speed }) {
    const [losses, rates, speeds] = [new Chart(loss, NATS), new Chart(rate, RATE), new Chart(speed, SPEED)];
    return (chosen, { across = "step", isLog = false } = {}) => {
      const axis = AXES[across];
      const seriesOf = (kind, curve, column, label = "") => chosen.map(({ run, hue }) => ({ group: run.name, hue, kind, label, points: pairs(run[curve], across, column) }));
      const training = seriesOf("training", "training_curve", "loss", "training");
      const validation = seriesOf("validation", "validation_curve", "loss", "validation");
      const both = training.flatMap((entry, index) => [entry, validation[index]]);
      losses.show(both, axis, isLog);
      rates.show(seriesOf("steady", "training_curve", "learning_rate"), axis, false);
      speeds.show(seriesOf("steady", "training_curve", "tokens_per_second"), axis, false);
    };
  }
  function pairs(columns, across, column) {
    return columns[across].map((x, index) => [x, columns[column][index]]).filter(([x]) => x !== null);
  }
  function writeRate(value) {
    return value === 0 ? "0" : value.toExponential(1);
  }
  function pollWhileVisible(root, ask) {
    let isAsking = false;
    const poll = async () => {
      if (isAsking || !root.isConnected || document.hidden) return;
      isAsking = true;
      try {
        await ask();
      } finally {
        isAsking = false;
      }
    };
    setInterval(poll, POLL_MILLISECONDS);
    document.addEventListener("visibilitychange", poll);
    poll();
    return poll;
  }

  // gpt/web/src/playground/runs.html
  var runs_default = '<p class="status" data-part="status" role="status"></p>\n<p data-part="none" hidden>There is no run yet.</p>\n<div class="run-columns">\n  <section aria-label="Runs">\n    <p class="hint">Check the runs to plot; those that changed last come first.</p>\n    <div class="run-list" data-part="list"></div>\n  </section>\n  <section aria-labelledby="curves-title">\n    <h2 id="curves-title">Curves</h2>\n    <div class="settings">\n      <label>Across\n        <select data-part="across">\n          <option value="step">optimizer steps</option>\n          <option value="seconds">time of training</option>\n        </select>\n      </label>\n      <label><input type="checkbox" data-part="log"> logarithmic loss</label>\n      <span class="hint">Thin: training loss of each batch. Thick: validation loss.</span>\n    </div>\n    <div data-part="loss"></div>\n    <p class="note" data-part="thinned"></p>\n    <div class="small-charts">\n      <div data-part="rate"></div>\n      <div data-part="speed"></div>\n    </div>\n  </section>\n</div>\n<section data-part="samples" hidden>\n  <h2>Samples</h2>\n  <p class="hint">What the model wrote at each evaluation, from an empty prompt.</p>\n  <div class="settings">\n    <label>Run <select data-part="sample-run"></select></label>\n    <label class="sample-step">Step <input type="range" min="0" step="1" data-part="sample-step"></label>\n    <output data-part="sample-at"></output>\n  </div>\n  <pre class="text sample-text" data-part="sample-text"></pre>\n</section>\n';

  // gpt/web/src/playground/runs.js
  var RUNS = {
    name: "runs",
    title: "Runs",
    sentence: "Look for where the validation loss stops falling while the training loss goes on: from there a model learns its text by heart. In the samples, letters come first, then words, then lines that make sense.",
    show: (root, context) => new Runs(root, context).poll
  };
  var Runs = class {
    constructor(root, context) {
      this.parts = fill(root, runs_default);
      this.context = context;
      this.source = context.source;
      this.curves = new FollowedCurves(this.source);
      this.draw = showCurves(this.parts);
      this.samples = new Samples(this.parts.samples, this.source);
      this.rows = /* @__PURE__ */ new Map();
      this.hues = /* @__PURE__ */ new Map();
      this.models = /* @__PURE__ */ new Set();
      this.isFirst = true;
      this.parts.across.addEventListener("change", () => this.follow());
      this.parts.log.addEventListener("change", () => this.follow());
      this.poll = pollWhileVisible(root, () => this.ask());
    }
    async ask() {
      try {
        const { runs } = await this.source.runs();
        if (runs.some(({ name, has_checkpoint: isSaved }) => isSaved && !this.models.has(name))) {
          this.models = new Set(await this.source.models());
        }
        this.setRuns(runs);
        await this.follow();
        say(this.parts.status, "");
      } catch (error) {
        say(this.parts.status, `${error.message}; trying again.`, true);
      }
    }
    setRuns(runs) {
      const { none, list } = this.parts;
      none.hidden = runs.length > 0;
      for (const { name } of runs) if (!this.rows.has(name)) this.rows.set(name, this.createRow(name));
      const names = new Set(runs.map(({ name }) => name));
      for (const name of [...this.rows.keys()].filter((name2) => !names.has(name2))) {
        this.rows.get(name).element.remove();
        this.rows.delete(name);
        this.hues.delete(name);
      }
      const order = runs.map(({ name }) => this.rows.get(name).element);
      if (order.some((element, index) => list.children[index] !== element)) list.append(...order);
      for (const run of runs) this.describe(run);
      const first = runs.find(({ training }) => training) ?? runs.find(({ problem }) => !problem);
      if (this.isFirst && first) this.choose(first.name, true);
      this.isFirst = this.isFirst && !runs.length;
    }
    createRow(name) {
      const box = Object.assign(create("input"), { type: "checkbox" });
      const swatch = create("span", "swatch");
      const facts = create("span", "run-facts");
      const actions = create("span", "run-actions");
      const label = create("label", "run-label", box, swatch, create("span", "run-name", name), facts);
      box.addEventListener("change", () => this.choose(name, box.checked));
      return { element: create("div", "run", label, actions), box, swatch, facts, actions, run: null };
    }
    describe(run) {
      const row = this.rows.get(run.name);
      row.run = run;
      row.facts.textContent = describeRun(run);
      row.facts.classList.toggle("live", run.training);
      if (this.models.has(run.name) && !row.actions.childElementCount) {
        row.actions.append(...createModelLinks(run.name, this.context));
      }
    }
    async choose(name, isChosen) {
      const row = this.rows.get(name);
      row.box.checked = isChosen;
      if (isChosen) {
        const taken = new Set(this.hues.values());
        const free = [...Array(HUES).keys()].find((hue) => !taken.has(hue));
        this.hues.set(name, free ?? this.hues.size % HUES);
        dress(row.swatch, this.hues.get(name));
      } else {
        this.hues.delete(name);
        row.swatch.className = "swatch";
        row.swatch.style.removeProperty("--hue");
      }
      await this.follow();
    }
    /** Asks for what is new of the chosen runs, and draws it. */
    async follow() {
      const { known } = this.curves;
      const isDone = (name) => {
        const run = this.rows.get(name)?.run;
        return known.has(name) && !run?.training && known.get(name).step === run?.step;
      };
      const behind = [...this.hues.keys()].filter((name) => !isDone(name));
      await Promise.all(behind.map((name) => this.curves.update(name)));
      const chosen = [...this.hues].map(([name, hue]) => ({ run: known.get(name), hue })).filter(({ run }) => run);
      const { across, log, thinned } = this.parts;
      this.draw(chosen, { across: across.value, isLog: log.checked });
      const sparse = chosen.filter(({ run }) => run.every > 1).map(({ run }) => `${run.name}: one of ${run.every}`);
      thinned.textContent = sparse.length ? `Points of the training loss that are plotted: ${sparse.join(", ")}.` : "";
      this.samples.set(chosen.map(({ run }) => run));
    }
  };
  function describeRun(run) {
    if (run.problem) return run.problem;
    const { config } = run;
    const whole = run.max_steps === null ? "" : ` of ${withCommas(run.max_steps)}`;
    const left = run.seconds_left === null ? "" : `, about ${describeRough(run.seconds_left)} left`;
    const best = run.best_val_loss === null ? "" : `best ${run.best_val_loss.toFixed(4)} nats at step ${run.best_step}`;
    const size = run.parameters === null ? "" : `${withCommas(run.parameters)} parameters`;
    const shape = `${config["model.n_layer"]} layers of ${config["model.n_embd"]}, ${config["model.block_size"]} positions`;
    const state = `${run.training ? "training: " : ""}step ${withCommas(run.step)}${whole}${left}`;
    return joined(state, best, size, shape, config["optim.name"]);
  }
  function createModelLinks(name, context) {
    return Object.entries({ write: "Write", attention: "Attention" }).map(([view, title]) => {
      const link = Object.assign(create("a", "", title), { href: `#${view}`, title: `${title} with ${name}` });
      link.addEventListener("click", () => context.chooseModel(name));
      return link;
    });
  }
  var Samples = class {
    constructor(root, source) {
      this.root = root;
      this.parts = partsOf(root);
      this.source = source;
      this.runs = [];
      this.shown = "";
      this.isLast = true;
      const { sampleRun, sampleStep } = this.parts;
      sampleRun.addEventListener("change", () => {
        this.isLast = true;
        this.setRange();
      });
      sampleStep.addEventListener("input", () => {
        this.isLast = sampleStep.value === sampleStep.max;
        this.setRange();
      });
    }
    set(runs) {
      this.runs = runs.filter(({ samples }) => samples.length);
      this.root.hidden = !this.runs.length;
      if (!this.runs.length) return;
      setOptions(
        this.parts.sampleRun,
        this.runs.map(({ name }) => name)
      );
      this.setRange();
    }
    setRange() {
      const { sampleRun, sampleStep: range } = this.parts;
      const { samples } = this.runs.find(({ name }) => name === sampleRun.value);
      const place = this.isLast ? samples.length - 1 : Math.min(Number(range.value), samples.length - 1);
      range.max = samples.length - 1;
      range.value = place;
      range.disabled = samples.length < 2;
      this.show(sampleRun.value, samples[place]);
    }
    async show(name, step) {
      const { sampleAt, sampleStep, sampleText } = this.parts;
      sampleAt.textContent = `step ${withCommas(step)}`;
      sampleStep.setAttribute("aria-valuetext", `step ${step}`);
      const key = `${name} ${step}`;
      if (this.shown === key) return;
      this.shown = key;
      const sample = await this.source.sample({ name, step }).catch((error) => ({ text: error.message }));
      if (this.shown === key) sampleText.textContent = sample.text + (sample.truncated ? "…" : "");
    }
  };

  // gpt/web/src/playground/server.js
  var ServerSource = class {
    constructor(key) {
      this.key = key;
      this.attention = this.posting("/api/attention");
      this.lens = this.posting("/api/lens");
      this.surprisal = this.posting("/api/surprisal");
      this.trace = this.posting("/api/trace");
      this.continuation = this.posting("/api/continue");
    }
    /** Names of the models, the server's first one at the head. */
    async models() {
      return (await this.get("/v1/models")).data.map(({ id }) => id);
    }
    /** What the page says about a model. */
    facts(model) {
      return this.get(`/api/models/${model.split("/").map(encodeURIComponent).join("/")}`);
    }
    async write({ count, ...request }, onTokens) {
      const snakeCase = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
      const named = Object.fromEntries(Object.entries(request).map(([name, value]) => [snakeCase(name), value]));
      const body = { ...named, max_tokens: count };
      for await (const { tokens } of this.events("/api/generate", body)) onTokens(tokens);
    }
    runs() {
      return this.get("/api/runs");
    }
    run({ name, after = -1 }) {
      return this.get(`/api/runs/${encodeURIComponent(name)}?after=${after}`);
    }
    sample({ name, step }) {
      return this.get(`/api/runs/${encodeURIComponent(name)}/samples/${step}`);
    }
    training() {
      return this.get("/api/training");
    }
    /** `text` has its number of `characters`, and `vocabulary`, the number of distinct ones, or else `corpus`, its name. */
    trainingChoices(text) {
      return this.get(`/api/training/choices?${new URLSearchParams(text)}`);
    }
    /** Changes what is trained: `action` is "start", "stop" or "resume"; `token` is that of `training()`. */
    async changeTraining(action, token, body) {
      return (await this.send(`/api/training/${action}`, body, null, { "X-Training-Token": token })).json();
    }
    async get(path) {
      return (await this.ask(path)).json();
    }
    /** A function from a request, which may have a signal, to its answer. */
    posting(path) {
      return async ({ signal, ...body }) => (await this.send(path, body, signal)).json();
    }
    /** Yields the JSON of server-sent events that answer a POST, up to the one called [DONE]. */
    async *events(path, { signal, ...body }) {
      const reader = (await this.send(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
      let pending = "";
      for (; ; ) {
        const { value, done } = await reader.read();
        if (done) throw new ServerError(0, "the connection to the server was lost");
        const [...complete] = (pending + value).split("\n\n");
        pending = complete.pop();
        for (const event of complete) {
          const content = event.replace(/^data: /, "");
          if (content === "[DONE]") return;
          const answer = JSON.parse(content);
          if (answer.error) throw new ServerError(500, answer.error.message);
          yield answer;
        }
      }
    }
    send(path, body, signal = null, headers = {}) {
      const json = { "Content-Type": "application/json", ...headers };
      return this.ask(path, { method: "POST", body: JSON.stringify(body), headers: json, signal });
    }
    /** @param {string} path @param {RequestInit} options */
    async ask(path, options = {}) {
      const key = this.key ? { Authorization: `Bearer ${this.key}` } : {};
      const response = await fetch(path, { ...options, headers: { ...options.headers, ...key } }).catch((error2) => {
        throw error2.name === "AbortError" ? error2 : new ServerError(0, "the server does not answer");
      });
      if (response.ok) return response;
      const { error } = await response.json().catch(() => ({}));
      throw new ServerError(response.status, error?.message || response.statusText || `status ${response.status}`);
    }
  };
  var ServerError = class extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  };

  // gpt/web/src/playground/training.html
  var training_default = '<p class="status" data-part="status" role="status"></p>\n<div class="training-columns" data-part="allowed" hidden>\n  <form class="training-form" data-part="form">\n    <label class="field">Text\n      <select data-part="corpus" disabled></select>\n    </label>\n    <div class="paste" data-part="paste" hidden>\n      <label for="training-text">Your text</label>\n      <textarea id="training-text" data-part="text" rows="8" spellcheck="false" autocomplete="off"></textarea>\n      <div class="settings">\n        <label>or open a file <input type="file" accept="text/plain,.txt,.md" data-part="file"></label>\n        <span class="hint" data-part="characters"></span>\n      </div>\n      <p class="hint">It stays on this machine: the server keeps it in its data folder. A model needs some 100,000 characters to learn words.</p>\n    </div>\n    <fieldset class="recipes">\n      <legend>Recipe</legend>\n      <p class="status" data-part="measuring" role="status">Measuring how fast this machine computes…</p>\n      <div class="recipe-list" data-part="recipes"></div>\n      <p data-part="no-recipes" hidden>There are no recipes: start the server in the folder that has configs/.</p>\n      <p class="hint" data-part="estimate"></p>\n    </fieldset>\n    <div class="actions">\n      <label>Name <input type="text" data-part="run-name" maxlength="64" pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" placeholder="recipe and a number" title="Letters, digits, dots, dashes and underscores"></label>\n      <button type="submit" data-part="start" disabled>Start training</button>\n      <span class="hint" data-part="busy"></span>\n    </div>\n    <div class="actions" data-part="unfinished-line" hidden>\n      <label>Unfinished runs <select data-part="unfinished"></select></label>\n      <button type="button" data-part="go-on">Go on</button>\n    </div>\n    <p class="status wrong" data-part="fault" role="alert"></p>\n  </form>\n  <section class="current" data-part="current" hidden aria-label="The training that runs">\n    <h2 data-part="name"></h2>\n    <p class="status" data-part="state" role="status"></p>\n    <p class="status" data-part="reason"></p>\n    <progress data-part="progress" aria-label="steps done"></progress>\n    <div class="actions">\n      <button type="button" data-part="stop">Stop</button>\n      <button type="button" data-part="resume">Go on</button>\n      <span class="hint">Stopping saves a checkpoint; going on loses nothing.</span>\n    </div>\n    <p class="run-links" data-part="links"></p>\n    <div data-part="curves" hidden>\n      <div data-part="loss"></div>\n      <div class="small-charts">\n        <div data-part="rate"></div>\n        <div data-part="speed"></div>\n      </div>\n    </div>\n    <div data-part="sample" hidden>\n      <h3 data-part="sample-title"></h3>\n      <pre class="text sample-text" data-part="sample-text"></pre>\n    </div>\n    <details>\n      <summary>What the command prints</summary>\n      <p class="hint">The same training from a shell: <code data-part="command"></code></p>\n      <pre class="console" data-part="console" tabindex="0" role="region" aria-label="What the command prints"></pre>\n    </details>\n  </section>\n</div>\n';

  // gpt/web/src/playground/training_form.js
  var PASTED = "pasted";
  var HOUR = 3600;
  var CORPUS_TITLES = { shakespeare: "Tiny Shakespeare", pydocs: "Python's own documentation" };
  var TrainingForm = class {
    constructor(parts2, source, act) {
      this.parts = parts2;
      this.source = source;
      this.corpora = [];
      this.recipes = [];
      this.recipe = recall("recipe", "quickstart");
      this.isTextChosen = false;
      this.asked = "";
      this.isBusy = false;
      this.listen(act);
      this.load();
    }
    listen(act) {
      const { form, recipes, corpus, text, file, goOn, runName, unfinished } = this.parts;
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        const chosen = corpus.value === PASTED ? { text: text.value } : { corpus: corpus.value };
        const name = runName.value ? { name: runName.value } : {};
        act("start", { recipe: this.recipe, ...chosen, ...name }).then((isDone) => {
          if (isDone) runName.value = "";
        });
      });
      recipes.addEventListener("change", (event) => {
        this.recipe = event.target.value;
        remember("recipe", this.recipe);
        this.suitText(this.recipes);
        this.showCorpus();
      });
      corpus.addEventListener("change", () => {
        this.isTextChosen = true;
        this.showCorpus();
      });
      text.addEventListener("change", () => this.showCorpus());
      text.addEventListener("input", () => this.setStart());
      file.addEventListener("change", async () => {
        if (!file.files.length) return;
        text.value = await file.files[0].text();
        this.showCorpus();
      });
      goOn.addEventListener("click", () => act("resume", { name: unfinished.value }));
    }
    /** Asks for the recipes, and how long they take on the chosen text. */
    async load() {
      const { measuring, fault } = this.parts;
      const text = this.describeText();
      const key = JSON.stringify(text);
      if (key === this.asked) return;
      this.asked = key;
      try {
        const choices = await this.source.trainingChoices(text);
        this.setCorpora(choices);
        if (this.asked === key) this.setRecipes(choices);
      } catch (error) {
        if (this.asked !== key) return;
        this.asked = "";
        measuring.hidden = true;
        if (error.status !== 403) fault.textContent = error.message;
      }
    }
    /** What the server is to know of the chosen text. */
    describeText() {
      const { value } = this.parts.corpus;
      const text = this.parts.text.value;
      if (value === PASTED) return { characters: text.length, vocabulary: new Set(text).size || 1 };
      const corpus = this.corpora.find(({ file, source }) => (file ?? source) === value);
      return corpus ? { characters: corpus.characters, corpus: value } : { characters: 0 };
    }
    setCorpora({ corpora, recipes }) {
      if (!recipes.some(({ name }) => name === this.recipe)) this.recipe = recipes[0]?.name;
      if (JSON.stringify(this.corpora) !== JSON.stringify(corpora)) {
        this.corpora = corpora;
        const options = corpora.map((corpus) => new Option(describeCorpus(corpus), corpus.file ?? corpus.source));
        const own = new Option("A text of your own: paste it, or open a file", PASTED);
        setOptions(this.parts.corpus, [...options, own]);
        this.parts.corpus.disabled = false;
      }
      this.suitText(recipes);
      this.showCorpus();
    }
    /** Chooses the text that the recipe was made for, unless the reader has chosen one. */
    suitText(recipes) {
      const suited = recipes.find(({ name }) => name === this.recipe)?.source;
      const isThere = this.corpora.some(({ source, file }) => source === suited && !file);
      if (!this.isTextChosen && isThere) this.parts.corpus.value = suited;
    }
    setRecipes({ recipes, utilization }) {
      const { recipes: list, measuring, noRecipes, estimate } = this.parts;
      this.recipes = recipes;
      const isFocused = list.contains(document.activeElement);
      list.replaceChildren(...this.createRecipes());
      if (isFocused) list.querySelector(":checked")?.focus();
      measuring.hidden = true;
      noRecipes.hidden = recipes.length > 0;
      const [low, high] = utilization.map((share) => `${Math.round(100 * share)} %`);
      estimate.textContent = `Where a run is named, the time follows from its pace. The others are rough: they assume that training reaches ${low} to ${high} of the matmul rate that was measured on this machine. Other work on it, such as answering requests, makes training slower.`;
      this.setStart();
    }
    /** Those that end within an hour, and the others where they are asked for. */
    createRecipes() {
      const isQuick = ({ seconds }) => seconds[1] <= HOUR;
      const quick = this.recipes.filter(isQuick).map((recipe) => createRecipe(recipe, this.recipe));
      const slow = this.recipes.filter((recipe) => !isQuick(recipe));
      if (!slow.length) return quick;
      const summary = create("summary", "", `${slow.length} may take longer than an hour`);
      const others = create(
        "details",
        "slow-recipes",
        summary,
        ...slow.map((recipe) => createRecipe(recipe, this.recipe))
      );
      const isChosen = slow.some(({ name }) => name === this.recipe);
      others.open = !quick.length || isChosen || Boolean(this.parts.recipes.querySelector("details")?.open);
      return [...quick, others];
    }
    showCorpus() {
      const { corpus, paste, characters, text } = this.parts;
      paste.hidden = corpus.value !== PASTED;
      characters.textContent = `${withCommas(text.value.length)} characters`;
      this.setStart();
      this.load();
    }
    setStart() {
      const { start: start2, corpus, text } = this.parts;
      start2.disabled = this.isBusy || !this.recipes.length || corpus.value === PASTED && !text.value;
    }
    /** Names the run that is being trained; null: there is none. */
    setBusy(name) {
      const { busy, goOn } = this.parts;
      this.isBusy = name !== null;
      busy.textContent = this.isBusy ? `${name} is being trained; one at a time.` : "";
      goOn.disabled = this.isBusy;
      this.setStart();
      if (!this.isBusy) this.load();
    }
    /** Offers unfinished runs; the list stays as it is, under the reader's hand, where they are the same. */
    setUnfinished(names) {
      const { unfinishedLine, unfinished } = this.parts;
      unfinishedLine.hidden = names.length === 0;
      const known = [...unfinished.options].map(({ value }) => value);
      if (names.join("\n") !== known.join("\n")) setOptions(unfinished, names);
    }
  };
  function createRecipe({ name, about, parameters, max_steps: steps, tokens_per_step: tokens, seconds, like }, chosen) {
    const radio = Object.assign(create("input"), {
      type: "radio",
      name: "recipe",
      value: name,
      checked: name === chosen
    });
    const facts = `${withCommas(parameters)} parameters, ${withCommas(steps)} steps of ${withCommas(tokens)} tokens`;
    return create(
      "label",
      "recipe",
      radio,
      create("span", "recipe-name", name),
      create("span", "recipe-time", describeRange(seconds)),
      create("span", "recipe-about", `${about} ${facts}${like ? `; timed by the run ${like}` : ""}.`)
    );
  }
  function describeCorpus({ source, file, characters, begins }) {
    const size = `${compact(characters)} characters`;
    if (source !== "file") return `${CORPUS_TITLES[source] ?? source}, ${size}`;
    return begins ? `“${begins}…”, ${size}` : `${file}, ${size}`;
  }
  function describeRange(seconds) {
    const [least, most] = seconds.map(describeRough);
    return least === most ? `about ${least}` : `${least} to ${most}`;
  }

  // gpt/web/src/playground/training.js
  var ENDINGS = { 0: "Done", 130: "Stopped and saved", 143: "Stopped and saved", [-15]: "Stopped before it began" };
  var STATES = { starting: "Starting", training: "Training", stopping: "Saving a checkpoint, then it stops" };
  var TRAINING = {
    name: "training",
    title: "Train",
    sentence: "Choose a text and a recipe, and watch a model learn it. Look for the steep fall of the loss in the first steps, when the model learns how often each letter comes, and for the slow one after it, when it learns words.",
    show: (root, context) => new Training(root, context).poll
  };
  var Training = class {
    constructor(root, context) {
      this.parts = fill(root, training_default);
      this.context = context;
      this.source = context.source;
      this.curves = new FollowedCurves(this.source);
      this.draw = showCurves(this.parts);
      this.form = null;
      this.token = "";
      this.shownSample = "";
      this.isActing = false;
      this.isRefused = false;
      const { stop, resume, name } = this.parts;
      stop.addEventListener("click", () => this.act("stop", { name: name.textContent }));
      resume.addEventListener("click", () => this.act("resume", { name: name.textContent }));
      this.poll = pollWhileVisible(root, () => this.ask());
    }
    async ask() {
      if (this.isRefused) return;
      const { curves, status, allowed } = this.parts;
      try {
        const answer = await this.source.training();
        this.show(answer);
        const run = answer.training?.run;
        curves.hidden = !run?.max_steps;
        if (run?.max_steps) await this.followRun(run.name);
        this.form.setUnfinished((await this.source.runs()).runs.filter(isUnfinished).map(({ name }) => name));
      } catch (error) {
        this.isRefused = error.status === 403;
        const said = `${error.message[0].toUpperCase()}${error.message.slice(1)}.`;
        status.textContent = this.isRefused ? said : `${error.message}; trying again.`;
        allowed.hidden = this.isRefused || !this.form;
      }
    }
    /** Starts, stops or goes on, once at a time; returns whether that was done. */
    async act(action, body) {
      if (this.isActing) return false;
      let isDone = true;
      const { fault, current } = this.parts;
      this.isActing = true;
      fault.textContent = "";
      try {
        this.show(await this.source.changeTraining(action, this.token, body));
        if (action !== "stop") current.scrollIntoView({ block: "nearest" });
      } catch (error) {
        fault.textContent = error.message;
        isDone = false;
      }
      this.isActing = false;
      this.poll();
      return isDone;
    }
    show({ token, training }) {
      const { allowed, status, current } = this.parts;
      this.token = token;
      this.form ??= new TrainingForm(this.parts, this.source, (action, body) => this.act(action, body));
      allowed.hidden = false;
      status.textContent = "";
      current.hidden = !training;
      this.form.setBusy(training && training.state !== "ended" ? training.run.name : null);
      if (!training) return;
      this.showState(training);
      this.showConsole(training);
    }
    showState({ run, state, exit_code: code, lines, can_stop: canStop }) {
      const { name, reason, progress, stop, resume, links } = this.parts;
      const isWrong = state === "ended" && !(code in ENDINGS);
      name.textContent = run.name;
      say(this.parts.state, describeTraining(run, state, code), isWrong);
      reason.textContent = isWrong ? lines.at(-1) ?? "" : "";
      progress.max = run.max_steps ?? 1;
      progress.value = run.step;
      progress.hidden = run.max_steps === null;
      stop.hidden = state === "ended" || !canStop;
      stop.disabled = state === "stopping";
      resume.hidden = state !== "ended" || !isUnfinished(run);
      stop.parentElement.hidden = stop.hidden && resume.hidden;
      const targets = state === "ended" && run.has_checkpoint ? createModelLinks(run.name, this.context) : [];
      if (links.childElementCount !== targets.length) links.replaceChildren(...targets);
    }
    showConsole({ lines, command: words }) {
      const { console: printed, command } = this.parts;
      const isAtEnd = printed.scrollTop + printed.clientHeight >= printed.scrollHeight - 4;
      printed.textContent = lines.join("\n");
      if (isAtEnd) printed.scrollTop = printed.scrollHeight;
      command.textContent = words;
      command.parentElement.hidden = words === "";
    }
    async followRun(name) {
      const { sample, sampleTitle, sampleText } = this.parts;
      const run = await this.curves.update(name);
      this.draw([{ run, hue: 0 }]);
      const step = run.samples.at(-1);
      sample.hidden = step === void 0;
      if (step === void 0 || this.shownSample === `${name} ${step}`) return;
      this.shownSample = `${name} ${step}`;
      const { text } = await this.source.sample({ name, step });
      sampleTitle.textContent = `What it wrote at step ${withCommas(step)}`;
      sampleText.textContent = text;
    }
  };
  function isUnfinished(run) {
    return run.max_steps !== null && run.step < run.max_steps && !run.training && !run.problem;
  }
  function describeTraining(run, state, code) {
    const steps = run.max_steps === null ? "" : `step ${withCommas(run.step)} of ${withCommas(run.max_steps)}`;
    const best = run.best_val_loss === null ? "" : `best validation loss ${run.best_val_loss.toFixed(4)} nats per token`;
    const left = run.seconds_left === null ? "" : `about ${describeRough(run.seconds_left)} left`;
    const words = state === "ended" ? ENDINGS[code] ?? "Ended with an error" : STATES[state];
    return `${joined(words, steps, left, best)}.`;
  }

  // gpt/web/src/shell.js
  function startShell(nav, root, views, context) {
    const opened = /* @__PURE__ */ new Map();
    const { title } = document;
    const links = views.map(({ name, title: title2 }) => Object.assign(create("a", "", title2), { href: `#${name}` }));
    const addresses = views.map(({ name, title: title2 }) => [name, title2.toLowerCase().replaceAll(" ", "-")]);
    nav.replaceChildren(...links);
    function open() {
      const asked = location.hash.slice(1).toLowerCase();
      const view = views[Math.max(
        0,
        addresses.findIndex((names) => names.includes(asked))
      )];
      for (const link of links) link.removeAttribute("aria-current");
      links[views.indexOf(view)].setAttribute("aria-current", "page");
      document.body.dataset.view = view.name;
      document.title = `${view.title} · ${title}`;
      const known = opened.get(view);
      const place = known ?? { section: createSection(view), refresh: null };
      opened.set(view, place);
      if (!place.section.isConnected) root.replaceChildren(place.section);
      if (known) place.refresh?.();
      else place.refresh = view.show(place.section.lastChild, context);
    }
    addEventListener("hashchange", open);
    open();
    return open;
  }
  function createSection({ name, title, sentence }) {
    const parts2 = [create("h1", "", title), create("p", "guide", sentence), create("div", "view-body")];
    return create("section", `view view-${name}`, ...parts2);
  }

  // gpt/web/src/views/attention.html
  var attention_default = '<p class="guide">\n  Each row of a matrix is one token looking back; the color in a column shows how much weight it gives the token there:\n  <code>weights[layer, head, i, j]</code> is the weight of query <code>i</code> on key <code>j</code>. A row sums to 1,\n  and the hatched half is empty because no token sees what comes after it. Look for a line just below the diagonal (a\n  head that looks at the previous token), the diagonal itself (at its own token), a strong left column (at the first\n  token, often to do nothing), other vertical stripes (one token that many look at, such as a line break), and slanted\n  streaks farther off (repeated text).\n</p>\n<div class="toolbar">\n  <div class="legend" id="legend"></div>\n  <label><input type="checkbox" id="stretch" checked> stretch small weights</label>\n</div>\n<div class="columns">\n  <section aria-labelledby="heads-title">\n    <h2 id="heads-title">All heads</h2>\n    <p class="hint">Layers down, heads across. Click one, or use the arrow keys.<span class="ablation-hint" hidden>\n      Press X to ablate it.</span></p>\n    <div class="scroll"><div class="heads" id="heads"></div></div>\n  </section>\n  <section aria-labelledby="matrix-title">\n    <div class="matrix-head">\n      <h2 id="matrix-title"></h2>\n      <label class="ablation-hint" hidden><input type="checkbox" id="ablate"> ablate</label>\n    </div>\n    <p class="hint" id="summary"></p>\n    <p class="hint">\n      Rows look (queries), columns are looked at (keys). Click to keep a row; the arrow keys move.\n      <label class="zoom">Cell size <input type="range" id="zoom" min="2" max="32" step="1"></label>\n    </p>\n    <output class="readout" id="readout" aria-live="polite"></output>\n    <div class="scroll matrix-box" id="box">\n      <div class="matrix" id="matrix">\n        <div class="corner"></div>\n        <div class="keys" id="keys" aria-hidden="true"></div>\n        <div class="queries" id="queries" aria-hidden="true"></div>\n        <div class="plot" id="plot" tabindex="0" role="application">\n          <canvas id="canvas"></canvas>\n          <div class="row-mark"></div>\n          <div class="cell-mark"></div>\n        </div>\n      </div>\n    </div>\n  </section>\n</div>\n<section aria-labelledby="text-title">\n  <h2 id="text-title">The text, seen from one token</h2>\n  <p class="hint">The framed token looks; the colors are its weights. Click another, or use the arrow keys.</p>\n  <div class="text" id="text"></div>\n  <p class="hint">The same weights as arcs: the thicker the arc, the more weight on the token where it ends.</p>\n  <div class="scroll arcs-box" tabindex="0" role="group" aria-label="arcs over the text"><svg class="arcs" id="arcs" role="img"></svg></div>\n</section>\n<section class="ablation" id="ablation" hidden></section>\n';

  // gpt/web/src/colors.js
  var RAMP = ["#eaf6fa", "#afdff6", "#79c5f0", "#4ca9e6", "#2f8bd4", "#266db9", "#275196", "#24396e", "#1c2345"].map(
    (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16))
  );
  var MAX_BITS = 8;
  var darkTheme = null;
  var redraws = /* @__PURE__ */ new Map();
  function theme() {
    if (!darkTheme) {
      darkTheme = matchMedia("(prefers-color-scheme: dark)");
      darkTheme.addEventListener("change", () => redraws.forEach((draw) => draw()));
    }
    return darkTheme;
  }
  function drawInTheme(root, draw) {
    redraws.set(root, draw);
    draw();
  }
  function colorOf(share) {
    const clamped = Math.min(1, Math.max(0, share));
    const place = (theme().matches ? 1 - clamped : clamped) * (RAMP.length - 1);
    const below = Math.min(Math.floor(place), RAMP.length - 2);
    return RAMP[below].map((low, channel) => Math.round(low + (RAMP[below + 1][channel] - low) * (place - below)));
  }
  function paint(element, share) {
    const [red, green, blue] = colorOf(share);
    const [r, g, b] = [red, green, blue].map((value) => (value / 255) ** 2.2);
    element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
    element.style.color = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
  }
  function paintBits(element, bits) {
    paint(element, bits / MAX_BITS);
  }
  function unpaint(element) {
    element.style.backgroundColor = element.style.color = "";
  }
  function drawLegend(container, title, ticks, color = colorOf) {
    const bar = create("div", "legend-bar");
    const stops = Array.from({ length: 17 }, (_, stop) => `rgb(${color(stop / 16).join(" ")})`);
    bar.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
    const axis = create("div", "legend-axis");
    for (const [place, text] of ticks) {
      const tick = create("span", "", text);
      tick.style.left = `${100 * place}%`;
      axis.append(tick);
    }
    container.replaceChildren(create("div", "legend-title", title), bar, axis);
  }
  function drawBitsLegend(container, title) {
    const nameOf = (bits) => bits === MAX_BITS ? `${bits}+` : String(bits);
    drawLegend(
      container,
      title,
      [0, 2, 4, 6, 8].map((bits) => [bits / MAX_BITS, nameOf(bits)])
    );
  }

  // gpt/web/src/tokens.js
  function quoted(label) {
    return `'${label}'`;
  }
  function decimals(value) {
    return value > 0 && value < 5e-4 ? "<0.001" : value.toFixed(3);
  }
  function createBar(className, share) {
    const bar = create("span", className);
    bar.style.width = `${100 * share}%`;
    return bar;
  }
  function drawBars(list, entries, classOf) {
    const items = entries.map(
      ([name, probability], index) => create(
        "li",
        classOf(index),
        create("span", "name", name),
        create("span", "bar", createBar("fill", probability)),
        create("span", "value", decimals(probability))
      )
    );
    list.replaceChildren(...items);
  }
  function writeText(container, labels, role = "button") {
    return labels.map((label) => {
      const item = create("span", "token", label);
      if (role) item.setAttribute("role", role);
      container.append(item);
      if (label === "␣") container.append(create("wbr"));
      if (label === "⏎") container.append(create("br"));
      return item;
    });
  }
  function makeChoosable(container, items, columns, choose, preview = null) {
    let chosen = 0;
    items.forEach((item, index) => {
      item.dataset.index = index;
      item.tabIndex = -1;
    });
    const pick = (index, ...details) => {
      if (chosen in items) {
        items[chosen].tabIndex = -1;
        items[chosen].removeAttribute("aria-current");
      }
      chosen = index;
      items[chosen].tabIndex = 0;
      items[chosen].setAttribute("aria-current", "true");
      choose(index, ...details);
    };
    const indexAt = (event) => {
      const item = event.target.closest("[data-index]");
      return item ? Number(item.dataset.index) : null;
    };
    container.addEventListener("click", (event) => {
      const index = indexAt(event);
      if (index === null) return;
      pick(index);
      items[index].focus({ preventScroll: true });
    });
    container.addEventListener("keydown", (event) => {
      const next = keyIn(neighbors(chosen, Math.min(columns, items.length)), event);
      if (!(next in items)) return;
      event.preventDefault();
      pick(next);
      items[next].focus();
    });
    if (preview) {
      container.addEventListener("pointerover", (event) => {
        if (event.pointerType === "mouse") preview(indexAt(event));
      });
      container.addEventListener("pointerleave", () => preview(null));
    }
    return pick;
  }
  function makeReadable(container, items, columns, show) {
    let chosen = 0;
    const choose = (index) => {
      chosen = index;
      show(index);
    };
    return makeChoosable(container, items, columns, choose, (index) => show(index ?? chosen));
  }
  function neighbors(place, columns) {
    const column = place % columns;
    return {
      ArrowLeft: column > 0 ? place - 1 : place,
      ArrowRight: column < columns - 1 ? place + 1 : place,
      ArrowUp: place - columns,
      ArrowDown: place + columns,
      Home: place - column,
      End: place - column + columns - 1
    };
  }

  // gpt/web/src/views/ablation.html
  var ablation_default = '<h2>Ablation</h2>\n<p class="guide">\n  Set the output of heads to zero to see what they contribute. Look for heads without which the text surprises the model\n  much more, and for heads that make no difference. The attention above is then that of the model without them.\n</p>\n<p class="hint none" data-part="none">No head is ablated. Tick "ablate" beside the matrix, or press X on one of the heads.</p>\n<div class="chips"><span class="ablated" data-part="ablated"></span> <button type="button" class="clear" data-part="clear" hidden>Restore all</button></div>\n<output class="status" data-part="status"></output>\n<div class="effects" data-part="effects" hidden>\n  <p class="readout effect" data-part="effect"></p>\n  <div class="legend" data-part="bits-legend"></div>\n  <p class="hint">\n    The text, colored by surprise, followed by what the model writes when it always takes the most likely token; a bar\n    marks where the two texts diverge.\n  </p>\n  <div class="compared">\n    <div><h3>With all heads</h3><div class="text with-all" data-part="with-all"></div></div>\n    <div><h3>Without the ablated heads</h3><div class="text without" data-part="without"></div></div>\n  </div>\n</div>\n';

  // gpt/web/src/views/ablation.js
  var CONTINUED = 48;
  function showAblation(root, view, source, { marked, changed }) {
    const parts2 = fill(root, ablation_default);
    const { model, text, labels } = view;
    let heads = [];
    let running = null;
    let whole = null;
    let left = null;
    function toggle(layer, head2) {
      const others = heads.filter(([one, other]) => one !== layer || other !== head2);
      choose(others.length < heads.length ? others : [...heads, [layer, head2]]);
    }
    function choose(chosen) {
      heads = chosen;
      marked(heads);
      parts2.none.hidden = heads.length > 0;
      parts2.clear.hidden = heads.length === 0;
      parts2.ablated.replaceChildren(...heads.map(createChip));
      compute();
    }
    function createChip([layer, head2]) {
      const name = `layer ${layer}, head ${head2}`;
      return createButton("chip", `${name} ×`, () => toggle(layer, head2), `restore ${name}`);
    }
    async function compute() {
      running?.abort();
      running = new AbortController();
      const { signal } = running;
      say(parts2.status, "Computing…");
      try {
        whole ??= await ask([], signal);
        left = heads.length ? await ask(heads, signal) : null;
        const attention = await source.attention({ model, text, ablate: heads, signal });
        if (signal.aborted) return;
        say(parts2.status, "");
        changed(attention);
      } catch (error) {
        if (!signal.aborted) say(parts2.status, error.message, true);
      }
    }
    async function ask(ablate, signal) {
      const surprisal = labels.length > 1 ? await source.surprisal({ model, text, ablate, signal }) : null;
      const continuation = await source.continuation({ model, text, ablate, count: CONTINUED, signal });
      return { bits: surprisal?.bits ?? [null], mean: surprisal?.mean_bits ?? null, written: continuation.labels };
    }
    function draw() {
      parts2.effects.hidden = left === null;
      if (left === null) return;
      parts2.effect.textContent = left.mean === null ? "" : describeEffect(left.mean, whole.mean, heads.length);
      const parting = left.written.findIndex((label, index) => label !== whole.written[index]);
      drawText(parts2.withAll, whole, parting);
      drawText(parts2.without, left, parting);
      drawBitsLegend(parts2.bitsLegend, "bits of surprise");
    }
    function drawText(box, { bits, written }, parting) {
      box.replaceChildren();
      const tokens = writeText(box, [...labels, ...written], null);
      tokens.forEach((token, index) => {
        if (index >= labels.length) token.classList.add("continued");
        else if (bits[index] !== null) paintBits(token, bits[index]);
      });
      if (parting >= 0) tokens[labels.length + parting].classList.add("parting");
    }
    parts2.clear.addEventListener("click", () => choose([]));
    return { toggle, draw };
  }
  function describeEffect(left, whole, count) {
    const change = `${left < whole ? "−" : "+"}${Math.abs(left - whole).toFixed(3)}`;
    const without = `${left.toFixed(3)} bits per token without ${count === 1 ? "it" : "them"}`;
    return `${without}, ${whole.toFixed(3)} with all heads (${change}).`;
  }

  // gpt/web/src/views/arcs.js
  var CELL = 15;
  var FAINTEST = 0.01;
  var HIGHEST = 150;
  function showArcs(svg, labels, choose) {
    const size = labels.length;
    const top = within(size * CELL / 2 - 20, HIGHEST - 20) + 32;
    const middle = (index) => (index + 0.5) * CELL;
    const arcs = createIn(svg, "g");
    const texts = labels.map((label, index) => {
      const title = createIn(svg, "title", {}, label);
      const place = { x: middle(index), y: top + 16, "data-index": index };
      return createIn(svg, "text", place, [...label].length > 1 ? "·" : label, title);
    });
    svg.setAttribute("width", size * CELL);
    svg.setAttribute("height", top + 24);
    svg.replaceChildren(arcs, ...texts);
    svg.addEventListener("click", (event) => {
      choose(within(Math.floor((event.clientX - svg.getBoundingClientRect().left) / CELL), size - 1));
    });
    function createArc(query, key, weight) {
      const peak = top - (10 + (top - 22) * Math.sqrt((query - key) / size)) * 4 / 3;
      const [from, to] = [middle(query), middle(key)];
      const path = key === query ? `M ${from - 3} ${top} a 5 7 0 1 1 6 0` : `M ${from} ${top} C ${from} ${peak}, ${to} ${peak}, ${to} ${top}`;
      const strength = { "stroke-width": 1 + 5 * weight, opacity: 0.2 + 0.8 * weight };
      const title = createIn(svg, "title", {}, `${quoted(labels[key])} (${key}): ${decimals(weight)}`);
      return createIn(svg, "path", { d: path, "data-key": key, ...strength }, title);
    }
    return (query, weights) => {
      const seen = Array.from(weights, (weight, key) => [weight, key]).filter(([weight]) => weight >= FAINTEST);
      seen.sort(([one], [other]) => one - other);
      arcs.replaceChildren(...seen.map(([weight, key]) => createArc(query, key, weight)));
      texts.forEach((text, index) => {
        text.classList.toggle("looking", index === query);
        text.classList.toggle("later", index > query);
        text.classList.toggle("seen", weights[index] >= FAINTEST);
      });
      const box = svg.parentElement;
      const isInSight = middle(query) > box.scrollLeft && middle(query) < box.scrollLeft + box.clientWidth;
      if (!isInSight) box.scrollLeft = middle(query) - box.clientWidth / 2;
    };
  }

  // gpt/web/src/engine/weights.js
  function decodeBase64(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text.trim());
    const characters = atob(text);
    const bytes = new Uint8Array(characters.length);
    for (let index = 0; index < bytes.length; index++) bytes[index] = characters.charCodeAt(index);
    return bytes;
  }

  // gpt/web/src/views/heads.js
  function unpack(text) {
    const bytes = decodeBase64(text);
    return Float32Array.from(
      { length: bytes.length / 2 },
      (_, index) => (bytes[2 * index] + 256 * bytes[2 * index + 1]) / 65535
    );
  }
  var Heads = class {
    constructor({ labels, layers, heads, weights }) {
      this.size = labels.length;
      this.heads = heads;
      this.count = layers * heads;
      this.weights = typeof weights === "string" ? unpack(weights) : weights;
    }
    /** The weights of a query on the keys up to itself; `head` counts those of all layers. */
    row(head2, query) {
      const begin = (head2 * this.size * (this.size + 1) + query * (query + 1)) / 2;
      return this.weights.subarray(begin, begin + query + 1);
    }
    strongestKey(head2, query) {
      const row = this.row(head2, query);
      return row.indexOf(row.reduce((most, weight) => Math.max(most, weight)));
    }
    nameOf(head2) {
      return `layer ${Math.floor(head2 / this.heads)}, head ${head2 % this.heads}`;
    }
    /** Where a head looks, averaged over the queries that have more than one key. */
    summarize(head2) {
      const sums = { itself: 0, previous: 0, first: 0, distance: 0, entropy: 0 };
      const from = this.size > 1 ? 1 : 0;
      for (let query = from; query < this.size; query++) {
        const row = this.row(head2, query);
        sums.itself += row[query];
        sums.previous += query ? row[query - 1] : 0;
        sums.first += row[0];
        row.forEach((weight, key) => {
          sums.distance += weight * (query - key);
          sums.entropy -= weight ? weight * Math.log2(weight) : 0;
        });
      }
      for (const name of Object.keys(sums)) sums[name] /= this.size - from;
      return sums;
    }
  };

  // gpt/web/src/views/attention.js
  var THUMBNAIL = 96;
  var STEPS2 = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  function showAttention(root, view, source = null) {
    new AttentionView(root, view, source);
  }
  var AttentionView = class {
    constructor(root, view, source) {
      this.parts = fill(root, attention_default);
      this.labels = view.labels;
      this.size = view.labels.length;
      this.head = (view.layer ?? 0) * view.heads + (view.head ?? 0);
      this.query = this.size - 1;
      this.key = 0;
      this.pointed = null;
      this.heads = new Heads(view);
      root.style.setProperty("--size", this.size);
      const { text, arcs, queries, keys, box } = this.parts;
      this.ticks = [queries, keys].map((axis) => this.labels.map((label) => this.addTick(axis, label)));
      this.tokens = writeText(text, this.labels);
      this.thumbnails = this.addThumbnails(view);
      this.drawArcs = showArcs(arcs, this.labels, (query) => this.chooseQuery(query));
      this.ablation = source && this.allowAblation(root, view, source);
      this.chooseHead = makeChoosable(this.parts.heads, this.thumbnails, view.heads, (head2) => {
        this.head = head2;
        this.drawChosenHead();
      });
      this.chooseQuery = makeChoosable(
        text,
        this.tokens,
        this.size,
        (query, key = this.heads.strongestKey(this.head, query)) => this.chooseCell(query, key),
        (key) => this.point(key === null ? null : { query: this.query, key })
      );
      this.listen();
      this.setCellSize(Math.min(28, Math.max(4, Math.floor((box.clientWidth - 48) / this.size))));
      drawInTheme(root, () => this.draw());
      this.chooseHead(this.head);
      this.chooseQuery(this.query);
    }
    addTick(axis, label) {
      const tick = create("span", label.length > 1 ? "long" : "", label);
      axis.append(tick);
      return tick;
    }
    addThumbnails({ layers, heads }) {
      const grid = this.parts.heads;
      grid.style.setProperty("--heads", heads);
      grid.append(create("span"), ...Array.from({ length: heads }, (_, head2) => create("span", "", head2)));
      const buttons = Array.from(
        { length: layers * heads },
        (_, head2) => createButton("thumbnail", create("canvas"), null, this.heads.nameOf(head2))
      );
      buttons.forEach((button, head2) => {
        if (head2 % heads === 0) grid.append(create("span", "", head2 / heads));
        grid.append(button);
      });
      return buttons;
    }
    allowAblation(root, view, source) {
      const { ablation: section, ablate, heads } = this.parts;
      for (const element of [section, ...root.querySelectorAll(".ablation-hint")]) element.hidden = false;
      const ablation = showAblation(section, view, source, {
        marked: (ablated) => this.markAblated(ablated.map(([layer, head2]) => layer * view.heads + head2)),
        changed: (changed) => {
          this.heads = new Heads(changed);
          this.draw();
        }
      });
      const toggle = () => ablation.toggle(Math.floor(this.head / view.heads), this.head % view.heads);
      ablate.addEventListener("change", toggle);
      heads.addEventListener("keydown", (event) => event.key.toLowerCase() === "x" && toggle());
      return ablation;
    }
    markAblated(ablated) {
      this.thumbnails.forEach((button, head2) => {
        const isAblated = ablated.includes(head2);
        button.classList.toggle("ablated-head", isAblated);
        button.setAttribute("aria-label", this.heads.nameOf(head2) + (isAblated ? ", ablated" : ""));
      });
      this.showWhetherAblated();
    }
    showWhetherAblated() {
      this.parts.ablate.checked = this.thumbnails[this.head].classList.contains("ablated-head");
    }
    listen() {
      const { plot, zoom, stretch } = this.parts;
      plot.addEventListener("pointermove", (event) => {
        if (event.pointerType === "mouse") this.point(this.cellAt(event));
      });
      plot.addEventListener("pointerleave", () => this.point(null));
      plot.addEventListener("click", (event) => {
        const { query, key } = this.cellAt(event);
        this.chooseQuery(query, key);
      });
      plot.addEventListener("keydown", (event) => {
        const step = keyIn(STEPS2, event);
        if (!step) return;
        event.preventDefault();
        this.chooseQuery(within(this.query + step[0], this.size - 1), within(this.key + step[1], this.size - 1));
      });
      zoom.addEventListener("input", () => {
        this.setCellSize(Number(zoom.value));
        this.reveal();
      });
      stretch.addEventListener("change", () => this.draw());
    }
    shareOf(weight) {
      return this.parts.stretch.checked ? Math.sqrt(weight) : weight;
    }
    /** Draws all that depends on the colors or on the weights. */
    draw() {
      const step = Math.ceil(this.size / THUMBNAIL);
      const inks = this.inks();
      this.thumbnails.forEach((button, head2) => this.drawHead(button.firstChild, head2, step, inks));
      const ticks = this.parts.stretch.checked ? [0, 0.02, 0.1, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
      drawLegend(
        this.parts.legend,
        "weight",
        ticks.map((weight) => [this.shareOf(weight), String(weight)])
      );
      this.drawChosenHead();
      this.ablation?.draw();
    }
    inks() {
      return Array.from({ length: 256 }, (_, share) => [...colorOf(share / 255), 255]);
    }
    /** Draws the lower triangle, the largest of `step` x `step` weights to a pixel so that thin lines stay. */
    drawHead(canvas, head2, step, inks) {
      const side = Math.ceil(this.size / step);
      const largest = new Float32Array(side * side).fill(-1);
      for (let query = 0; query < this.size; query++) {
        const row = Math.floor(query / step) * side;
        this.heads.row(head2, query).forEach((weight, key) => {
          const pixel = row + Math.floor(key / step);
          largest[pixel] = Math.max(largest[pixel], weight);
        });
      }
      const image = new ImageData(side, side);
      largest.forEach((weight, pixel) => {
        if (weight >= 0) image.data.set(inks[Math.round(255 * this.shareOf(weight))], 4 * pixel);
      });
      canvas.width = canvas.height = side;
      canvas.getContext("2d").putImageData(image, 0, 0);
    }
    drawChosenHead() {
      const { matrixTitle, summary, plot, canvas } = this.parts;
      const { itself, previous, first, distance, entropy } = this.heads.summarize(this.head);
      const name = this.heads.nameOf(this.head);
      matrixTitle.textContent = name.replace("l", "L");
      summary.textContent = `Average weight on the previous token ${decimals(previous)}, on itself ${decimals(itself)}, on the first ${decimals(first)}; it looks back ${distance.toFixed(1)} positions, with an entropy of ${entropy.toFixed(1)} bits.`;
      plot.setAttribute("aria-label", `weights of ${name}; the arrow keys move through them`);
      this.drawHead(canvas, this.head, 1, this.inks());
      this.showWhetherAblated();
      this.showCell();
    }
    chooseCell(query, key) {
      Object.assign(this, { query, key, pointed: null });
      this.showCell();
      this.reveal();
    }
    point(cell) {
      this.pointed = cell;
      this.showCell();
    }
    /** Shows the cell under the mouse, or else the chosen one. */
    showCell() {
      const { query, key } = this.pointed ?? this;
      const { plot, readout, arcs } = this.parts;
      const row = this.heads.row(this.head, query);
      plot.style.setProperty("--query", query);
      plot.style.setProperty("--key", key);
      this.ticks.forEach((ticks, axis) => {
        ticks.forEach((tick, index) => tick.classList.toggle("on", index === [query, key][axis]));
      });
      const [from, to] = [query, key].map((index) => `${quoted(this.labels[index])} (${index})`);
      readout.textContent = `from ${from} to ${to}: ${key > query ? "hidden, it comes later" : decimals(row[key])}`;
      this.tokens.forEach((token, index) => {
        if (index <= query) paint(token, this.shareOf(row[index]));
        else unpaint(token);
        token.classList.toggle("later", index > query);
        token.classList.toggle("looking", index === query);
        token.classList.toggle("pointed", index === key);
      });
      this.drawArcs(query, row);
      arcs.setAttribute("aria-label", `arcs from ${from} to what it attends to`);
    }
    /** Scrolls the matrix, and never the page, until the chosen cell is in sight. */
    reveal() {
      const { plot, box, queries, keys } = this.parts;
      const mark = plot.querySelector(".cell-mark").getBoundingClientRect();
      const frame = box.getBoundingClientRect();
      const [left, top] = [frame.left + queries.offsetWidth, frame.top + keys.offsetHeight];
      const [right, bottom] = [frame.left + box.clientWidth, frame.top + box.clientHeight];
      box.scrollLeft += Math.min(0, mark.left - left) + Math.max(0, mark.right - right);
      box.scrollTop += Math.min(0, mark.top - top) + Math.max(0, mark.bottom - bottom);
    }
    setCellSize(pixels) {
      const { matrix, zoom } = this.parts;
      matrix.style.setProperty("--cell", `${pixels}px`);
      matrix.classList.toggle("unlabelled", pixels < 9);
      zoom.value = pixels;
    }
    cellAt(event) {
      const { left, top, width, height } = this.parts.plot.getBoundingClientRect();
      const along = (offset, length) => within(Math.floor(offset / length * this.size), this.size - 1);
      return { query: along(event.clientY - top, height), key: along(event.clientX - left, width) };
    }
  };

  // gpt/web/src/views/lens.html
  var lens_default = `<p class="guide">
  Read a column from top to bottom: under each token of the text is the most likely next token, first from the
  embeddings alone, then after each block; the last row is the model's own prediction. The stronger the color, the
  higher the probability; a framed cell with a dot is the actual next token. Look for the block after which words
  become predictable.
</p>
<div class="toolbar">
  <div class="legend" id="legend"></div>
  <span class="sample"><span class="cell came">e</span> is the actual next token</span>
</div>
<p class="hint">Point at a cell to see its top candidates; click to keep it selected; the arrow keys move.</p>
<div class="scroll"><table class="lens" id="lens-table" role="grid"></table></div>
<section class="details" aria-labelledby="details-title" aria-live="polite">
  <h2 id="details-title"></h2>
  <p class="readout" id="readout"></p>
  <div class="lists">
    <div><h3 id="top-title"></h3><ol class="bars" id="top"></ol></div>
    <div><h3 id="rows-title"></h3><ol class="bars" id="rows"></ol></div>
  </div>
</section>
`;

  // gpt/web/src/views/lens.js
  function showLens(root, { labels, rows, top: candidates, next, next_probability: nextProbability }) {
    const parts2 = fill(root, lens_default);
    const size = labels.length;
    const cells = rows.map((_, row) => labels.map((_2, position) => createCell(row, position)));
    function createCell(row, position) {
      const [label, probability] = candidates[row][position][0];
      const came2 = label === next[position];
      const cell = create("td", came2 ? "cell came" : "cell", label);
      cell.setAttribute("role", "gridcell");
      cell.setAttribute("aria-label", `${label}, ${decimals(probability)}${came2 ? ", the actual next token" : ""}`);
      return cell;
    }
    function draw() {
      const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => [share, String(share)]);
      drawLegend(parts2.legend, "probability of the top candidate", ticks);
      cells.forEach((line, row) => line.forEach((cell, position) => paint(cell, candidates[row][position][0][1])));
    }
    function showDetails(index) {
      const [row, position] = [Math.floor(index / size), index % size];
      const came2 = next[position];
      const entries = candidates[row][position];
      parts2.detailsTitle.textContent = `${rows[row]}, after ${quoted(labels[position])} (${position})`;
      parts2.readout.textContent = came2 === null ? "The text ends here, so there is no next token." : `The next token is ${quoted(came2)}; here its probability is ${decimals(nextProbability[row][position])}.`;
      parts2.topTitle.textContent = `The ${entries.length} most likely`;
      drawBars(parts2.top, entries, (entry) => entries[entry][0] === came2 ? "came" : "");
      parts2.rowsTitle.textContent = came2 === null ? "" : `Probability of ${quoted(came2)}, row by row`;
      const byRow = came2 === null ? [] : rows.map((name, entry) => [name, nextProbability[entry][position]]);
      drawBars(parts2.rows, byRow, (entry) => entry === row ? "chosen" : "");
    }
    const heads = labels.map((label, position) => {
      const head2 = create("th", "", create("span", "position", position), label);
      return Object.assign(head2, { scope: "col" });
    });
    const came = next.map((label) => create("td", "", label ?? ""));
    parts2.lensTable.append(
      create("thead", "", createRow("text", heads)),
      create("tbody", "", ...rows.map((name, row) => createRow(name, cells[row]))),
      create("tfoot", "", createRow("actual next", came))
    );
    const choose = makeReadable(parts2.lensTable, cells.flat(), size, showDetails);
    drawInTheme(root, draw);
    choose(size * (rows.length - 1));
  }
  function createRow(name, cells) {
    return create("tr", "", Object.assign(create("th", "", name), { scope: "row" }), ...cells);
  }

  // gpt/web/src/views/reading.html
  var reading_default = '<form class="prompt" data-part="form">\n  <label for="reading-text">Text to read</label>\n  <textarea\n    id="reading-text"\n    rows="3"\n    spellcheck="false"\n    autocapitalize="off"\n    autocomplete="off"\n    placeholder="Type or paste a text, or write one with the model first."\n  ></textarea>\n  <div class="actions">\n    <button type="submit">Read</button>\n    <span class="hint">The text written last, or another. Ctrl+Enter: read.</span>\n  </div>\n</form>\n<output class="status" data-part="status"></output>\n<div class="reading-body" data-part="body"></div>\n';

  // gpt/web/src/views/surprisal.html
  var surprisal_default = `<p class="guide">
  Each token is colored by its surprisal, <code>-log2</code> of the probability that the model gave it: 0 bits is
  certain, 1 bit a chance of 1 in 2, 8 bits 1 in 256. Look for the first letters of words and names, which surprise the
  model most, and for words that become certain after a few letters.
</p>
<p class="figure"><strong id="mean"></strong> bits per token on average (for a character model, bits per character)</p>
<div class="toolbar">
  <div class="legend" id="legend"></div>
  <span class="sample"><span class="came">e</span> in a list is the actual token</span>
</div>
<p class="hint">Point at a token to see what the model expected there; click to keep it selected; the left and right arrow keys move.</p>
<div class="text" id="text"></div>
<section class="details" aria-labelledby="details-title" aria-live="polite">
  <h2 id="details-title"></h2>
  <p class="readout" id="readout"></p>
  <div class="lists">
    <div><h3>The model's own distribution</h3><ol class="bars" id="before"></ol></div>
    <div><h3 id="after-title"></h3><ol class="bars" id="after"></ol></div>
  </div>
</section>
`;

  // gpt/web/src/views/surprisal.js
  function showSurprisal(root, { labels, bits, before, after, mean_bits: mean, settings }) {
    const parts2 = fill(root, surprisal_default);
    const tokens = writeText(parts2.text, labels);
    function draw() {
      drawBitsLegend(parts2.legend, "bits");
      tokens.forEach((token, index) => bits[index] !== null && paintBits(token, bits[index]));
    }
    function isNeverPicked(index) {
      const isWhole = after[index].length < before[index].length;
      return isWhole && after[index].every(([label]) => label !== labels[index]);
    }
    function describe(index) {
      if (bits[index] === null) return "This is the first token: there is nothing to predict it from.";
      const rest = isNeverPicked(index) ? " Sampling with these settings never picks it." : "";
      return `${bits[index].toFixed(2)} bits; its probability was ${decimals(2 ** -bits[index])}.${rest}`;
    }
    function showDetails(index) {
      parts2.detailsTitle.textContent = `${quoted(labels[index])} (${index})`;
      parts2.readout.textContent = describe(index);
      for (const [list, entries] of [
        [parts2.before, before[index]],
        [parts2.after, after[index]]
      ]) {
        drawBars(list, entries, (entry) => entries[entry][0] === labels[index] ? "came" : "");
      }
    }
    tokens.forEach((token, index) => {
      token.classList.toggle("unknown", bits[index] === null);
      token.setAttribute("aria-label", labels[index] + (bits[index] === null ? "" : `, ${bits[index].toFixed(1)} bits`));
    });
    parts2.mean.textContent = mean.toFixed(3);
    parts2.afterTitle.textContent = `With ${settings}`;
    const choose = makeReadable(parts2.text, tokens, labels.length, showDetails);
    drawInTheme(root, draw);
    choose(Math.min(1, labels.length - 1));
  }

  // gpt/web/src/views/trace.html
  var trace_default = '<p class="guide">\n  Every operation of one forward pass, from the ids to the logits: look for how the shape changes where the heads are\n  split and joined again, for the scores that grow with the square of the text, and for the stream whose spread grows\n  from block to block.\n</p>\n<p class="hint" data-part="axes"></p>\n<div class="trace">\n  <div class="operations" data-part="list" role="listbox" aria-label="operations; the up and down arrow keys move"></div>\n  <section class="details" aria-live="polite">\n    <h2 class="operation-title" data-part="title"></h2>\n    <p data-part="about"></p>\n    <table class="operation-facts" data-part="facts"></table>\n    <figure class="heat" data-part="heat">\n      <canvas class="heat-canvas" data-part="canvas"></canvas>\n      <figcaption class="hint" data-part="caption"></figcaption>\n    </figure>\n    <div class="legend" data-part="legend"></div>\n  </section>\n</div>\n';

  // gpt/web/src/views/trace.js
  var AXES2 = {
    B: "texts of the batch",
    T: "positions of the text",
    S: "positions that are looked at",
    C: "width of the stream",
    H: "heads",
    K: "key and value heads",
    D: "width of a head",
    F: "hidden units",
    V: "different tokens"
  };
  var NEGATIVE = [208, 84, 24];
  function showTrace(root, { operations }) {
    const parts2 = fill(root, trace_default);
    const items = operations.map(createItem);
    const readers = operations.map(() => []);
    operations.forEach(({ inputs }, number) => inputs.forEach((input) => readers[input].push(number)));
    let chosen = 0;
    function choose(number) {
      chosen = number;
      const operation = operations[number];
      items.forEach((item, index) => {
        item.setAttribute("aria-selected", String(index === number));
        item.classList.toggle("is-input", operation.inputs.includes(index));
        item.classList.toggle("is-reader", readers[number].includes(index));
      });
      parts2.title.textContent = operation.name;
      parts2.about.textContent = operation.about;
      const facts = factsOf(operation, operation.inputs.map(createLink), readers[number].map(createLink));
      parts2.facts.replaceChildren(...facts.filter(([, value]) => value.length).map(createFact));
      drawHeat(parts2, operation);
    }
    function createLink(number) {
      return createButton("link", operations[number].about, () => {
        pick(number);
        items[number].focus();
      });
    }
    const letters = new Set(operations.flatMap(({ axes: axes2 }) => axes2.split(/[ *]/)));
    const axes = Object.entries(AXES2).filter(([axis]) => letters.has(axis));
    parts2.axes.textContent = axes.map(([axis, about]) => `${axis} ${about}`).join(" · ");
    let group = null;
    items.forEach((item, number) => {
      const title = groupOf(operations, number);
      if (title !== group) parts2.list.append(create("div", "group", title));
      group = title;
      parts2.list.append(item);
    });
    const pick = makeChoosable(parts2.list, items, 1, choose);
    pick(
      Math.max(
        0,
        operations.findIndex(({ about }) => about.startsWith("attention weights"))
      )
    );
    parts2.list.scrollTop = items[chosen].offsetTop - parts2.list.offsetTop - parts2.list.clientHeight / 2;
    drawInTheme(root, () => drawHeat(parts2, operations[chosen]));
  }
  function groupOf(operations, number) {
    const { layer } = operations[number];
    if (layer !== null) return `Block ${layer}`;
    return operations.slice(0, number).some((other) => other.layer !== null) ? "After the blocks" : "Before the blocks";
  }
  function createItem({ about, shape, axes, is_view: isView }) {
    const words = [create("span", "about", about), create("span", "shape", namedShape(axes, shape))];
    const item = create("div", isView ? "operation is-view" : "operation", ...words);
    item.setAttribute("role", "option");
    return item;
  }
  function factsOf(operation, inputs, readers) {
    const { axes, shape, dtype, bytes, is_view: isView, flops, source, statistics: values, parameters } = operation;
    const count = (amount) => amount.toLocaleString("en");
    const isMeasured = values && values.mean !== null;
    return [
      ["shape", `${namedShape(axes, shape)} ${dtype}`],
      ["module", operation.module || "the model itself"],
      ["file", source],
      ["reads", inputs],
      ["read by", readers],
      ...parameters.map((use) => ["parameter", `${use.name}, ${namedShape(use.axes, use.shape)}`]),
      ["bytes", isView ? `${count(bytes)}, shared with what it reads` : count(bytes)],
      ["FLOPs", flops ? count(flops) : ""],
      ["mean, std", isMeasured ? `${rounded(values.mean)}, ${rounded(values.std)}` : ""],
      ["min, max", isMeasured ? `${rounded(values.min)}, ${rounded(values.max)}` : ""],
      ["not finite", values?.infinite ? `${count(values.infinite)} values` : ""]
    ];
  }
  function createFact([name, value]) {
    const words = [value].flat().flatMap((part, index) => index ? [", ", part] : [part]);
    return createRow(name, [create("td", "", ...words)]);
  }
  function drawHeat({ heat: figure, canvas, caption, legend }, { heat, shape }) {
    figure.hidden = legend.hidden = !heat;
    if (!heat) return;
    const { rows, columns, scale } = heat;
    const cells = atob(heat.cells);
    const image = new ImageData(columns, rows);
    for (let index = 0; index < cells.length; index++) {
      const step = cells.charCodeAt(index);
      if (step > 0) image.data.set([...signedColorOf((step - 128) / 127), 255], 4 * index);
    }
    Object.assign(canvas, { width: columns, height: rows });
    canvas.getContext("2d").putImageData(image, 0, 0);
    canvas.style.aspectRatio = `${columns} / ${rows}`;
    canvas.style.maxWidth = `${Math.min(columns * 16, Math.round(columns / rows * 320))}px`;
    caption.textContent = describeHeat(shape, heat);
    const ticks = [
      [0, rounded(-scale)],
      [0.5, "0"],
      [1, rounded(scale)]
    ];
    drawLegend(legend, "value", ticks, (share) => signedColorOf(2 * share - 1));
  }
  function describeHeat(shape, { rows, columns, height, width }) {
    const others = shape.slice(0, -2);
    const slice = `[${[...others.map(() => 0), ":", ":"].join(", ")}]`;
    const isPart = others.some((size) => size > 1);
    const part = isPart ? `The first ${height} × ${width} of its values, ${slice}` : "Its values";
    const mean = `; a cell is the mean of about ${Math.round(height * width / (rows * columns))}`;
    const pooled = rows < height || columns < width ? mean : "";
    return `${part}, rows down and columns across${pooled}. Nothing is drawn where a value is not finite.`;
  }
  function namedShape(axes, shape) {
    const names = axes.split(" ");
    return shape.map((size, axis) => names[axis] === String(size) ? size : `${names[axis]} ${size}`).join(" × ");
  }
  function rounded(value) {
    return String(Number(value.toPrecision(4)));
  }
  function signedColorOf(value) {
    if (value >= 0) return colorOf(value);
    return colorOf(0).map((channel, index) => Math.round(channel + (NEGATIVE[index] - channel) * Math.min(1, -value)));
  }

  // gpt/web/src/views/reading.js
  var READINGS = {
    attention: { title: "Attention", least: 1, most: 128, show: showAttention, guide: attention_default },
    lens: { title: "Logit lens", least: 1, most: 128, show: showLens, guide: lens_default },
    surprisal: { title: "Surprisal", least: 2, most: 1024, show: showSurprisal, guide: surprisal_default },
    trace: { title: "Shapes", least: 1, most: 128, show: showTrace, guide: trace_default }
  };
  function readingView(name, windowOf) {
    const { title, guide } = READINGS[name];
    const show = (root, context) => {
      const reading = new Reading(root, name, context, windowOf);
      return () => reading.follow();
    };
    const words = new DOMParser().parseFromString(guide, "text/html").querySelector(".guide").textContent;
    return { name, title, sentence: words.trim().replace(/\s+/g, " "), show };
  }
  var Reading = class {
    constructor(root, name, context, windowOf) {
      this.reading = READINGS[name];
      this.parts = fill(root, reading_default);
      this.ask = (request) => context.source[name](request);
      this.context = context;
      this.window = () => Math.min(this.reading.most, windowOf(context));
      this.running = null;
      this.last = null;
      this.reader = null;
      const { form } = this.parts;
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.read();
      });
      form.addEventListener("keydown", (event) => isSubmit(event) && form.requestSubmit());
      this.follow();
    }
    /** Reads the text written last where that has changed, and the same one with another model. */
    follow() {
      const { text, model } = this.context;
      const field = this.parts.readingText;
      const isSame = text === this.last;
      if (isSame && model === this.reader) return;
      this.last = text;
      if (!isSame) field.value = [...text].slice(-this.window()).join("");
      if ([...field.value].length >= this.reading.least) this.read();
    }
    /** Reads what the field has; of a text longer than the window only the end. */
    async read() {
      const { readingText, status, body } = this.parts;
      this.running?.abort();
      this.running = new AbortController();
      const { signal } = this.running;
      this.reader = this.context.model;
      const most = this.window();
      const characters = [...readingText.value];
      const request = { model: this.reader, text: characters.slice(-most).join("") };
      say(status, "Reading…");
      try {
        const answer = await this.ask({ ...request, signal });
        if (signal.aborted) return;
        say(status, characters.length > most ? `Only the last ${most} of ${characters.length} characters are read.` : "");
        this.reading.show(body, { ...answer, ...request }, this.context.source);
      } catch (error) {
        if (!signal.aborted) say(status, error.message, true);
      }
    }
  };

  // gpt/web/src/views/parting.js
  function markParting(passages) {
    const [first, second] = passages.map(({ tokens }) => tokens.map(({ text }) => text).join(""));
    const both = Math.min(first.length, second.length);
    let place = 0;
    while (place < both && first[place] === second[place]) place++;
    for (const passage of passages) passage.mark(place < both ? tokenAt(passage.tokens, place) : null);
  }
  function tokenAt(tokens, place) {
    let end = 0;
    return tokens.findIndex(({ text }) => {
      end += text.length;
      return end > place;
    });
  }

  // gpt/web/src/views/passage.html
  var passage_default = '<div class="reading">\n  <section>\n    <div class="legend" data-part="legend"></div>\n    <div class="text written" data-part="written" role="group" aria-label="the text; the arrow keys move through it"></div>\n  </section>\n  <section class="details">\n    <h2 class="choice-title" data-part="title">One character</h2>\n    <p class="readout choice" data-part="choice">Point at a character of the text, or move through it with the arrow keys.</p>\n    <div data-part="possible" hidden>\n      <h3>What else was possible</h3>\n      <p class="hint keys-of-bars">\n        <span class="key-of-own"></span> by the model\n        <span class="key-of-sampled"></span> with <span class="sampling" data-part="sampling"></span>\n      </p>\n      <ol class="bars pairs" data-part="pairs"></ol>\n      <p class="hint">Click one to continue the text from it.</p>\n    </div>\n  </section>\n</div>\n';

  // gpt/web/src/views/passage.js
  var TICKS = [
    [0, "1"],
    [0.25, "0.25"],
    [0.5, "0.06"],
    [0.75, "0.016"],
    [1, "0.004"]
  ];
  var Passage = class {
    constructor(root, branch) {
      this.parts = fill(root, passage_default);
      this.branch = branch;
      this.settings = "";
      this.tokens = [];
      this.items = [];
      this.chosen = null;
      const { title, choice, written, legend } = this.parts;
      this.idle = [title.textContent, choice.textContent];
      this.pick = makeChoosable(
        written,
        this.items,
        Infinity,
        (index) => {
          this.chosen = index;
          this.show(index);
        },
        (index) => this.show(index ?? this.chosen)
      );
      drawInTheme(root, () => {
        drawLegend(legend, "probability", TICKS);
        this.items.forEach((_, index) => this.tint(index));
      });
    }
    add(tokens) {
      const { written } = this.parts;
      const isAtEnd = written.scrollTop + written.clientHeight >= written.scrollHeight - 8;
      written.append(...tokens.flatMap((token) => this.addItem(token)));
      if (isAtEnd) written.scrollTop = written.scrollHeight;
    }
    addItem(token) {
      const { label, text, probability } = token;
      const item = create("span", token.isGiven ? "token given" : "token", text === "\n" ? "⏎" : text || "·");
      item.classList.toggle("picked", Boolean(token.isPicked));
      item.classList.toggle("unknown", probability === null);
      item.setAttribute("role", "button");
      item.setAttribute("aria-label", probability === null ? label : `${label}, probability ${decimals(probability)}`);
      item.tabIndex = -1;
      item.dataset.index = String(this.items.length);
      this.tokens.push(token);
      this.items.push(item);
      this.tint(this.items.length - 1);
      return text === "\n" ? [item, "\n"] : [item];
    }
    /** Removes the tokens from `length` on. */
    truncate(length) {
      const { tokens, items } = this;
      const { written } = this.parts;
      tokens.length = items.length = Math.min(length, items.length);
      while (written.lastChild && written.lastChild !== items.at(-1)) written.lastChild.remove();
      if (tokens.at(-1)?.text === "\n") written.append("\n");
      if (this.chosen !== null && this.chosen >= length) {
        this.chosen = null;
        this.show(null);
      }
    }
    /** Lets the tab key reach the text. */
    settle() {
      if (!this.items.length || this.items.some((item) => item.tabIndex === 0)) return;
      const first = this.tokens.findIndex(({ isGiven }) => !isGiven);
      this.pick(first < 0 ? this.items.length - 1 : first);
    }
    focus(index) {
      this.pick(index);
      this.items[index].focus({ preventScroll: true });
    }
    /** Draws a bar before one token, or none. */
    mark(index) {
      this.parts.written.querySelector(".parting")?.classList.remove("parting");
      this.items[index]?.classList.add("parting");
    }
    tint(index) {
      const { probability } = this.tokens[index];
      if (probability !== null) paintBits(this.items[index], -Math.log2(probability));
    }
    show(index) {
      const { title, choice, possible, sampling, pairs: pairs2 } = this.parts;
      const token = this.tokens[index];
      possible.hidden = !token?.own.length;
      title.textContent = token ? `${quoted(token.label)} (${index})` : this.idle[0];
      choice.textContent = token ? describeChoice(token) : this.idle[1];
      if (!token) return;
      sampling.textContent = this.settings;
      const entries = [...token.own];
      if (entries.length && entries.every(([id]) => id !== token.id)) {
        entries.push([token.id, token.label, token.probability]);
      }
      pairs2.replaceChildren(...entries.map((entry) => createAlternative(token, entry, (id) => this.branch(index, id))));
    }
  };
  function describeChoice({ probability, isGiven, isPicked }) {
    if (probability === null) return "There is nothing before it that the model could predict it from.";
    const origin = isGiven ? "; it is part of the prompt" : isPicked ? "; you chose it" : "";
    return `Its probability was ${decimals(probability)}${origin}.`;
  }
  function createAlternative({ id: came, chance, own, sampled: kept }, [id, label, probability], branch) {
    const [, , sampled] = kept.find(([other]) => other === id) ?? [id, label, id === came ? chance : 0];
    const isKnown = id === came || kept.length < own.length;
    const item = create(
      "li",
      sampled ? "" : "dropped",
      createButton("", label, () => branch(id), `continue with ${label}`),
      create("span", "pair", createBar("own", probability), createBar("fill", sampled)),
      create("span", "value", decimals(probability)),
      create("span", "value sampled", sampled ? decimals(sampled) : isKnown ? "never" : "")
    );
    item.classList.toggle("came", id === came);
    return item;
  }

  // gpt/web/src/views/write.html
  var write_default = '<form class="prompt" data-part="form">\n  <label for="prompt">Prompt</label>\n  <textarea\n    id="prompt"\n    rows="3"\n    spellcheck="false"\n    autocapitalize="off"\n    autocomplete="off"\n    placeholder="Empty: the text begins after a line end."\n  ></textarea>\n  <div class="settings">\n    <label>Characters <input type="number" id="count" min="1" step="1" required></label>\n    <label title="Below 1 makes likely characters more likely; 0 always takes the most likely one.">\n      Temperature <input type="number" id="temperature" min="0" max="2" step="any" required>\n    </label>\n    <label title="The same seed gives the same text, here and in sample.py.">\n      Seed <input type="number" id="seed" min="0" max="4294967295" step="1" required>\n    </label>\n  </div>\n  <div class="actions">\n    <button type="submit" id="write-button">Write</button>\n    <button type="button" id="stop" disabled>Stop</button>\n    <button type="button" id="another">Next seed</button>\n    <span class="hint keys-hint">Ctrl+Enter: write. Escape: stop.</span>\n  </div>\n</form>\n<div class="panes" data-part="panes"></div>\n';

  // gpt/web/src/views/write.js
  var WRITE = {
    name: "write",
    title: "Write",
    sentence: "The stronger a character's color, the less likely it was. Look for the first letters of words, where the model has many choices, and for the letters after them, which are almost certain. Point at a character to see what else was possible there."
  };
  var Writer = class {
    constructor(root, start2, source, models, { changed = null, written = null } = {}) {
      this.parts = fill(root, write_default);
      this.source = source;
      this.written = written;
      this.filters = Object.entries(start2.filters).map(([name, schema]) => ({ ...schema, field: fieldOf(name) }));
      const { form, seed, panes, stop, another, count } = this.parts;
      this.fields = { prompt: this.parts.prompt, count, temperature: this.parts.temperature };
      for (const filter of this.filters) {
        this.fields[filter.field] = createNumber(filter);
        seed.parentElement.before(createControl(filter, this.fields[filter.field]));
      }
      this.fields.seed = seed;
      this.panes = models.map(({ name, heading = "" }) => new Pane(this, name, heading));
      panes.append(...this.panes.map(({ element }) => element));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.start();
      });
      form.addEventListener("input", () => changed?.(this.values()));
      stop.addEventListener("click", () => this.stop());
      another.addEventListener("click", () => {
        seed.value = (Number(seed.value) + 1) % 2 ** 32;
        form.dispatchEvent(new Event("input"));
        this.start();
      });
      document.addEventListener("keydown", (event) => {
        if (!root.isConnected) return;
        if (event.key === "Escape") this.stop();
        if (isSubmit(event)) {
          event.preventDefault();
          form.requestSubmit();
        }
      });
      count.max = start2.most;
      this.fill(start2);
    }
    /** Writes values into the form. */
    fill(values) {
      for (const [name, field] of Object.entries(this.fields)) field.value = values[name];
    }
    values() {
      return Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, field.value]));
    }
    /** Starts all texts anew, unless a setting is wrong, which the form shows. */
    start() {
      this.stop();
      if (!this.parts.form.reportValidity()) return;
      const { prompt, ...numbers } = this.values();
      const settings = Object.fromEntries(
        Object.entries(numbers).map(([name, value]) => [camelCase(name), Number(value)])
      );
      for (const pane of this.panes) pane.start(prompt, settings, this.describe(settings));
    }
    describe(settings) {
      const chosen = this.filters.filter((filter) => settings[camelCase(filter.field)] !== filter.default);
      const words = chosen.map(({ field }) => `${field} ${settings[camelCase(field)]}`);
      return [`temperature ${settings.temperature}`, ...words].join(", ");
    }
    stop() {
      for (const { running } of this.panes) running?.abort();
    }
    /** Follows a text that grows or has ended. */
    follow() {
      this.parts.stop.disabled = this.panes.every(({ running }) => !running);
    }
  };
  var Pane = class {
    constructor(writer, model, heading) {
      this.writer = writer;
      this.model = model;
      this.running = null;
      this.status = create("output", "status");
      const body = create("div");
      this.element = create("div", "pane", heading, this.status, body);
      this.passage = new Passage(body, (index, id) => this.branch(index, id));
    }
    start(prompt, settings, words) {
      this.settings = settings;
      this.passage.settings = words;
      this.passage.truncate(0);
      this.run(prompt, settings.count, 0);
    }
    /** Replaces a token, and continues from there; the random numbers of the seed begin anew. */
    branch(index, id) {
      this.running?.abort();
      const { tokens } = this.passage;
      const count = this.settings.count - tokens.slice(0, index + 1).filter(({ isGiven }) => !isGiven).length;
      this.passage.truncate(index);
      this.run([...tokens.map((token) => token.id), id], Math.max(0, count), index);
    }
    /** Lets the text grow, and says how that went. */
    async run(prompt, count, known) {
      const { source, written } = this.writer;
      const control = new AbortController();
      this.running = control;
      this.writer.follow();
      say(this.status, "Writing…");
      const began = performance.now();
      let added = 0;
      const add = (tokens) => {
        if (!control.signal.aborted) added += this.add(tokens, Array.isArray(prompt) ? known : null);
      };
      let fault = null;
      try {
        const request = { ...this.settings, model: this.model(), prompt, count, known, signal: control.signal };
        await Promise.race([source.write(request, add), untilAborted(control.signal)]);
      } catch (error) {
        if (error.name !== "AbortError") fault = error.message;
      }
      if (this.running !== control) return;
      this.running = null;
      this.writer.follow();
      const seconds = (performance.now() - began) / 1e3;
      say(this.status, fault ?? describeRun2(added, this.settings.seed, seconds, source.pace ?? ""), fault !== null);
      this.passage.settle();
      written?.(this.passage.tokens.map(({ text }) => text).join(""));
    }
    /** Adds tokens, the one at `picked` chosen by the reader; returns how many were sampled. */
    add(tokens, picked) {
      const isPicked = tokens.length > 0 && this.passage.tokens.length === picked;
      if (isPicked) Object.assign(tokens[0], { isGiven: false, isPicked: true });
      this.passage.add(tokens);
      const passages = this.writer.panes.map(({ passage }) => passage);
      if (passages.length === 2) markParting(passages);
      if (isPicked) this.passage.focus(picked);
      return tokens.filter((token) => !token.isGiven && !token.isPicked).length;
    }
  };
  function describeRun2(count, seed, seconds, computer) {
    const pace = seconds > 0 ? `, ${Math.round(count / seconds)} per second${computer}` : "";
    return `${count} character${count === 1 ? "" : "s"} written with seed ${seed}${pace}.`;
  }
  function untilAborted(signal) {
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  }
  function fieldOf(filter) {
    return filter.replaceAll("_", "-");
  }
  function createNumber({ field, type, minimum, exclusiveMinimum, maximum }) {
    const input = Object.assign(create("input"), { type: "number", id: field, required: true });
    input.step = type === "integer" ? "1" : "any";
    input.min = minimum ?? (exclusiveMinimum === void 0 ? "" : exclusiveMinimum + 1e-6);
    input.max = maximum ?? "";
    return input;
  }
  function createControl({ field, description = "" }, input) {
    return Object.assign(create("label", "", `${field[0].toUpperCase()}${field.slice(1)} `, input), {
      title: description
    });
  }

  // gpt/web/src/pages/playground.js
  var START = { prompt: "", count: 300, temperature: 0.8, seed: 1337 };
  var UNKNOWN_WINDOW = 64;
  var data = JSON.parse(document.getElementById("data").textContent);
  var head = document.querySelector("header");
  var parts = { ...fill(head, header_default), ...fill(document.querySelector("main"), main_default) };
  head.className = "shell";
  var write = {
    ...WRITE,
    show: (root, context) => {
      const written = (text) => {
        context.text = text;
        remember("text", text);
      };
      return showWriter(root, context, [{ name: () => context.model }], { written });
    }
  };
  var readings = Object.keys(READINGS).map(
    (name) => readingView(name, ({ facts }) => facts?.block_size ?? UNKNOWN_WINDOW)
  );
  function showWriter(root, context, models, events = {}) {
    const { temperature, ...sample } = context.facts?.sample ?? START;
    const filters = Object.entries(data.filters).map(([name, { default: off }]) => [fieldOf(name), sample[name] ?? off]);
    const first = { ...START, temperature: Math.min(2, temperature), ...Object.fromEntries(filters) };
    const read = () => ({ ...first, ...recall("write", {}) });
    const start2 = { ...read(), most: data.mostTokens, filters: data.filters };
    const changed = (values) => remember("write", values);
    const writer = new Writer(root, start2, context.source, models, { changed, ...events });
    return () => writer.fill(read());
  }
  async function openPlayground() {
    const key = recall("key", "");
    if (data.needsKey && !key) {
      askForKey("");
      return;
    }
    const source = new ServerSource(key);
    const context = { source, models: [], model: "", text: recall("text", ""), facts: null, chooseModel };
    try {
      context.models = await source.models();
    } catch (error) {
      if (error.status !== 401) throw error;
      askForKey("That key is not the server's.");
      return;
    }
    const { models } = context;
    context.model = models.includes(recall("model")) ? recall("model") : models[0];
    await showFacts(context);
    const views = [write, comparing(showWriter), ...readings, RUNS, TRAINING];
    const refresh = startShell(parts.views, parts.view, views, context);
    setOptions(parts.model, models, context.model);
    parts.model.addEventListener("change", () => {
      context.model = parts.model.value;
      remember("model", context.model);
      showFacts(context).then(refresh);
    });
    addEventListener("hashchange", async () => {
      context.models = await source.models().catch(() => context.models);
      setOptions(parts.model, context.models, context.model);
    });
    parts.modelLabel.hidden = false;
  }
  function chooseModel(name) {
    const { model } = parts;
    if (![...model.options].some(({ value }) => value === name)) model.append(new Option(name, name));
    model.value = name;
    model.dispatchEvent(new Event("change"));
  }
  async function showFacts(context) {
    const { model } = context;
    parts.facts.textContent = `Loading ${model}…`;
    const answer = await context.source.facts(model).catch((error) => ({ error }));
    if (context.model !== model) return;
    context.facts = answer.error ? null : answer;
    parts.facts.textContent = answer.error ? "" : describeFacts(answer);
    say(parts.pageStatus, answer.error?.message ?? "", Boolean(answer.error));
  }
  function describeFacts({ parameters, n_layer: layers, n_head: heads, block_size: window, vocab_size: size, token }) {
    const count = (number, name) => `${number.toLocaleString("en")} ${name}${number === 1 ? "" : "s"}`;
    return `${count(parameters, "parameter")} in ${count(layers, "layer")} of ${count(heads, "head")}; it sees ${count(window, token)} at a time, and knows ${size.toLocaleString("en")} different ones.`;
  }
  function askForKey(reason) {
    parts.keyForm.hidden = false;
    say(parts.pageStatus, reason, true);
    parts.key.focus();
  }
  function start() {
    openPlayground().catch((error) => {
      say(parts.pageStatus, `The playground could not be opened: ${error.message}`, true);
    });
  }
  parts.keyForm.addEventListener("submit", (event) => {
    event.preventDefault();
    remember("key", parts.key.value);
    say(parts.pageStatus, "");
    parts.keyForm.hidden = true;
    start();
  });
  start();
})();
