import { createIn, markMore, within } from "../dom.js";
import { decimals, nameOf } from "../tokens.js";

const [NARROWEST, WIDEST] = [9, 15]; // pixels of a token
const FAINTEST = 0.01; // a weight below it has no arc
const HIGHEST = 150; // pixels of the longest arc

/**
 * Fills an SVG with a line of tokens, and returns `draw(query, weights)`, which draws arcs from the query to the keys it
 * attends to: thicker and stronger for a larger weight. `choose(index)` follows a click on a token.
 */
export function showArcs(svg, labels, choose) {
  const size = labels.length;
  const cell = Math.max(NARROWEST, within(Math.floor((svg.parentElement.clientWidth - 8) / size), WIDEST));
  const top = within((size * cell) / 2 - 20, HIGHEST - 20) + 32;
  const middle = (index) => (index + 0.5) * cell;
  const arcs = createIn(svg, "g");
  const texts = labels.map((label, index) => {
    const title = createIn(svg, "title", {}, label);
    const place = { x: middle(index), y: top + 16, "data-index": index };
    return createIn(svg, "text", place, [...label].length > 1 ? "·" : label, title);
  });
  svg.style.fontSize = `${Math.min(14, cell * 1.1)}px`;
  svg.setAttribute("width", size * cell);
  svg.setAttribute("height", top + 24);
  svg.replaceChildren(arcs, ...texts);
  markMore(svg.parentElement);
  svg.addEventListener("click", (event) => {
    choose(within(Math.floor((event.clientX - svg.getBoundingClientRect().left) / cell), size - 1));
  });

  function createArc(query, key, weight) {
    const peak = top - ((10 + (top - 22) * Math.sqrt((query - key) / size)) * 4) / 3; // so that near ones are seen too
    const [from, to] = [middle(query), middle(key)];
    const path =
      key === query
        ? `M ${from - 3} ${top} a 5 7 0 1 1 6 0`
        : `M ${from} ${top} C ${from} ${peak}, ${to} ${peak}, ${to} ${top}`;
    const strength = { "stroke-width": 1 + 5 * weight, opacity: 0.2 + 0.8 * weight };
    const title = createIn(svg, "title", {}, `${nameOf(labels, key)}: ${decimals(weight)}`);
    return createIn(svg, "path", { d: path, "data-key": key, ...strength }, title);
  }

  return (query, weights) => {
    const seen = Array.from(weights, (weight, key) => [weight, key]).filter(([weight]) => weight >= FAINTEST);
    seen.sort(([one], [other]) => one - other); // the strongest on top
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
