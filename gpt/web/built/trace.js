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
  function keyIn(table, event) {
    return event.ctrlKey || event.altKey || event.metaKey ? void 0 : table[event.key];
  }

  // gpt/web/src/colors.js
  var RAMP = ["#eaf6fa", "#afdff6", "#79c5f0", "#4ca9e6", "#2f8bd4", "#266db9", "#275196", "#24396e", "#1c2345"].map(
    (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16))
  );
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

  // gpt/web/src/tokens.js
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

  // gpt/web/src/views/lens.js
  function createRow(name, cells) {
    return create("tr", "", Object.assign(create("th", "", name), { scope: "row" }), ...cells);
  }

  // gpt/web/src/views/trace.html
  var trace_default = '<p class="guide">\n  Every operation of one forward pass, from the ids to the logits: look for how the shape changes where the heads are\n  split and joined again, for the scores that grow with the square of the text, and for the stream whose spread grows\n  from block to block.\n</p>\n<p class="hint" data-part="axes"></p>\n<div class="trace">\n  <div class="operations" data-part="list" role="listbox" aria-label="operations; the up and down arrow keys move"></div>\n  <section class="details" aria-live="polite">\n    <h2 class="operation-title" data-part="title"></h2>\n    <p data-part="about"></p>\n    <table class="operation-facts" data-part="facts"></table>\n    <figure class="heat" data-part="heat">\n      <canvas class="heat-canvas" data-part="canvas"></canvas>\n      <figcaption class="hint" data-part="caption"></figcaption>\n    </figure>\n    <div class="legend" data-part="legend"></div>\n  </section>\n</div>\n';

  // gpt/web/src/views/trace.js
  var AXES = {
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
    const parts = fill(root, trace_default);
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
      parts.title.textContent = operation.name;
      parts.about.textContent = operation.about;
      const facts = factsOf(operation, operation.inputs.map(createLink), readers[number].map(createLink));
      parts.facts.replaceChildren(...facts.filter(([, value]) => value.length).map(createFact));
      drawHeat(parts, operation);
    }
    function createLink(number) {
      return createButton("link", operations[number].about, () => {
        pick(number);
        items[number].focus();
      });
    }
    const letters = new Set(operations.flatMap(({ axes: axes2 }) => axes2.split(/[ *]/)));
    const axes = Object.entries(AXES).filter(([axis]) => letters.has(axis));
    parts.axes.textContent = axes.map(([axis, about]) => `${axis} ${about}`).join(" · ");
    let group = null;
    items.forEach((item, number) => {
      const title = groupOf(operations, number);
      if (title !== group) parts.list.append(create("div", "group", title));
      group = title;
      parts.list.append(item);
    });
    const pick = makeChoosable(parts.list, items, 1, choose);
    pick(
      Math.max(
        0,
        operations.findIndex(({ about }) => about.startsWith("attention weights"))
      )
    );
    parts.list.scrollTop = items[chosen].offsetTop - parts.list.offsetTop - parts.list.clientHeight / 2;
    drawInTheme(root, () => drawHeat(parts, operations[chosen]));
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

  // gpt/web/src/pages/trace.js
  showTrace(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));
})();
