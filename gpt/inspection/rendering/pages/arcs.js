const ARC_CELL = 15; // pixels of a token
const ARC_FAINTEST = 0.01; // a weight below it has no arc
const ARC_HIGHEST = 150; // pixels of the longest arc

/** An element within an SVG, with attributes. */
function createIn(svg, tag, attributes, text = "") {
  const element = document.createElementNS(svg.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

/**
 * Fills an SVG with a line of tokens, and returns `draw(query, weights)`, which draws arcs from the query to the keys it
 * attends to: thicker and stronger for a larger weight. `choose(index)` follows a click on a token.
 */
function showArcs(svg, labels, choose) {
  const size = labels.length;
  const top = Math.min(ARC_HIGHEST, Math.max(20, (size * ARC_CELL) / 2)) + 12;
  const middle = (index) => (index + 0.5) * ARC_CELL;
  const arcs = createIn(svg, "g", {});
  const texts = labels.map((label, index) => {
    const shown = [...label].length > 1 ? "·" : label;
    const text = createIn(svg, "text", { x: middle(index), y: top + 16, "data-index": index }, shown);
    text.append(createIn(svg, "title", {}, label));
    return text;
  });
  svg.setAttribute("width", size * ARC_CELL);
  svg.setAttribute("height", top + 24);
  svg.replaceChildren(arcs, ...texts);
  svg.addEventListener("click", (event) => {
    const place = Math.floor((event.clientX - svg.getBoundingClientRect().left) / ARC_CELL);
    choose(Math.min(size - 1, Math.max(0, place)));
  });

  function buildArc(query, key, weight) {
    const height = 10 + (top - 22) * Math.sqrt((query - key) / size); // so that near ones are seen too
    const [from, to] = [middle(query), middle(key)];
    const path =
      key === query
        ? `M ${from - 3} ${top} a 5 7 0 1 1 6 0`
        : `M ${from} ${top} C ${from} ${top - (height * 4) / 3}, ${to} ${top - (height * 4) / 3}, ${to} ${top}`;
    const arc = createIn(svg, "path", { d: path, "stroke-width": 1 + 5 * weight, opacity: 0.2 + 0.8 * weight, "data-key": key });
    arc.append(createIn(svg, "title", {}, `${quoted(labels[key])} (${key}): ${decimals(weight)}`));
    return arc;
  }

  return (query, weights) => {
    const seen = weights.map((weight, key) => [weight, key]).filter(([weight]) => weight >= ARC_FAINTEST);
    seen.sort(([one], [other]) => one - other); // the strongest on top
    arcs.replaceChildren(...seen.map(([weight, key]) => buildArc(query, key, weight)));
    texts.forEach((text, index) => {
      text.classList.toggle("looking", index === query);
      text.classList.toggle("later", index > query);
      text.classList.toggle("seen", index <= query && weights[index] >= ARC_FAINTEST);
    });
    const box = svg.parentElement;
    const isInSight = middle(query) > box.scrollLeft && middle(query) < box.scrollLeft + box.clientWidth;
    if (!isInSight) box.scrollLeft = middle(query) - box.clientWidth / 2;
  };
}
