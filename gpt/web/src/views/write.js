import { camelCase, create, fill, isSubmit, say } from "../dom.js";
import { markParting } from "./parting.js";
import { Passage } from "./passage.js";
import template from "./write.html";

/** How the view is named, and what to look for in it. */
export const WRITE = {
  name: "write",
  title: "Write",
  sentence:
    "The stronger a character's color, the less likely it was. Look for the first letters of words, where the model " +
    "has many choices, and for the letters after them, which are almost certain. Point at a character to see what " +
    "else was possible there.",
};

/**
 * A form, and a text for each of `models`: `name()` is that of the model, and `heading`, where there is one, an element
 * to put above. `start` has the values of the form by its fields, `most`, the greatest count, and `filters`, the
 * sampling filters, each with the JSON schema of its value; the default keeps all. Each is a field of the form, such as
 * top-k, and of a request, such as topK.
 *
 * `source.write({ model, prompt, count, temperature, topK, topP, seed, known, signal }, add)` calls `add(tokens)` with
 * tokens as `Passage` takes them: those of the prompt but for the first `known`, then `count` that are sampled. The
 * prompt is a text, or the ids of one. `source.pace`, where it is there, says what computes.
 *
 * `changed(values)` follows the form, `written(text)` each text.
 */
export class Writer {
  constructor(root, start, source, models, { changed = null, written = null } = {}) {
    this.parts = fill(root, template);
    this.source = source;
    this.written = written;
    this.filters = Object.entries(start.filters).map(([name, schema]) => ({ ...schema, field: fieldOf(name) }));
    const { form, seed, panes, stop, another, count } = this.parts;
    this.fields = { prompt: this.parts.prompt, count, temperature: this.parts.temperature };
    for (const filter of this.filters) {
      this.fields[filter.field] = createNumber(filter);
      seed.parentElement.before(createControl(filter, this.fields[filter.field]));
    }
    this.fields.seed = seed;
    this.panes = models.map(({ name, heading = "" }) => new Pane(this, name, heading));
    panes.append(...this.panes.map(({ element }) => element));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    form.addEventListener("input", () => changed?.(this.values()));
    stop.addEventListener("click", () => this.stop());
    another.addEventListener("click", () => {
      seed.value = (Number(seed.value) + 1) % 2 ** 32;
      form.dispatchEvent(new Event("input"));
      this.start();
    });
    document.addEventListener("keydown", (event) => {
      if (!root.isConnected) return;
      if (event.key === "Escape") this.stop();
      if (isSubmit(event)) {
        event.preventDefault(); // a field would submit the form a second time
        form.requestSubmit();
      }
    });
    count.max = start.most;
    this.fill(start);
  }

  /** Writes values into the form. */
  fill(values) {
    for (const [name, field] of Object.entries(this.fields)) field.value = values[name];
  }

  values() {
    return Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, field.value]));
  }

  /** Starts all texts anew, unless a setting is wrong, which the form shows. */
  start() {
    this.stop();
    if (!this.parts.form.reportValidity()) return;
    const { prompt, ...numbers } = this.values();
    const settings = Object.fromEntries(
      Object.entries(numbers).map(([name, value]) => [camelCase(name), Number(value)])
    );
    for (const pane of this.panes) pane.start(prompt, settings, this.describe(settings));
  }

  describe(settings) {
    const chosen = this.filters.filter((filter) => settings[camelCase(filter.field)] !== filter.default);
    const words = chosen.map(({ field }) => `${field} ${settings[camelCase(field)]}`);
    return [`temperature ${settings.temperature}`, ...words].join(", ");
  }

  stop() {
    for (const { running } of this.panes) running?.abort();
  }

  /** Follows a text that grows or has ended. */
  follow() {
    this.parts.stop.disabled = this.panes.every(({ running }) => !running);
  }
}

/** One text of a writer. */
class Pane {
  constructor(writer, model, heading) {
    this.writer = writer;
    this.model = model;
    this.running = null;
    this.status = create("output", "status");
    const body = create("div");
    this.element = create("div", "pane", heading, this.status, body);
    this.passage = new Passage(body, (index, id) => this.branch(index, id));
  }

  start(prompt, settings, words) {
    this.settings = settings;
    this.passage.settings = words;
    this.passage.truncate(0);
    this.run(prompt, settings.count, 0);
  }

  /** Replaces a token, and continues from there; the random numbers of the seed begin anew. */
  branch(index, id) {
    this.running?.abort();
    const { tokens } = this.passage;
    const count = this.settings.count - tokens.slice(0, index + 1).filter(({ isGiven }) => !isGiven).length;
    this.passage.truncate(index);
    this.run([...tokens.map((token) => token.id), id], Math.max(0, count), index);
  }

  /** Lets the text grow, and says how that went. */
  async run(prompt, count, known) {
    const { source, written } = this.writer;
    const control = new AbortController();
    this.running = control;
    this.writer.follow();
    say(this.status, "Writing…");
    const began = performance.now();
    let added = 0;
    const add = (tokens) => {
      if (!control.signal.aborted) added += this.add(tokens, Array.isArray(prompt) ? known : null);
    };
    let fault = null;
    try {
      const request = { ...this.settings, model: this.model(), prompt, count, known, signal: control.signal };
      await Promise.race([source.write(request, add), untilAborted(control.signal)]);
    } catch (error) {
      if (error.name !== "AbortError") fault = error.message;
    }
    if (this.running !== control) return; // another run has taken its place
    this.running = null;
    this.writer.follow();
    const seconds = (performance.now() - began) / 1000;
    say(this.status, fault ?? describeRun(added, this.settings.seed, seconds, source.pace ?? ""), fault !== null);
    this.passage.settle();
    written?.(this.passage.tokens.map(({ text }) => text).join(""));
  }

  /** Adds tokens, the one at `picked` chosen by the reader; returns how many were sampled. */
  add(tokens, picked) {
    // the first of several slices may have none
    const isPicked = tokens.length > 0 && this.passage.tokens.length === picked;
    if (isPicked) Object.assign(tokens[0], { isGiven: false, isPicked: true });
    this.passage.add(tokens);
    const passages = this.writer.panes.map(({ passage }) => passage);
    if (passages.length === 2) markParting(passages);
    if (isPicked) this.passage.focus(picked);
    return tokens.filter((token) => !token.isGiven && !token.isPicked).length;
  }
}

function describeRun(count, seed, seconds, computer) {
  const pace = seconds > 0 ? `, ${Math.round(count / seconds)} per second${computer}` : "";
  return `${count} character${count === 1 ? "" : "s"} written with seed ${seed}${pace}.`;
}

/** Throws once a signal is aborted, whatever else still has to notice it. */
function untilAborted(signal) {
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}

/** The field of a filter in the form. */
export function fieldOf(filter) {
  return filter.replaceAll("_", "-");
}

function createNumber({ field, type, minimum, exclusiveMinimum, maximum }) {
  const input = Object.assign(create("input"), { type: "number", id: field, required: true });
  input.step = type === "integer" ? "1" : "any";
  input.min = minimum ?? (exclusiveMinimum === undefined ? "" : exclusiveMinimum + 1e-6);
  input.max = maximum ?? "";
  return input;
}

function createControl({ field, description = "" }, input) {
  return Object.assign(create("label", "", `${field[0].toUpperCase()}${field.slice(1)} `, input), {
    title: description,
  });
}
