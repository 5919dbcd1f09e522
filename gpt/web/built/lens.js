"use strict";
var page = (() => {
  // gpt/web/src/dom.js
  function create(tag, className = "", ...children) {
    const element = document.createElement(tag);
    element.className = className;
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
  function paint(element, share) {
    const [red, green, blue] = colorOf(share);
    const [r, g, b] = [red, green, blue].map((value) => (value / 255) ** 2.2);
    element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
    element.style.color = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
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
    const parts = fill(root, lens_default);
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
      drawLegend(parts.legend, "probability of the top candidate", ticks);
      cells.forEach((line, row) => line.forEach((cell, position) => paint(cell, candidates[row][position][0][1])));
    }
    function showDetails(index) {
      const [row, position] = [Math.floor(index / size), index % size];
      const came2 = next[position];
      const entries = candidates[row][position];
      parts.detailsTitle.textContent = `${rows[row]}, after ${quoted(labels[position])} (${position})`;
      parts.readout.textContent = came2 === null ? "The text ends here, so there is no next token." : `The next token is ${quoted(came2)}; here its probability is ${decimals(nextProbability[row][position])}.`;
      parts.topTitle.textContent = `The ${entries.length} most likely`;
      drawBars(parts.top, entries, (entry) => entries[entry][0] === came2 ? "came" : "");
      parts.rowsTitle.textContent = came2 === null ? "" : `Probability of ${quoted(came2)}, row by row`;
      const byRow = came2 === null ? [] : rows.map((name, entry) => [name, nextProbability[entry][position]]);
      drawBars(parts.rows, byRow, (entry) => entry === row ? "chosen" : "");
    }
    const heads = labels.map((label, position) => {
      const head = create("th", "", create("span", "position", position), label);
      return Object.assign(head, { scope: "col" });
    });
    const came = next.map((label) => create("td", "", label ?? ""));
    parts.lensTable.append(
      create("thead", "", createRow("text", heads)),
      create("tbody", "", ...rows.map((name, row) => createRow(name, cells[row]))),
      create("tfoot", "", createRow("actual next", came))
    );
    const choose = makeReadable(parts.lensTable, cells.flat(), size, showDetails);
    drawInTheme(root, draw);
    choose(size * (rows.length - 1));
  }
  function createRow(name, cells) {
    return create("tr", "", Object.assign(create("th", "", name), { scope: "row" }), ...cells);
  }

  // gpt/web/src/pages/lens.js
  showLens(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));
})();
