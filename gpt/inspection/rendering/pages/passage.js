/**
 * Fills `root` with a text that is being written, whose tokens show what else was possible. A token has `id`, `label`,
 * `text`, `probability` and `chance`, those by the model and of sampling (null where nothing came before it), `own` and
 * `sampled`: the most likely tokens by both, as triples of id, label and probability; `isGiven` is set if it is of the
 * prompt, `isPicked` if a reader chose it. `branch(index, id)` follows a click on an alternative.
 *
 * Returns `tokens`, `add(tokens)`, `truncate(length)`, `settle()`, which lets the tab key reach the text, `focus(index)`,
 * and `mark(index)`, which draws a bar before one token, or none; `settings` is to be set to the words for the sampling parameters.
 */
function showPassage(root, branch) {
  fillFrom(root, "passage");
  const find = (name) => root.querySelector(`.${name}`);
  const written = find("written");
  const idle = ["choice-title", "choice"].map((name) => [find(name), find(name).textContent]);
  const tokens = [];
  const items = []; // their elements
  let chosen = null;
  const passage = { tokens, add, truncate, settle, focus, mark, settings: "" };

  const pick = makeChoosable(
    written,
    items,
    Infinity,
    (index) => {
      chosen = index;
      showChoice(index);
    },
    (index) => showChoice(index ?? chosen)
  );

  function add(more) {
    const isAtEnd = written.scrollTop + written.clientHeight >= written.scrollHeight - 8;
    written.append(...more.flatMap(appendItem));
    if (isAtEnd) written.scrollTop = written.scrollHeight;
  }

  function appendItem(token) {
    const { label, text, probability } = token;
    const item = create("span", token.isGiven ? "token given" : "token", text === "\n" ? "⏎" : text || "·");
    item.classList.toggle("picked", Boolean(token.isPicked));
    item.classList.toggle("unknown", probability === null);
    item.setAttribute("role", "button");
    item.setAttribute("aria-label", probability === null ? label : `${label}, probability ${decimals(probability)}`);
    item.tabIndex = -1;
    item.dataset.index = items.length;
    tokens.push(token);
    items.push(item);
    tint(item, items.length - 1);
    return text === "\n" ? [item, "\n"] : [item];
  }

  function truncate(length) {
    tokens.length = items.length = Math.min(length, items.length);
    while (written.lastChild && written.lastChild !== items.at(-1)) written.lastChild.remove();
    if (tokens.at(-1)?.text === "\n") written.append("\n");
    if (chosen !== null && chosen >= length) {
      chosen = null;
      showChoice(null);
    }
  }

  function settle() {
    if (!items.length || items.some((item) => item.tabIndex === 0)) return;
    const first = tokens.findIndex(({ isGiven }) => !isGiven);
    pick(first < 0 ? items.length - 1 : first);
  }

  function focus(index) {
    pick(index);
    items[index].focus({ preventScroll: true });
  }

  function mark(index) {
    written.querySelector(".parting")?.classList.remove("parting");
    items[index]?.classList.add("parting");
  }

  function tint(item, index) {
    const { probability } = tokens[index];
    if (probability !== null) paint(item, -Math.log2(probability) / MAX_BITS);
  }

  function showChoice(index) {
    const token = tokens[index];
    find("possible").hidden = !token?.own.length;
    if (!token) {
      for (const [element, text] of idle) element.textContent = text;
      return;
    }
    find("choice-title").textContent = `${quoted(token.label)} (${index})`;
    find("choice").textContent = describeChoice(token);
    find("sampling").textContent = passage.settings;
    const entries = [...token.own];
    if (entries.length && entries.every(([id]) => id !== token.id)) {
      entries.push([token.id, token.label, token.probability]); // it came, and is not among the most likely
    }
    find("pairs").replaceChildren(...entries.map((entry) => buildAlternative(index, entry)));
  }

  function describeChoice({ probability, isGiven, isPicked }) {
    if (probability === null) return "There is nothing before it that the model could predict it from.";
    const origin = isGiven ? "; it is part of the prompt" : isPicked ? "; you chose it" : "";
    return `Its probability was ${decimals(probability)}${origin}.`;
  }

  /** An item with two bars, and a name that branches; sampling changes no order, and so has the same most likely ones. */
  function buildAlternative(index, [id, label, probability]) {
    const { id: came, chance, own, sampled: kept } = tokens[index];
    const [, , sampled] = kept.find(([other]) => other === id) ?? [id, label, id === came ? chance : 0];
    const isKnown = id === came || kept.length < own.length; // as many may be only the beginning of a longer list
    const button = create("button", "", label);
    button.type = "button";
    button.setAttribute("aria-label", `continue with ${label}`);
    button.addEventListener("click", () => branch(index, id));
    const bars = create("span", "pair");
    bars.append(buildBar("own", probability), buildBar("fill", sampled));
    const item = create("li", sampled ? "" : "dropped");
    item.classList.toggle("came", id === tokens[index].id);
    item.append(
      button,
      bars,
      create("span", "value", decimals(probability)),
      create("span", "value sampled", sampled ? decimals(sampled) : isKnown ? "never" : "")
    );
    return item;
  }

  function buildBar(name, share) {
    const fill = create("span", name);
    fill.style.width = `${100 * share}%`;
    return fill;
  }

  function draw() {
    const ticks = [[0, "1"], [0.25, "0.25"], [0.5, "0.06"], [0.75, "0.016"], [1, "0.004"]];
    drawLegend("probability", ticks, find("probability-legend"));
    items.forEach(tint);
  }

  darkTheme.addEventListener("change", draw);
  draw();
  return passage;
}
