import { drawInTheme, drawLegend, paintBits } from "../colors.js";
import { create, createButton, fill } from "../dom.js";
import { probabilitiesOf } from "../engine/sampling.js";
import { createBar, makeChoosable, percent, quoted } from "../tokens.js";
import template from "./passage.html";

const TICKS = [
  [0, "100%"],
  [0.25, "25%"],
  [0.5, "6%"],
  [0.75, "1.6%"],
  [1, "0.4%"],
];
const SURPRISING = 0.25;

/**
 * A text that is being written, whose tokens show what else was possible. A token has `id`, `label`, `text`,
 * `probability` and `chance`, those by the model and of sampling (null where nothing came before it), `own` and
 * `sampled`: the most likely tokens by both, as triples of id, label and probability; `isGiven` is set if it is of the
 * prompt, `isPicked` if a reader chose it. Those that are added are sampled with the settings `sampling`.
 *
 * Of its writer, `branch(index, id)` follows a click on an alternative. `settings()` are those of the form, and
 * `describe(settings)` has words for some; where they are not those that the chosen token was sampled with, its bars show
 * them, where they are all such as `isComputed(settings)` can tell, from `logitsAfter(ids, signal)`, the logits of the
 * next token.
 */
export class Passage {
  constructor(root, writer) {
    this.parts = fill(root, template);
    this.writer = writer;
    this.sampling = null;
    this.tokens = [];
    this.items = []; // their elements
    this.chosen = null;
    this.shown = null; // the chosen one, or the one that is pointed at
    this.logits = null; // of the chosen token, once they were asked for
    this.asking = null; // what cancels that
    const { written, legend } = this.parts;
    this.pick = makeChoosable(
      written,
      this.items,
      Infinity,
      (index) => this.choose(index),
      (index) => this.show(index ?? this.chosen)
    );
    drawInTheme(root, () => {
      drawLegend(legend, "probability", TICKS);
      this.items.forEach((_, index) => this.tint(index));
    });
    this.show(null);
  }

  get text() {
    return this.tokens.map(({ text }) => text).join("");
  }

  choose(index) {
    this.chosen = index;
    this.asking?.abort();
    this.logits = null;
    this.show(index);
  }

  add(tokens) {
    const { written } = this.parts;
    const isAtEnd = written.scrollTop + written.clientHeight >= written.scrollHeight - 8;
    written.append(...tokens.flatMap((token) => this.addItem(token)));
    if (isAtEnd) written.scrollTop = written.scrollHeight;
    if (this.chosen === null) this.pickSurprising(SURPRISING);
  }

  /** Chooses the first of the written tokens that is so unlikely, if there is one: the bars then say something. */
  pickSurprising(probability) {
    const index = this.tokens.findIndex((token) => !token.isGiven && (token.probability ?? 1) <= probability);
    if (index >= 0) this.pick(index);
  }

  addItem(token) {
    const { label, text, probability } = token;
    const item = create("span", token.isGiven ? "token given" : "token", text === "\n" ? "⏎" : text || "·");
    item.classList.toggle("picked", Boolean(token.isPicked));
    item.classList.toggle("unknown", probability === null);
    item.setAttribute("role", "button");
    item.setAttribute("aria-label", probability === null ? label : `${label}, ${percent(probability)}`);
    item.tabIndex = -1;
    item.dataset.index = String(this.items.length);
    this.tokens.push(Object.assign(token, { sampling: this.sampling }));
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
      this.choose(null);
    }
  }

  /** Ends a text: chooses a token where none is, which lets the tab key reach the text. */
  settle() {
    if (this.chosen === null) this.pickSurprising(1);
    else this.show(this.chosen);
    if (this.chosen === null && this.items.length) this.pick(this.items.length - 1);
    const item = this.items[this.chosen];
    if (item) this.parts.written.scrollTop = item.offsetTop - item.offsetHeight - this.parts.written.offsetTop;
  }

  focus(index) {
    this.pick(index);
    this.items[index].focus({ preventScroll: true });
  }

  tint(index) {
    const { probability } = this.tokens[index];
    if (probability !== null) paintBits(this.items[index], -Math.log2(probability));
  }

  show(index) {
    const { title, choice, pairs } = this.parts;
    const token = this.tokens[index];
    this.items[this.shown]?.classList.remove("looking");
    this.items[index]?.classList.add("looking");
    this.shown = index;
    title.textContent = token ? `${quoted(token.label)} · ${this.writer.word} ${index}` : "What else was possible";
    choice.textContent = token ? describeChoice(token) : "Each choice of the model, as it writes.";
    if (!token) pairs.replaceChildren();
    else if (index === this.chosen) this.follow();
    else this.draw(token, token, token.sampling);
  }

  /** Draws the alternatives of a token with their probabilities, `chance` and `sampled`, under some settings. */
  draw(token, { chance, sampled }, settings) {
    const { sampling, pairs } = this.parts;
    sampling.textContent = `with ${this.writer.describe(settings)}`;
    const entries = [...token.own];
    if (entries.length && entries.every(([id]) => id !== token.id)) {
      entries.push([token.id, token.label, token.probability]); // it came, and is not among the most likely
    }
    const branch = (id) => this.writer.branch(this.tokens.indexOf(token), id);
    pairs.replaceChildren(...entries.map((entry) => createAlternative(token, chance, sampled, entry, branch)));
  }

  /** Draws the chosen token's alternatives, unless another is shown, and under the form's settings if they are others. */
  async follow() {
    const token = this.tokens[this.chosen];
    if (!token || this.shown !== this.chosen) return;
    this.draw(token, token, token.sampling);
    if (!token.own.length || !this.isOther(token)) return;
    const logits = await this.logitsOfChosen();
    if (!logits || token !== this.tokens[this.shown] || !this.isOther(token)) return;
    const settings = this.writer.settings(); // as they are by now
    const after = probabilitiesOf(logits, settings);
    const sampled = token.own.map(([id, label]) => [id, label, after[id] ?? 0]).filter(([, , chance]) => chance > 0);
    this.draw(token, { chance: after[token.id] ?? 0, sampled }, settings);
  }

  /** Whether the settings of the form are others than those of a token, and their effect can be computed. */
  isOther({ sampling }) {
    const { writer } = this;
    const settings = writer.settings();
    return writer.describe(settings) !== writer.describe(sampling) && writer.isComputed(settings);
  }

  /** Logits of the chosen token's place; null where there are none, which is not kept. */
  async logitsOfChosen() {
    if (!this.logits) {
      const ids = this.tokens.slice(0, this.chosen).map(({ id }) => id);
      this.asking = new AbortController();
      this.logits = Promise.resolve(this.writer.logitsAfter(ids, this.asking.signal)).catch(() => null);
    }
    const asked = this.logits;
    const logits = await asked;
    if (!logits && this.logits === asked) this.logits = null;
    return logits;
  }
}

function describeChoice({ probability, isGiven, isPicked }) {
  if (probability === null) return "There is nothing before it that the model could predict it from.";
  const origin = isGiven ? "; it is part of the prompt" : isPicked ? "; you chose it" : "";
  return `${percent(probability)} by the model, ${(-Math.log2(probability)).toFixed(1)} bits${origin}.`;
}

/** An item with two bars, and a name that branches; sampling changes no order, and so has the same most likely ones. */
function createAlternative({ id: came, own }, chance, kept, [id, label, probability], branch) {
  const [, , sampled] = kept.find(([other]) => other === id) ?? [id, label, id === came ? chance : 0];
  const isKnown = id === came || kept.length < own.length; // as many may be only the beginning of a longer list
  const item = create(
    "li",
    sampled ? "" : "dropped",
    createButton("", label, () => branch(id), `continue with ${label}`),
    create("span", "pair", createBar("own", probability), createBar("fill", sampled)),
    create("span", "value", percent(probability)),
    create("span", "value sampled", sampled ? percent(sampled) : isKnown ? "never" : "")
  );
  item.classList.toggle("came", id === came);
  return item;
}
