import { drawInTheme, drawLegend, paintBits } from "../colors.js";
import { create, createButton, fill } from "../dom.js";
import { createBar, decimals, makeChoosable, quoted } from "../tokens.js";
import template from "./passage.html";

const TICKS = [
  [0, "1"],
  [0.25, "0.25"],
  [0.5, "0.06"],
  [0.75, "0.016"],
  [1, "0.004"],
];

/**
 * A text that is being written, whose tokens show what else was possible. A token has `id`, `label`, `text`,
 * `probability` and `chance`, those by the model and of sampling (null where nothing came before it), `own` and
 * `sampled`: the most likely tokens by both, as triples of id, label and probability; `isGiven` is set if it is of the
 * prompt, `isPicked` if a reader chose it. `branch(index, id)` follows a click on an alternative; `settings` are the
 * words for the sampling parameters.
 */
export class Passage {
  constructor(root, branch) {
    this.parts = fill(root, template);
    this.branch = branch;
    this.settings = "";
    this.tokens = [];
    this.items = []; // their elements
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
    const { title, choice, possible, sampling, pairs } = this.parts;
    const token = this.tokens[index];
    possible.hidden = !token?.own.length;
    title.textContent = token ? `${quoted(token.label)} (${index})` : this.idle[0];
    choice.textContent = token ? describeChoice(token) : this.idle[1];
    if (!token) return;
    sampling.textContent = this.settings;
    const entries = [...token.own];
    if (entries.length && entries.every(([id]) => id !== token.id)) {
      entries.push([token.id, token.label, token.probability]); // it came, and is not among the most likely
    }
    pairs.replaceChildren(...entries.map((entry) => createAlternative(token, entry, (id) => this.branch(index, id))));
  }
}

function describeChoice({ probability, isGiven, isPicked }) {
  if (probability === null) return "There is nothing before it that the model could predict it from.";
  const origin = isGiven ? "; it is part of the prompt" : isPicked ? "; you chose it" : "";
  return `Its probability was ${decimals(probability)}${origin}.`;
}

/** An item with two bars, and a name that branches; sampling changes no order, and so has the same most likely ones. */
function createAlternative({ id: came, chance, own, sampled: kept }, [id, label, probability], branch) {
  const [, , sampled] = kept.find(([other]) => other === id) ?? [id, label, id === came ? chance : 0];
  const isKnown = id === came || kept.length < own.length; // as many may be only the beginning of a longer list
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
