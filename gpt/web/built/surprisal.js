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
    const parts = fill(root, surprisal_default);
    const tokens = writeText(parts.text, labels);
    function draw() {
      drawBitsLegend(parts.legend, "bits");
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
      parts.detailsTitle.textContent = `${quoted(labels[index])} (${index})`;
      parts.readout.textContent = describe(index);
      for (const [list, entries] of [
        [parts.before, before[index]],
        [parts.after, after[index]]
      ]) {
        drawBars(list, entries, (entry) => entries[entry][0] === labels[index] ? "came" : "");
      }
    }
    tokens.forEach((token, index) => {
      token.classList.toggle("unknown", bits[index] === null);
      token.setAttribute("aria-label", labels[index] + (bits[index] === null ? "" : `, ${bits[index].toFixed(1)} bits`));
    });
    parts.mean.textContent = mean.toFixed(3);
    parts.afterTitle.textContent = `With ${settings}`;
    const choose = makeReadable(parts.text, tokens, labels.length, showDetails);
    drawInTheme(root, draw);
    choose(Math.min(1, labels.length - 1));
  }

  // gpt/web/src/pages/surprisal.js
  showSurprisal(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));
})();
