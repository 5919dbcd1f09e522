import { drawInTheme, drawLegend, paintBits, surpriseColorOf } from "../colors.js";
import { create, createButton, fill } from "../dom.js";
import { probabilitiesOf } from "../engine/sampling.js";
import { plainTextOf, SIGNS } from "../marks.js";
import { createBar, makeChoosable, percent, quoted } from "../tokens.js";
import template from "./passage.html";

// the place of each probability on the scale of `paintBits`: bits of surprise as a share of 8
const TICKS = [
  [0, "100%"],
  [0.25, "25%"],
  [0.5, "6%"],
  [0.75, "1.6%"],
  [1, "0.4%"],
];
const SURPRISING = 0.25; // a probability from which downward a token is worth showing

/**
 * A text that is being written, whose tokens show what else was possible. A token has `id`, `label`
 * and `text`, its `probability` by the model and its `chance` in sampling (both null where nothing
 * came before it), and the most likely tokens in its place, `own` by the model and `sampled` in
 * sampling, as triples of id, label and probability. `isGiven` is set if it is of the prompt,
 * `isPicked` if the reader chose it. Tokens that are added were sampled with the settings
 * `sampling`.
 *
 * The bars of the chosen token show its alternatives under the settings of the form, even if it was
 * sampled with others. The `writer` has
 * - `settings()`, those of the form, and `describe(settings)`, which puts some into words;
 * - `isComputed(settings)`: whether their effect can be computed from logits;
 * - `logitsAfter(ids, signal)`: the logits of the token after some ids;
 * - `branch(index, id)`, which is called when an alternative is chosen.
 */
export class Passage {
  constructor(root, writer) {
    this.parts = fill(root, template);
    this.writer = writer;
    this.sampling = null;
    this.tokens = [];
    this.items = []; // the elements of the tokens
    this.chosen = null; // the index of the chosen token
    this.shown = null; // the index of the token under the mouse, or else of the chosen one
    this.logits = null; // a promise of the logits of the chosen token, once they were asked for
    this.asking = null; // the AbortController of that question
    const { written, legend } = this.parts;
    written.tabIndex = -1; // it can have the focus while its tokens are replaced
    this.pick = makeChoosable(
      written,
      this.items,
      Infinity,
      (index) => this.choose(index),
      (index) => this.show(index ?? this.chosen)
    );
    drawInTheme(root, () => {
      drawLegend(legend, "probability", TICKS, surpriseColorOf);
      this.items.forEach((_, index) => this.tint(index));
    });
    this.show(null);
  }

  /** The text after its mark `begin`, with line ends in place of other marks. */
  plainText(begin) {
    return plainTextOf(this.tokens, begin);
  }

  choose(index) {
    this.chosen = index;
    this.asking?.abort();
    this.logits = null;
    this.show(index);
  }

  /** Adds tokens, and keeps the end in sight if it was. */
  add(tokens) {
    const { written } = this.parts;
    // at the end, or within a few pixels of it
    const isAtEnd = written.scrollTop + written.clientHeight >= written.scrollHeight - 8;
    for (const token of tokens) written.append(...this.addItem(token));
    if (isAtEnd) written.scrollTop = written.scrollHeight;
    if (this.chosen === null) this.pickSurprising(SURPRISING);
  }

  /**
   * Chooses the first of the written tokens that is so unlikely, if there is one: its bars have
   * something to show.
   */
  pickSurprising(probability) {
    const index = this.tokens.findIndex(
      (token) => !token.isGiven && (token.probability ?? 1) <= probability
    );
    if (index >= 0) this.pick(index);
  }

  /**
   * Adds a token, and returns the nodes to append: its element, and a line break after a sign for
   * one, or for a mark of items.
   */
  addItem(token) {
    const { label, text, probability } = token;
    const sign = signOf(text);
    const shown = sign ?? (text || "·");
    const item = create("span", "token", shown);
    item.classList.toggle("given", Boolean(token.isGiven));
    item.classList.toggle("picked", Boolean(token.isPicked));
    item.classList.toggle("unknown", probability === null);
    item.setAttribute("role", "button");
    item.setAttribute(
      "aria-label",
      probability === null ? label : `${label}, ${percent(probability)}`
    );
    item.tabIndex = -1;
    item.dataset.index = String(this.items.length);
    this.tokens.push({ ...token, sampling: this.sampling });
    this.items.push(item);
    this.tint(this.items.length - 1);
    return endsLine(text, this.items.length - 1) ? [item, "\n"] : [item];
  }

  /** Removes the tokens from `length` on. */
  truncate(length) {
    const { tokens, items } = this;
    const { written } = this.parts;
    const kept = Math.min(length, items.length);
    // else the focus would go with its token
    const isFocused = items.slice(kept).includes(document.activeElement);
    if (isFocused || this.parts.pairs.contains(document.activeElement)) written.focus();
    tokens.length = kept;
    items.length = kept;
    while (written.lastChild && written.lastChild !== items.at(-1)) written.lastChild.remove();
    // the loop has removed the line break of the last token
    if (endsLine(tokens.at(-1)?.text, kept - 1)) written.append("\n");
    if (this.chosen !== null && this.chosen >= length) this.choose(null);
  }

  /**
   * Ends a text: chooses a token if none is chosen, so that the tab key reaches the text, and
   * scrolls to it.
   */
  settle() {
    if (this.chosen === null) this.pickSurprising(1);
    else this.show(this.chosen);
    if (this.chosen === null && this.items.length) this.pick(this.items.length - 1);
    const item = this.items[this.chosen];
    const { written } = this.parts;
    // so that a line above the token is seen, too
    if (item) written.scrollTop = item.offsetTop - item.offsetHeight - written.offsetTop;
  }

  focus(index) {
    this.pick(index);
    this.items[index].focus({ preventScroll: true });
  }

  tint(index) {
    const { probability } = this.tokens[index];
    if (probability !== null) paintBits(this.items[index], -Math.log2(probability));
  }

  /** Shows what else was possible in the place of a token; nothing for null. */
  show(index) {
    const { title, choice, pairs } = this.parts;
    const token = this.tokens[index];
    this.items[this.shown]?.classList.remove("looking");
    this.items[index]?.classList.add("looking");
    this.shown = index;
    if (!token) {
      title.textContent = "What else was possible";
      choice.textContent = "Each choice of the model, as it writes.";
      pairs.replaceChildren();
      return;
    }
    title.textContent = `${quoted(token.label)} · ${this.writer.word} ${index}`;
    choice.textContent = describeChoice(token, index);
    if (index === this.chosen) this.follow();
    else this.draw(token, token, token.sampling);
  }

  /**
   * Draws the alternatives of a token; `chance` and `sampled` are their probabilities under the
   * settings.
   */
  draw(token, { chance, sampled }, settings) {
    const { sampling, pairs } = this.parts;
    sampling.textContent = `with ${this.writer.describe(settings)}`;
    const entries = [...token.own];
    const isListed = entries.some(([id]) => id === token.id);
    if (entries.length && !isListed) entries.push([token.id, token.label, token.probability]);
    const branch = (id) => this.writer.branch(this.tokens.indexOf(token), id);
    const focused = [...pairs.querySelectorAll("button")].indexOf(document.activeElement);
    pairs.replaceChildren(
      ...entries.map((entry) => createAlternative(token, chance, sampled, entry, branch))
    );
    // the button in the place of the one that had the focus
    const buttons = [...pairs.querySelectorAll("button")];
    if (focused >= 0) buttons[Math.min(focused, buttons.length - 1)]?.focus();
  }

  /**
   * Draws the alternatives of the chosen token, if it is shown, and then under the settings of the
   * form.
   */
  async follow() {
    const token = this.tokens[this.chosen];
    if (!token || this.shown !== this.chosen) return;
    this.draw(token, token, token.sampling);
    if (!token.own.length || !this.hasOtherSettings(token)) return;
    const logits = await this.logitsOfChosen();
    // in the meantime, the reader may have chosen another token or changed the settings
    const isStillShown = token === this.tokens[this.shown];
    if (!logits || !isStillShown || !this.hasOtherSettings(token)) return;
    const settings = this.writer.settings();
    const probabilities = probabilitiesOf(logits, settings);
    const chanceOf = (id) => probabilities[id] ?? 0; // an id beyond the listed ones is impossible
    const sampled = token.own
      .map(([id, label]) => [id, label, chanceOf(id)])
      .filter(([, , chance]) => chance > 0);
    this.draw(token, { chance: chanceOf(token.id), sampled }, settings);
  }

  /**
   * Whether the form has other settings than a token was sampled with, whose effect can be
   * computed.
   */
  hasOtherSettings({ sampling }) {
    const { writer } = this;
    const settings = writer.settings();
    return writer.describe(settings) !== writer.describe(sampling) && writer.isComputed(settings);
  }

  /**
   * Logits of the place of the chosen token, or null. They are asked for once, and again where
   * there were none.
   */
  async logitsOfChosen() {
    if (!this.logits) {
      const ids = this.tokens.slice(0, this.chosen).map(({ id }) => id);
      this.asking = new AbortController();
      this.logits = Promise.resolve(this.writer.logitsAfter(ids, this.asking.signal)).catch(
        () => null
      );
    }
    const asked = this.logits;
    const logits = await asked;
    if (!logits && this.logits === asked) this.logits = null;
    return logits;
  }
}

/** The sign of a line end or of a mark; undefined of another token. */
function signOf(text) {
  return text === "\n" ? "⏎" : SIGNS.get(text);
}

/** Whether the token at `index` is a line end, or a mark after which another text begins. */
function endsLine(text, index) {
  return text === "\n" || (index > 0 && SIGNS.has(text));
}

function describeChoice({ probability, isGiven, isPicked }, index) {
  if (probability === null) {
    return index === 0
      ? "There is nothing before it that the model could predict it from."
      : "The model does not look back as far as here.";
  }
  let origin = "";
  if (isGiven) origin = "; it is part of the prompt";
  else if (isPicked) origin = "; you chose it";
  return `${percent(probability)} by the model, ${(-Math.log2(probability)).toFixed(1)} bits${origin}.`;
}

/**
 * Creates the item of an alternative: a button that continues with it, and two bars. `possible` are
 * the most likely tokens in sampling, which changes no order, so that they are the same as the
 * model's.
 */
function createAlternative({ id: came, own }, chance, possible, [id, label, probability], branch) {
  const listed = possible.find(([other]) => other === id);
  let sampled = 0;
  if (listed) sampled = listed[2];
  else if (id === came) sampled = chance;
  let value = "";
  if (sampled) value = percent(sampled);
  // a list of the full length may be the beginning of a longer one, on which the token may be
  else if (id === came || possible.length < own.length) value = "never";
  const item = create(
    "li",
    sampled ? "" : "dropped",
    createButton("", label, () => branch(id), `continue with ${label}`),
    create("span", "pair", createBar("own", probability), createBar("fill", sampled)),
    create("span", "value", percent(probability)),
    create("span", "value sampled", value)
  );
  item.classList.toggle("came", id === came);
  return item;
}
