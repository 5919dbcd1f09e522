"use strict";

// Even steps of lightness in one family of hues: order survives color blindness and gray printing.
const RAMP = ["#eaf6fa", "#afdff6", "#79c5f0", "#4ca9e6", "#2f8bd4", "#266db9", "#275196", "#24396e", "#1c2345"].map(
  (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16))
);
// Fixed, so that the same color means the same surprise, -log2 of the probability, on every page.
const MAX_BITS = 8;
const darkTheme = matchMedia("(prefers-color-scheme: dark)");

const data = JSON.parse(byId("data").textContent);

const redraws = new Map(); // by the element that is drawn in
darkTheme.addEventListener("change", () => redraws.forEach((draw) => draw()));

/** Calls `draw` when the colors change, until something else is drawn in this element. */
function whenThemeChanges(root, draw) {
  redraws.set(root, draw);
}

function byId(id) {
  return document.getElementById(id);
}

function create(tag, className, text) {
  const element = document.createElement(tag);
  element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Fills an element from a template of the page: `fillFrom(root, "write")` takes the one called write-template. */
function fillFrom(root, name) {
  root.replaceChildren(byId(`${name}-template`).content.cloneNode(true));
}

/** Red, green and blue of a share from 0 to 1; 0 is near the page's background in both themes. */
function colorOf(share) {
  const clamped = Math.min(1, Math.max(0, share));
  const place = (darkTheme.matches ? 1 - clamped : clamped) * (RAMP.length - 1);
  const below = Math.min(Math.floor(place), RAMP.length - 2);
  return RAMP[below].map((low, channel) => Math.round(low + (RAMP[below + 1][channel] - low) * (place - below)));
}

/** Colors an element, with the ink that reads better on it. */
function paint(element, share) {
  const [red, green, blue] = colorOf(share);
  const [r, g, b] = [red, green, blue].map((value) => (value / 255) ** 2.2);
  element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
  element.style.color = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}

function unpaint(element) {
  element.style.backgroundColor = "";
  element.style.color = "";
}

/** Ticks are pairs of a place from 0 to 1 and its text; `color(share)` is that of the bar from 0 to 1. */
function drawLegend(title, ticks, container, color = colorOf) {
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

function quoted(label) {
  return `'${label}'`;
}

/** Three decimals, and no zero for what is merely small. */
function decimals(value) {
  return value > 0 && value < 0.0005 ? "<0.001" : value.toFixed(3);
}

/** Fills a list with pairs of a name and a probability; `classOf(index)` is "came", "chosen" or nothing. */
function drawBars(list, entries, classOf) {
  const items = entries.map(([name, probability], index) => {
    const item = create("li", classOf(index));
    const bar = create("span", "bar");
    const fill = create("span", "fill");
    fill.style.width = `${100 * probability}%`;
    bar.append(fill);
    item.append(create("span", "name", name), bar, create("span", "value", decimals(probability)));
    return item;
  });
  list.replaceChildren(...items);
}

/** Writes tokens as running text that wraps after white space, and returns an element for each. */
function writeText(container, labels) {
  return labels.map((label) => {
    const item = create("span", "token", label);
    item.setAttribute("role", "button");
    container.append(item);
    if (label === "␣") container.append(document.createElement("wbr"));
    if (label === "⏎") container.append(document.createElement("br"));
    return item;
  });
}

/**
 * Makes the items of a grid choosable: by click, and by arrow keys, Home and End with one of them in the tab order.
 * `choose(index)` follows each choice; `preview(index or null)`, where there is one, follows the mouse.
 * Returns a function that chooses an item, and hands what else it is given to `choose`.
 */
function makeChoosable(container, items, columns, choose, preview) {
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
    const column = chosen % columns;
    const next = {
      ArrowLeft: column > 0 ? chosen - 1 : chosen,
      ArrowRight: column < columns - 1 ? chosen + 1 : chosen,
      ArrowUp: chosen - columns,
      ArrowDown: chosen + columns,
      Home: chosen - column,
      End: chosen - column + columns - 1,
    }[event.key];
    if (next === undefined || !(next in items) || event.ctrlKey || event.altKey || event.metaKey) return;
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
