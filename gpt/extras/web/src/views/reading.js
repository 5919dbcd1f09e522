import { fill, isSubmit, say } from "../dom.js";
import { many } from "../tokens.js";
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
const MOST_TOKENS = 128;
const UNKNOWN_WINDOW = 64; // tokens that are read where a model's facts are not there yet

/** The same for the shell, each with a field for the text. */
export const READING_VIEWS = Object.keys(READINGS).map((name) => {
  const { title, guide } = READINGS[name];
  const show = (root, context) => {
    const reading = new Reading(root, name, context);
    return () => reading.follow();
  };
  const guides = new DOMParser().parseFromString(guide, "text/html").querySelectorAll(".guide");
  const [sentence, more] = [...guides].map(({ textContent: words }) => words.trim().replace(/\s+/g, " "));
  return { name, title, sentence, more, show };
});

/** A field for a text, and what the model that is chosen makes of it: at first of the text that was written last. */
class Reading {
  constructor(root, name, context) {
    this.name = name;
    this.parts = fill(root, template);
    this.context = context;
    this.running = null;
    this.last = null; // the text written last
    this.reader = null; // the model that has read
    const { form, readingText } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.last = context.text = readingText.value;
      this.read();
    });
    form.addEventListener("keydown", (event) => isSubmit(event) && form.requestSubmit());
    this.follow();
  }

  /** The most tokens that are read. */
  get window() {
    return Math.min(MOST_TOKENS, this.context.facts?.block_size ?? UNKNOWN_WINDOW);
  }

  /** Reads the text written last where that has changed, and the same one with another model. */
  follow() {
    const { text, model } = this.context;
    const field = this.parts.readingText;
    const isSame = text === this.last;
    if (isSame && model === this.reader) return;
    this.last = text;
    if (!isSame) field.value = this.endOf(text);
    this.read();
  }

  /** Reads what the field has, of a text longer than the window only the end. */
  async read(isAtEnd = false) {
    const { readingText, status, body } = this.parts;
    const { source, model, facts } = this.context;
    const text = this.endOf(readingText.value);
    const [all, read] = [readingText.value, text].map((characters) => [...characters].length);
    this.reader = model;
    this.running?.abort();
    if (!read) {
      body.replaceChildren();
      return say(status, model ? "There is no text to read." : "");
    }
    this.running = new AbortController();
    const { signal } = this.running;
    say(status, "Reading…");
    try {
      const { read: tokens, ...answer } = await source[this.name]({ model, text, last: this.window, signal });
      if (signal.aborted) return;
      const part = tokens ? many(tokens, facts?.token ?? "token") : read < all && `${read} of ${all} characters`;
      say(status, part ? `Only the last ${part} are read.` : "");
      const goOn = (longer) => {
        this.last = this.context.text = readingText.value = longer;
        this.read(true);
      };
      const asked = { model, text, last: this.window };
      READINGS[this.name].show(body, { ...answer, ...asked, unit: facts?.token, goOn, isAtEnd }, source);
    } catch (error) {
      if (signal.aborted) return;
      this.reader = null; // it is tried again when the view is opened again
      say(status, error.message, true);
    }
  }

  /** The end of a text that fits, where its characters are the tokens; others are counted where they are encoded. */
  endOf(text) {
    const { facts } = this.context;
    return facts && facts.token !== "character" ? text : endOf(text, this.window);
  }
}

/** The last characters of a text, at most so many, from the start of a word where one is near. */
function endOf(text, most) {
  const characters = [...text];
  if (characters.length <= most) return text;
  const end = characters.slice(-most).join("");
  const [cut] = /\S/.test(characters.at(-most - 1)) ? (end.match(/^\S+\s+/) ?? [""]) : [""];
  return cut.length <= most / 4 ? end.slice(cut.length) : end;
}
