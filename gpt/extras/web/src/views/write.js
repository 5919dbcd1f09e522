import { camelCase, copy, create, fill, isSubmit, say } from "../dom.js";
import { many } from "../tokens.js";
import { Passage } from "./passage.js";
import template from "./write.html";

/** How the view is named, and what to look for in it. */
export const WRITE = {
  name: "write",
  title: "Write",
  sentence:
    "The stronger the color, the less likely the model thought that character. Choose a place in the text to see " +
    "what else was possible there.",
  more:
    "Look for the first letters of words, where the model has many choices, and for the letters after them, which are " +
    "almost certain. Each alternative has two bars: its probability by the model, and the one it is sampled " +
    "with. Move a slider and watch the second: temperature makes likely ones more or less likely, then top-k, top-p " +
    "and min-p drop unlikely ones, and what is left is scaled to 100%. Choose an alternative to continue from there.",
};
const TEMPERATURE = {
  field: "temperature",
  type: "number",
  minimum: 0,
  maximum: 2,
  description: "Below 1 makes likely ones more likely; 0 always takes the most likely one.",
};
const COMPUTED = ["temperature", "top-k", "top-p", "min-p"]; // what engine/sampling.js knows the effect of
const PACE_MILLISECONDS = 16; // between tokens, which a reader can follow
const MOST_ON_A_SLIDER = 50; // from its least value on
const BEGINNING = /^\s*\S{1,16}(\s\S{1,8}(?=\s))?/u;

/**
 * A form, and the text of the model of a context, see `startShell`. `start` has the values of the form by its fields,
 * `most`, the greatest count, and `filters`, the sampling filters, each with the JSON schema of its value; the default
 * keeps all. Each is a field of the form, such as top-k, and of a request, such as topK.
 *
 * `source.write({ model, prompt, count, temperature, topK, topP, seed, known, signal }, add)` calls `add(tokens)` with
 * tokens as `Passage` takes them: those of the prompt but for the first `known`, then `count` that are sampled. The
 * prompt is a text, or the ids of one. `source.logitsAfter({ model, ids })` returns the logits, up to a
 * constant, of the token after some ids.
 *
 * `changed(values)` follows the form, `written(text)` each text that the reader asked for.
 */
export class Writer {
  constructor(root, start, context, { changed = null, written = null } = {}) {
    this.parts = fill(root, template);
    this.context = context;
    this.changed = changed;
    this.written = written;
    this.word = "character"; // for a token of the model
    this.shown = null; // the model that the text was started with
    this.running = null; // what cancels the text that grows
    this.filters = Object.entries(start.filters).map(([name, schema]) => ({ ...schema, field: fieldOf(name) }));
    const { form, seed, passage, count, prompt } = this.parts;
    this.fields = { prompt, count };
    this.sliders = {};
    for (const setting of [TEMPERATURE, ...this.filters]) {
      const { row, input, slider } = createSetting(setting);
      this.fields[setting.field] = input;
      this.sliders[setting.field] = slider;
      seed.parentElement.before(row);
    }
    this.fields.seed = seed;
    this.passage = new Passage(passage, this);
    count.max = start.most;
    this.fill(start);
    this.listen(root, form);
  }

  listen(root, form) {
    const { stop, dice, seed, copy, settings } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    form.addEventListener("input", ({ target }) => this.follow(target));
    const showWrong = () => {
      settings.open = true;
    };
    form.addEventListener("invalid", showWrong, { capture: true });
    stop.addEventListener("click", () => this.stop());
    dice.addEventListener("click", () => {
      seed.value = crypto.getRandomValues(new Uint32Array(1))[0];
      this.follow(seed);
      this.start();
    });
    copy.addEventListener("click", () => this.copy());
    document.addEventListener("keydown", (event) => {
      if (!root.isConnected) return;
      if (event.key === "Escape") this.stop();
      if (isSubmit(event)) {
        event.preventDefault(); // a field would submit the form a second time
        form.requestSubmit();
      }
    });
    const isWide = matchMedia("(min-width: 56rem)");
    const unfold = () => {
      settings.open = isWide.matches;
    };
    isWide.addEventListener("change", unfold);
    unfold();
  }

  /** Writes values into the form. */
  fill(values) {
    for (const [name, field] of Object.entries(this.fields)) field.value = values[name];
    this.follow();
  }

  /** Follows a field of the form, and those that show what it has. */
  follow(target = null) {
    for (const [name, slider] of Object.entries(this.sliders)) {
      if (target === slider) this.fields[name].value = slider.value;
      else slider.value = this.fields[name].value;
    }
    const settings = this.settings();
    this.parts.summary.textContent = `${this.describe(settings)}, seed ${settings.seed}`;
    this.parts.snippet.textContent = this.snippet(settings);
    if (!target) return;
    this.changed?.(this.values());
    if (Object.values(this.fields).every(({ validity }) => validity.valid)) this.passage.follow();
  }

  /** A program that writes the text of the form. */
  snippet({ count, temperature, seed, ...filters }) {
    const chosen = this.filters.filter((filter) => filters[camelCase(filter.field)] !== filter.default);
    const others = chosen.map(({ field }) => `${field.replaceAll("-", "_")}=${filters[camelCase(field)]}, `).join("");
    const numbers = `max_new_tokens=${count}, temperature=${temperature}, ${others}seed=${seed}`;
    const { source } = this.context;
    const prompt = JSON.stringify(source.readable?.(this.fields.prompt.value) ?? this.fields.prompt.value);
    const folder = JSON.stringify(`runs/${this.context.model || source.learning?.run.name}`);
    return (
      `import gpt\n\nmodel, tokenizer = gpt.load(${folder})\nprompt = ${prompt}\n` +
      `print(prompt + gpt.generate(model, tokenizer, prompt, ${numbers}))`
    );
  }

  /** Writes when it is first shown, and when its model is another. */
  open() {
    const { facts, model } = this.context;
    this.word = facts.token;
    this.parts.same.hidden = !model && !this.context.source.learning;
    this.follow();
    this.parts.unit.textContent = `${this.word[0].toUpperCase()}${this.word.slice(1)}s`;
    if (this.shown !== model) this.start(false);
  }

  values() {
    return Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, field.value]));
  }

  /** The numbers of the form, as a request has them. */
  settings() {
    const { prompt, ...numbers } = this.values();
    return Object.fromEntries(Object.entries(numbers).map(([name, value]) => [camelCase(name), Number(value)]));
  }

  /** Starts the text anew, unless a setting is wrong, which the form shows; `isAsked`: by the reader. */
  start(isAsked = true) {
    this.stop();
    this.shown = this.context.model;
    if (!this.parts.form.reportValidity()) return;
    this.passage.truncate(0);
    this.run(this.parts.prompt.value, this.settings(), 0, isAsked);
  }

  describe(settings) {
    const chosen = this.filters.filter((filter) => settings[camelCase(filter.field)] !== filter.default);
    const words = chosen.map(({ field }) => `${field} ${settings[camelCase(field)]}`);
    return [`temperature ${settings.temperature}`, ...words].join(", ");
  }

  /** Whether the effect of the settings can be computed here: not that of a filter that the page does not know, unless it is off. */
  isComputed(settings) {
    const others = this.filters.filter(({ field }) => !COMPUTED.includes(field));
    return others.every((filter) => settings[camelCase(filter.field)] === filter.default);
  }

  stop() {
    this.running?.abort();
  }

  async copy() {
    const isCopied = await copy(this.passage.text);
    const { status } = this.parts;
    say(status, isCopied ? "The text is copied." : "The browser allows no copying here; select the text.", !isCopied);
  }

  logitsAfter(ids, signal) {
    const { source, model } = this.context;
    return source.logitsAfter({ model, ids, signal });
  }

  /** Replaces a token, and continues from there with the settings; the random numbers of the seed begin anew. */
  branch(index, id) {
    if (!this.parts.form.reportValidity()) return;
    this.stop();
    const { tokens } = this.passage;
    const settings = this.settings();
    const count = settings.count - tokens.slice(0, index + 1).filter(({ isGiven }) => !isGiven).length;
    this.passage.truncate(index);
    this.run([...tokens.map((token) => token.id), id], { ...settings, count: Math.max(0, count) }, index, true);
  }

  /** Lets the text grow, and says how that went. */
  async run(prompt, settings, known, isAsked) {
    const { parts, passage, context, word } = this;
    const control = new AbortController();
    const { signal } = control;
    this.running = control;
    parts.stop.disabled = false;
    passage.sampling = settings;
    say(parts.status, "Writing…");
    const began = performance.now();
    let added = 0;
    const add = (tokens) => {
      if (!signal.aborted) added += this.add(tokens, Array.isArray(prompt) ? known : null);
    };
    const waiting = [];
    const next = () => add(waiting.splice(0, Math.max(1, 1 + waiting.findLastIndex(({ isGiven }) => isGiven))));
    const timer = setInterval(() => waiting.length && next(), PACE_MILLISECONDS);
    const take = (tokens) => (isStill() ? add(tokens) : waiting.push(...tokens));
    let [fault, unknown, seconds] = [null, [], 0];
    try {
      const request = { ...settings, model: context.model, prompt, known, signal };
      unknown = (await Promise.race([context.source.write(request, take), untilAborted(signal)])) ?? [];
      seconds = (performance.now() - began) / 1000;
      while (waiting.length) await Promise.race([nextFrame(), untilAborted(signal)]);
    } catch (error) {
      if (error.name !== "AbortError") fault = error.message;
    }
    clearInterval(timer);
    if (this.running !== control) return; // another run has taken its place
    this.running = null;
    parts.stop.disabled = true;
    const said = `${describeRun(added, word, settings.seed, seconds)}${describeBits(passage.tokens, context.facts)}${describeUnknown(unknown)}`;
    say(parts.status, fault ?? said, fault !== null);
    passage.settle();
    if (isAsked) this.written?.(passage.text);
  }

  /** Adds tokens, the one at `picked` chosen by the reader; returns how many were sampled. */
  add(tokens, picked) {
    // the first of several slices may have none
    const isPicked = tokens.length > 0 && this.passage.tokens.length === picked;
    if (isPicked) Object.assign(tokens[0], { isGiven: false, isPicked: true });
    this.passage.add(tokens);
    if (!isStill() && !this.parts.passage.matches(":hover")) this.passage.show(this.passage.tokens.length - 1);
    if (isPicked) this.passage.focus(picked);
    return tokens.filter((token) => !token.isGiven && !token.isPicked).length;
  }
}

function describeRun(count, word, seed, seconds) {
  const pace = seconds > 0 ? `, ${Math.round(count / seconds)} per second` : "";
  return `${many(count, word)} written with seed ${seed}${pace}.`;
}

/** How surprised the model was by what was written, per character, beside one that knows nothing but the characters. */
function describeBits(tokens, { token, vocab_size: size }) {
  const written = tokens.filter(({ isGiven, probability }) => !isGiven && probability > 0);
  const characters = written.reduce((sum, { text }) => sum + [...text].length, 0);
  const bits = written.reduce((sum, { probability }) => sum - Math.log2(probability), 0);
  const blind = token === "character" && size ? `; guessing blindly: ${Math.log2(size).toFixed(2)}` : "";
  return characters ? ` ${(bits / characters).toFixed(2)} bits per character${blind}.` : "";
}

function describeUnknown(characters) {
  const named = characters.slice(0, 10).join(" ");
  return named && ` The model does not know ${named}, so a plain form took their place, or they were left out.`;
}

function isStill() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

function nextFrame() {
  return new Promise((done) => setTimeout(done, PACE_MILLISECONDS));
}

/** Throws once a signal is aborted, whatever else still has to notice it. */
function untilAborted(signal) {
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}

/** The field of a filter in the form. */
function fieldOf(filter) {
  return filter.replaceAll("_", "-");
}

/** The values that the form starts with: what the model's configuration has for sampling, and its first words. */
export function startValues({ example, sample: { temperature, ...filters } }) {
  const named = Object.entries(filters).map(([name, value]) => [fieldOf(name), value]);
  const [prompt = ""] = BEGINNING.exec(example) ?? [];
  return { prompt, count: 300, seed: 1337, temperature: Math.min(2, temperature), ...Object.fromEntries(named) };
}

/** A number with a slider, from a JSON schema, which may have bounds. */
function createSetting({ field, type, minimum, exclusiveMinimum, maximum, exclusiveMaximum, description = "" }) {
  const [step, least] = type === "integer" ? [1, 1] : [0.01, 1e-6]; // of the slider, and off an exclusive bound
  const input = Object.assign(create("input"), { type: "number", id: field, required: true });
  input.step = type === "integer" ? "1" : "any";
  input.min = minimum ?? (exclusiveMinimum === undefined ? "" : exclusiveMinimum + least);
  input.max = maximum ?? (exclusiveMaximum === undefined ? "" : exclusiveMaximum - least);
  const min = minimum ?? (exclusiveMinimum === undefined ? 0 : exclusiveMinimum + step);
  const most = maximum ?? (exclusiveMaximum === undefined ? Infinity : exclusiveMaximum - step);
  const max = Math.min(most, min + MOST_ON_A_SLIDER);
  const slider = Object.assign(create("input"), { type: "range", step, min, max });
  const name = `${field[0].toUpperCase()}${field.slice(1)}`;
  slider.setAttribute("aria-label", `${name}, slider`);
  const row = create("div", "setting", Object.assign(create("label", "", name), { htmlFor: field }), input, slider);
  return { row: Object.assign(row, { title: description }), input, slider };
}
