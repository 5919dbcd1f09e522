import { create, keyIn } from "./dom.js";

const MOST_LISTED = 10; // characters that a model does not know

export function quoted(label) {
  return `'${label}'`;
}

/** A token by its label and its place in the text. */
export function nameOf(labels, index) {
  return `${quoted(labels[index])} at ${index}`;
}

/**
 * What a token of a view is called: as the view says, or "character" where each label stands for
 * one.
 */
export function unitOf({ unit, labels }) {
  if (unit) return unit;
  const isCharacter = (label) => /^(.|CR|U\+[0-9A-F]+)$/u.test(label); // invisible ones have a name
  return labels.every(isCharacter) ? "character" : "token";
}

/** Characters that a model does not know, invisible ones by their numbers. */
export function listCharacters(characters) {
  const numberOf = (character) => character.codePointAt(0).toString(16).toUpperCase();
  const names = characters.map((character) =>
    /^[\p{C}\p{Z}\p{M}]$/u.test(character) ? `U+${numberOf(character).padStart(4, "0")}` : character
  );
  return names.slice(0, MOST_LISTED).join(" ");
}

/** A count of things, such as "1,024 characters". */
export function many(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

/** A probability as percent; a small one is not rounded to 0. */
export function percent(probability) {
  const value = 100 * probability;
  if (value > 0 && value < 0.1) return "<0.1%";
  const digits = value < 99.95 ? 1 : 0; // 100%, not 100.0%
  return `${value.toFixed(digits)}%`;
}

/** A bar of a share from 0 to 1. */
export function createBar(className, share) {
  const bar = create("span", className);
  bar.style.width = `${100 * share}%`;
  return bar;
}

/** The surprise at a token that had this probability. */
export function surprise(probability) {
  // the smallest positive float32 is about 2^-149: a smaller probability was rounded to 0
  if (probability === 0) return "more than 100 bits, a probability of <0.1%";
  // a probability may be a little above 1, by rounding
  const bits = Math.max(0, -Math.log2(probability));
  return `${bits.toFixed(2)} bits, a probability of ${percent(probability)}`;
}

/**
 * Fills a list with pairs of a name and a probability; `classOf(index)` is "came", "chosen" or
 * nothing.
 */
export function drawBars(list, entries, classOf) {
  const items = entries.map(([name, probability], index) =>
    create(
      "li",
      classOf(index),
      create("span", "name", name),
      create("span", "bar", createBar("fill", probability)),
      create("span", "value", percent(probability))
    )
  );
  list.replaceChildren(...items);
}

/** Writes tokens as running text that wraps after white space, and returns an element for each. */
export function writeText(container, labels, role = "button") {
  return labels.map((label) => {
    const item = create("span", "token", label);
    if (role) item.setAttribute("role", role);
    container.append(item);
    if (label === "␣") container.append(create("wbr"));
    if (label === "⏎") container.append(create("br"));
    return item;
  });
}

/**
 * Makes the items of a grid choosable: by a click, or by the arrow keys, Home and End. Only the
 * chosen item is in the tab order. `choose(index)` is called at each choice; `preview(index or
 * null)`, where there is one, when the mouse moves to another item or leaves them. Returns a
 * function that chooses an item, and hands its further arguments to `choose`.
 */
export function makeChoosable(container, items, columns, choose, preview = null) {
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

/** The place in a grid that each key leads to. */
function neighbors(place, columns) {
  const column = place % columns;
  const arrows = {
    ArrowLeft: column > 0 ? place - 1 : place,
    ArrowRight: column < columns - 1 ? place + 1 : place,
    ArrowUp: place - columns,
    ArrowDown: place + columns,
  };
  if (columns <= 1) return arrows; // in a single column, Home and End scroll the page
  const rowStart = place - column;
  return { ...arrows, Home: rowStart, End: rowStart + columns - 1 };
}
