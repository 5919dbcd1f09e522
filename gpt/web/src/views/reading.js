import { fill, isSubmit, say } from "../dom.js";
import attention from "./attention.html";
import { showAttention } from "./attention.js";
import lens from "./lens.html";
import { showLens } from "./lens.js";
import picture from "./picture.html";
import { showPicture } from "./picture.js";
import template from "./reading.html";
import surprisal from "./surprisal.html";
import { showSurprisal } from "./surprisal.js";
import trace from "./trace.html";
import { showTrace } from "./trace.js";

/** The views of a text: `show(root, view)` and the least and most tokens that they are for. */
export const READINGS = {
  picture: { title: "Model", least: 1, most: 128, show: showPicture, guide: picture },
  attention: { title: "Attention", least: 1, most: 128, show: showAttention, guide: attention },
  lens: { title: "Logit lens", least: 1, most: 128, show: showLens, guide: lens },
  surprisal: { title: "Surprisal", least: 2, most: 1024, show: showSurprisal, guide: surprisal },
  trace: { title: "Shapes", least: 1, most: 128, show: showTrace, guide: trace },
};

/** A view for the shell that reads a text; `windowOf(context)` is the most characters that the model takes. */
export function readingView(name, windowOf) {
  const { title, guide } = READINGS[name];
  const show = (root, context) => {
    const reading = new Reading(root, name, context, windowOf);
    return () => reading.follow();
  };
  const words = new DOMParser().parseFromString(guide, "text/html").querySelector(".guide").textContent;
  return { name, title, sentence: words.trim().replace(/\s+/g, " "), show };
}

/** A field for a text, and what the model that is chosen makes of it: at first of the text that was written last. */
class Reading {
  constructor(root, name, context, windowOf) {
    this.reading = READINGS[name];
    this.parts = fill(root, template);
    this.ask = (request) => context.source[name](request);
    this.context = context;
    this.window = () => Math.min(this.reading.most, windowOf(context));
    this.running = null;
    this.last = null; // the text written last
    this.reader = null; // the model that has read
    const { form } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.read();
    });
    this.parts.body.addEventListener("read", ({ detail: text }) => {
      this.parts.readingText.value = text; // a view goes on by itself
      form.requestSubmit();
    });
    form.addEventListener("keydown", (event) => isSubmit(event) && form.requestSubmit());
    this.follow();
  }

  /** Reads the text written last where that has changed, and the same one with another model. */
  follow() {
    const { text, model } = this.context;
    const field = this.parts.readingText;
    const isSame = text === this.last;
    if (isSame && model === this.reader) return;
    this.last = text;
    if (!isSame) field.value = [...text].slice(-this.window()).join("");
    if ([...field.value].length >= this.reading.least) this.read();
  }

  /** Reads what the field has; of a text longer than the window only the end. */
  async read() {
    const { readingText, status, body } = this.parts;
    this.running?.abort();
    this.running = new AbortController();
    const { signal } = this.running;
    this.reader = this.context.model;
    const most = this.window();
    const characters = [...readingText.value];
    const request = { model: this.reader, text: characters.slice(-most).join("") };
    say(status, "Reading…");
    try {
      const answer = await this.ask({ ...request, signal });
      if (signal.aborted) return;
      say(status, characters.length > most ? `Only the last ${most} of ${characters.length} characters are read.` : "");
      this.reading.show(body, { ...answer, ...request }, this.context.source);
    } catch (error) {
      if (!signal.aborted) say(status, error.message, true);
    }
  }
}
