import { fill, isSubmit, say } from "../dom.js";
import { offerExamples } from "../examples.js";
import { many } from "../tokens.js";
import { describeUnknown, unknownIn } from "../unknown.js";
import attention from "./attention.html";
import { showAttention } from "./attention.js";
import lens from "./lens.html";
import { showLens } from "./lens.js";
import picture from "./picture.html";
import { showPicture } from "./picture.js";
import template from "./reading.html";

/** The views of a text, which `show(root, view, source)` draws. */
const READINGS = {
  picture: { title: "Model", show: showPicture, guide: picture },
  attention: { title: "Attention", show: showAttention, guide: attention },
  lens: { title: "Logit lens", show: showLens, guide: lens },
};
const MOST_TOKENS = 128; // that are read: a drawing of more has cells too small to see
const UNKNOWN_WINDOW = 64; // tokens that are read as long as the facts of a model are not known

/** The same views for the shell, each with a field for the text. */
export const READING_VIEWS = Object.entries(READINGS).map(([name, { title, guide }]) => {
  const show = (root, context) => {
    const reading = new Reading(root, name, context);
    return () => reading.follow();
  };
  const guides = new DOMParser().parseFromString(guide, "text/html").querySelectorAll(".guide");
  const [sentence, more] = [...guides].map(({ textContent }) =>
    textContent.trim().replace(/\s+/g, " ")
  );
  return { name, title, sentence, more, show };
});

/**
 * A field for a text, and the view of it by the chosen model: at first of the text that was written
 * last.
 */
class Reading {
  constructor(root, name, context) {
    this.name = name;
    this.parts = fill(root, template);
    this.context = context;
    this.running = null; // the AbortController of the reading
    this.last = null; // the text that was written last, when this view read it
    this.reader = null; // the model that has read
    const { form, readingText } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.readOwn(readingText.value);
    });
    form.addEventListener("keydown", (event) => {
      if (isSubmit(event)) form.requestSubmit();
    });
    this.follow();
  }

  /** The most tokens that are read. */
  get window() {
    return Math.min(MOST_TOKENS, this.context.facts?.block_size ?? UNKNOWN_WINDOW);
  }

  /** Reads a text that the reader has chosen, as `read` does; the other views read it, too. */
  readOwn(text, isAtEnd = false) {
    this.last = text;
    this.context.text = text;
    this.parts.readingText.value = text;
    this.read(isAtEnd);
  }

  /** Reads the text that was written last if it or the model has changed. */
  follow() {
    const { text, model, facts } = this.context;
    const { readingText: field, examples } = this.parts;
    offerExamples(examples, facts?.examples ?? [], (example) => this.readOwn(example));
    const isSame = text === this.last;
    if (isSame && model === this.reader) return;
    this.last = text;
    if (!isSame) field.value = this.endOf(text);
    this.read();
  }

  /**
   * Reads what is in the field, of a text longer than the window only the end; `isAtEnd` opens the
   * view at the end.
   */
  async read(isAtEnd = false) {
    const { readingText, status, body } = this.parts;
    const { source, model, facts } = this.context;
    const whole = readingText.value;
    const text = this.endOf(whole);
    this.reader = model;
    this.running?.abort();
    const unknown = unknownIn(text, source, facts);
    const problem = this.problemOf(text, unknown);
    if (problem) {
      body.replaceChildren();
      say(status, problem, text !== "");
      return;
    }
    this.running = new AbortController();
    const { signal } = this.running;
    say(status, "Reading…");
    try {
      const asked = { model, text, last: this.window };
      const { read, ...answer } = await source[this.name]({ ...asked, signal });
      if (signal.aborted) return;
      const length = describeRead(read, facts?.token ?? "token", text, whole);
      say(status, [length, describeUnknown(unknown)].filter(Boolean).join(" "));
      const goOn = (longer) => this.readOwn(longer, true);
      const view = { ...answer, ...asked, unit: facts?.token, goOn, isAtEnd };
      READINGS[this.name].show(body, view, source);
    } catch (error) {
      if (signal.aborted) return;
      this.reader = null; // it is tried again when the view is opened again
      say(status, error.message, true);
    }
  }

  /** Why a text with these unknown characters cannot be read; nothing where it can be. */
  problemOf(text, unknown) {
    if (!text) return "There is no text to read: type one.";
    const isAllUnknown = unknown.length === new Set(text).size;
    // an unknown character may have a plain form that is known
    if (!isAllUnknown || this.context.source.readable(text)) return "";
    return `${describeUnknown(unknown)} Nothing is left to read.`;
  }

  /**
   * The end of a text that fits the window. Where tokens are not characters, `last` of the request
   * limits them.
   */
  endOf(text) {
    const { facts } = this.context;
    const hasOtherTokens = facts && facts.token !== "character";
    return hasOtherTokens ? text : endOf(text, this.window);
  }
}

/**
 * Says how much of a text is read, if it is not all: `read` tokens, or the characters of its end
 * `text`.
 */
function describeRead(read, unit, text, whole) {
  if (read) return `Only the last ${many(read, unit)} are read.`;
  const count = [...text].length;
  const all = [...whole].length;
  return count < all ? `Only the last ${count} of ${all} characters are read.` : "";
}

/**
 * The last characters of a text, at most `most`, without a cut-off word at the start, unless it is
 * long.
 */
function endOf(text, most) {
  const characters = [...text];
  if (characters.length <= most) return text;
  const end = characters.slice(-most).join("");
  const isInWord = /\S/.test(characters.at(-most - 1));
  const cutOff = isInWord ? end.match(/^\S+\s+/)?.[0] : undefined;
  if (!cutOff || cutOff.length > most / 4) return end;
  return end.slice(cutOff.length);
}
