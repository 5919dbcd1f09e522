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
    const parts = {};
    for (const element of root.querySelectorAll("[data-part], [id]")) {
      parts[camelCase(element.dataset.part ?? element.id)] = element;
    }
    return parts;
  }
  function camelCase(name) {
    return name.replace(/[-_]([a-z])/g, (_, letter) => letter.toUpperCase());
  }
  function say(status, message, isWrong = false) {
    status.textContent = message;
    status.classList.toggle("wrong", isWrong);
  }
  function keyIn(table, event) {
    return event.ctrlKey || event.altKey || event.metaKey ? void 0 : table[event.key];
  }
  function within(value, most) {
    return Math.min(most, Math.max(0, value));
  }

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
    const parts = fill(root, ablation_default);
    const { model, text, labels } = view;
    let heads = [];
    let running = null;
    let whole = null;
    let left = null;
    function toggle(layer, head) {
      const others = heads.filter(([one, other]) => one !== layer || other !== head);
      choose(others.length < heads.length ? others : [...heads, [layer, head]]);
    }
    function choose(chosen) {
      heads = chosen;
      marked(heads);
      parts.none.hidden = heads.length > 0;
      parts.clear.hidden = heads.length === 0;
      parts.ablated.replaceChildren(...heads.map(createChip));
      compute();
    }
    function createChip([layer, head]) {
      const name = `layer ${layer}, head ${head}`;
      return createButton("chip", `${name} ×`, () => toggle(layer, head), `restore ${name}`);
    }
    async function compute() {
      running?.abort();
      running = new AbortController();
      const { signal } = running;
      say(parts.status, "Computing…");
      try {
        whole ??= await ask([], signal);
        left = heads.length ? await ask(heads, signal) : null;
        const attention = await source.attention({ model, text, ablate: heads, signal });
        if (signal.aborted) return;
        say(parts.status, "");
        changed(attention);
      } catch (error) {
        if (!signal.aborted) say(parts.status, error.message, true);
      }
    }
    async function ask(ablate, signal) {
      const surprisal = labels.length > 1 ? await source.surprisal({ model, text, ablate, signal }) : null;
      const continuation = await source.continuation({ model, text, ablate, count: CONTINUED, signal });
      return { bits: surprisal?.bits ?? [null], mean: surprisal?.mean_bits ?? null, written: continuation.labels };
    }
    function draw() {
      parts.effects.hidden = left === null;
      if (left === null) return;
      parts.effect.textContent = left.mean === null ? "" : describeEffect(left.mean, whole.mean, heads.length);
      const parting = left.written.findIndex((label, index) => label !== whole.written[index]);
      drawText(parts.withAll, whole, parting);
      drawText(parts.without, left, parting);
      drawBitsLegend(parts.bitsLegend, "bits of surprise");
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
    parts.clear.addEventListener("click", () => choose([]));
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

  // gpt/web/src/views/attention.html
  var attention_default = '<p class="guide">\n  Each row of a matrix is one token looking back; the color in a column shows how much weight it gives the token there:\n  <code>weights[layer, head, i, j]</code> is the weight of query <code>i</code> on key <code>j</code>. A row sums to 1,\n  and the hatched half is empty because no token sees what comes after it. Look for a line just below the diagonal (a\n  head that looks at the previous token), the diagonal itself (at its own token), a strong left column (at the first\n  token, often to do nothing), other vertical stripes (one token that many look at, such as a line break), and slanted\n  streaks farther off (repeated text).\n</p>\n<div class="toolbar">\n  <div class="legend" id="legend"></div>\n  <label><input type="checkbox" id="stretch" checked> stretch small weights</label>\n</div>\n<div class="columns">\n  <section aria-labelledby="heads-title">\n    <h2 id="heads-title">All heads</h2>\n    <p class="hint">Layers down, heads across. Click one, or use the arrow keys.<span class="ablation-hint" hidden>\n      Press X to ablate it.</span></p>\n    <div class="scroll"><div class="heads" id="heads"></div></div>\n  </section>\n  <section aria-labelledby="matrix-title">\n    <div class="matrix-head">\n      <h2 id="matrix-title"></h2>\n      <label class="ablation-hint" hidden><input type="checkbox" id="ablate"> ablate</label>\n    </div>\n    <p class="hint" id="summary"></p>\n    <p class="hint">\n      Rows look (queries), columns are looked at (keys). Click to keep a row; the arrow keys move.\n      <label class="zoom">Cell size <input type="range" id="zoom" min="2" max="32" step="1"></label>\n    </p>\n    <output class="readout" id="readout" aria-live="polite"></output>\n    <div class="scroll matrix-box" id="box">\n      <div class="matrix" id="matrix">\n        <div class="corner"></div>\n        <div class="keys" id="keys" aria-hidden="true"></div>\n        <div class="queries" id="queries" aria-hidden="true"></div>\n        <div class="plot" id="plot" tabindex="0" role="application">\n          <canvas id="canvas"></canvas>\n          <div class="row-mark"></div>\n          <div class="cell-mark"></div>\n        </div>\n      </div>\n    </div>\n  </section>\n</div>\n<section aria-labelledby="text-title">\n  <h2 id="text-title">The text, seen from one token</h2>\n  <p class="hint">The framed token looks; the colors are its weights. Click another, or use the arrow keys.</p>\n  <div class="text" id="text"></div>\n  <p class="hint">The same weights as arcs: the thicker the arc, the more weight on the token where it ends.</p>\n  <div class="scroll arcs-box" tabindex="0" role="group" aria-label="arcs over the text"><svg class="arcs" id="arcs" role="img"></svg></div>\n</section>\n<section class="ablation" id="ablation" hidden></section>\n';

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
    row(head, query) {
      const begin = (head * this.size * (this.size + 1) + query * (query + 1)) / 2;
      return this.weights.subarray(begin, begin + query + 1);
    }
    strongestKey(head, query) {
      const row = this.row(head, query);
      return row.indexOf(row.reduce((most, weight) => Math.max(most, weight)));
    }
    nameOf(head) {
      return `layer ${Math.floor(head / this.heads)}, head ${head % this.heads}`;
    }
    /** Where a head looks, averaged over the queries that have more than one key. */
    summarize(head) {
      const sums = { itself: 0, previous: 0, first: 0, distance: 0, entropy: 0 };
      const from = this.size > 1 ? 1 : 0;
      for (let query = from; query < this.size; query++) {
        const row = this.row(head, query);
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
  var STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
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
      this.chooseHead = makeChoosable(this.parts.heads, this.thumbnails, view.heads, (head) => {
        this.head = head;
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
      grid.append(create("span"), ...Array.from({ length: heads }, (_, head) => create("span", "", head)));
      const buttons = Array.from(
        { length: layers * heads },
        (_, head) => createButton("thumbnail", create("canvas"), null, this.heads.nameOf(head))
      );
      buttons.forEach((button, head) => {
        if (head % heads === 0) grid.append(create("span", "", head / heads));
        grid.append(button);
      });
      return buttons;
    }
    allowAblation(root, view, source) {
      const { ablation: section, ablate, heads } = this.parts;
      for (const element of [section, ...root.querySelectorAll(".ablation-hint")]) element.hidden = false;
      const ablation = showAblation(section, view, source, {
        marked: (ablated) => this.markAblated(ablated.map(([layer, head]) => layer * view.heads + head)),
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
      this.thumbnails.forEach((button, head) => {
        const isAblated = ablated.includes(head);
        button.classList.toggle("ablated-head", isAblated);
        button.setAttribute("aria-label", this.heads.nameOf(head) + (isAblated ? ", ablated" : ""));
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
        const step = keyIn(STEPS, event);
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
      this.thumbnails.forEach((button, head) => this.drawHead(button.firstChild, head, step, inks));
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
    drawHead(canvas, head, step, inks) {
      const side = Math.ceil(this.size / step);
      const largest = new Float32Array(side * side).fill(-1);
      for (let query = 0; query < this.size; query++) {
        const row = Math.floor(query / step) * side;
        this.heads.row(head, query).forEach((weight, key) => {
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

  // gpt/web/src/pages/attention.js
  showAttention(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));
})();
