import { saveCard } from "../card.js";
import { camelCase, copy, create, fill, isSubmit, prefersStill, say } from "../dom.js";
import { offerExamples } from "../examples.js";
import { linkTo } from "../link.js";
import { NO_MARKS, SIGNS, textOf } from "../marks.js";
import { many } from "../tokens.js";
import { describeUnknown } from "../unknown.js";
import { Passage } from "./passage.js";
import template from "./write.html";

/** The view without its `show`; see `startShell`. */
export const WRITE = {
  name: "write",
  title: "Write",
  sentence:
    "The stronger the color, the less likely the model thought that character. Choose a place " +
    "in the text to see what else was possible there.",
  more:
    "Look for the first letters of words, where the model has many choices, and for the letters " +
    "after them, which are almost certain. Each alternative has two bars: its probability by " +
    "the model, and the one it is sampled with. Move a slider and watch the second: temperature " +
    "makes likely ones more or less likely, then top-k, top-p and min-p drop unlikely ones, and " +
    "what is left is scaled to 100%. Choose an alternative to continue from there.",
};
const TEMPERATURE = {
  field: "temperature",
  type: "number",
  minimum: 0,
  maximum: 2,
  description: "Below 1 makes likely ones more likely; 0 always takes the most likely one.",
};
// settings whose effect engine/sampling.js computes
const COMPUTED = ["temperature", "top-k", "top-p", "min-p"];
const PACE_MILLISECONDS = 16; // between tokens: as fast as a screen shows them
const SLIDER_RANGE = 50; // of a setting without an upper bound
const NUM_ITEMS = 20; // of a list, as `gpt sample` writes
const SEEDS = 2 ** 32; // as many as there are
/** What the form says, by what the model writes: running text, the items of a list, or answers. */
const WORDS = {
  text: { label: "Prompt", hint: "Empty: the text begins after a line end.", button: "Write" },
  items: {
    label: "Beginning of each item",
    hint: "Empty: the model begins the items itself.",
    button: "Write",
  },
  answers: { label: "Question", hint: "What the model is to answer.", button: "Ask" },
};
const LINE = /^[^\n]{2,40}[.!?:](?=\n)/u; // a whole one, such as the name before a speech
const WORDS_AT_START = /^\s*\S{1,16}(\s\S{1,8}(?=\s))?/u; // one word, or two where the second is short

/**
 * A form, and the text that the model of a context writes, see `startShell`. `start` has the values
 * of the form's fields, `most`, the greatest count, and `filters`, the JSON schema of each sampling
 * filter, whose default keeps all tokens. A filter is a field of the form, such as top-k, and of a
 * request, such as topK.
 *
 * `source.write({ model, prompt, count, temperature, topK, topP, seed, known, signal }, add)` calls
 * `add(tokens)` with tokens as `Passage` takes them: those of the prompt without the first `known`,
 * then `count` that are sampled, or fewer, if one of them ends the text. The prompt is a text, or
 * the ids of one. `source.logitsAfter({ model, ids })` returns the logits, up to a constant, of the
 * token after the ids.
 *
 * `marks` of the context's facts say where a text begins and ends. A model of a list writes `count`
 * items, one after another: each is a text of its own, which the model reads from the mark before
 * it. A model of questions and answers reads the prompt as a question.
 *
 * `changed(values)` is called when the form has changed, `written(text)` after each text that the
 * reader has asked for.
 */
export class Writer {
  constructor(root, start, context, { changed = null, written = null } = {}) {
    this.parts = fill(root, template);
    this.context = context;
    this.changed = changed;
    this.written = written;
    this.word = "character"; // what a token of the model is called
    this.shown = null; // the model that the text was started with
    this.running = null; // the AbortController of the text that is being written
    this.filters = Object.entries(start.filters).map(([name, schema]) => ({
      ...schema,
      field: fieldOf(name),
    }));
    const { form, seed, passage, count, prompt, filters } = this.parts;
    this.fields = { prompt, count };
    this.sliders = {};
    for (const setting of [TEMPERATURE, ...this.filters]) {
      const { row, input, slider } = createSetting(setting);
      this.fields[setting.field] = input;
      this.sliders[setting.field] = slider;
      if (setting === TEMPERATURE) seed.parentElement.before(row);
      else filters.append(row);
    }
    this.fields.seed = seed;
    this.passage = new Passage(passage, this);
    count.max = start.most;
    this.fill(start);
    this.listen(root, form);
  }

  listen(root, form) {
    const { stop, dice, seed, copy, settings, filters, link, picture } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    form.addEventListener("input", ({ target }) => this.follow(target));
    const unfold = () => {
      // so that the browser can point at the wrong field
      settings.open = true;
      filters.open = true;
    };
    form.addEventListener("invalid", unfold, { capture: true });
    stop.addEventListener("click", () => this.stop());
    dice.addEventListener("click", () => {
      seed.value = crypto.getRandomValues(new Uint32Array(1))[0];
      this.follow(seed);
      this.start();
    });
    copy.addEventListener("click", () => this.copy());
    link.addEventListener("click", () => this.copyLink());
    picture.addEventListener("click", () => this.savePicture());
    document.addEventListener("keydown", (event) => {
      if (!root.isConnected) return;
      if (event.key === "Escape") this.stop();
      if (isSubmit(event)) {
        event.preventDefault(); // a field would submit the form a second time
        form.requestSubmit();
      }
    });
    const isWide = matchMedia("(min-width: 56rem)"); // as in widths.css
    const unfoldWhereWide = () => {
      settings.open = isWide.matches;
    };
    isWide.addEventListener("change", unfoldWhereWide);
    unfoldWhereWide();
  }

  /** Writes values into the form. */
  fill(values) {
    for (const [name, field] of Object.entries(this.fields)) field.value = values[name];
    this.follow();
  }

  /**
   * Updates all that shows the values of the form; `target` is the field or slider that the reader
   * has changed.
   */
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
    const isValid = Object.values(this.fields).every(({ validity }) => validity.valid);
    if (isValid) this.passage.follow();
  }

  /** The filters that some settings do not leave off. */
  chosenFilters(settings) {
    return this.filters.filter((filter) => settings[camelCase(filter.field)] !== filter.default);
  }

  /** A program that writes the text of the form. */
  snippet(settings) {
    const { facts } = this.context;
    const length = this.marks.kind === "items" ? facts.longest_item : settings.count;
    const numbers = [`max_new_tokens=${length}`, `temperature=${settings.temperature}`];
    for (const { field } of this.chosenFilters(settings)) {
      numbers.push(`${field.replaceAll("-", "_")}=${settings[camelCase(field)]}`);
    }
    const { source, model } = this.context;
    const prompt = source.readable(this.asked(this.fields.prompt.value));
    const folder = `runs/${model || source.learning?.run.name}`;
    const head =
      `import gpt\n\nmodel, tokenizer = gpt.load(${JSON.stringify(folder)})\n` +
      `prompt = ${JSON.stringify(prompt)}\n`;
    const write = (seed) => {
      const values = [...numbers, `seed=${seed}`, ...this.markArguments()].join(", ");
      return `print(prompt + gpt.generate(model, tokenizer, prompt, ${values}))`;
    };
    if (this.marks.kind !== "items") return head + write(settings.seed);
    const seeds = `range(${settings.seed}, ${settings.seed + settings.count})`;
    return `${head}for seed in ${seeds}:\n    ${write("seed")}`;
  }

  /** The arguments of a program that say where the texts of the model begin and end. */
  markArguments() {
    const { begin, ends, turn } = this.marks;
    const values = [];
    if (begin !== null) values.push(`begin_id=${begin}`);
    if (ends.length) values.push(`end_id=${ends[0]}`);
    if (turn) values.push(`stop=${JSON.stringify(turn)}`);
    return values;
  }

  /** Starts the text when the view is first shown, and when the model is another one. */
  open() {
    const { facts, model } = this.context;
    this.word = facts.token;
    this.parts.same.hidden = !model && !this.context.source.learning;
    this.follow();
    const unit = this.marks.kind === "items" ? "item" : this.word;
    this.parts.unit.textContent = `${unit[0].toUpperCase()}${unit.slice(1)}s`;
    const { label, hint, button } = WORDS[this.marks.kind];
    this.parts.promptLabel.textContent = label;
    this.parts.prompt.placeholder = hint;
    this.parts.writeButton.textContent = button;
    offerExamples(this.parts.examples, facts.examples ?? [], (example) => {
      this.parts.prompt.value = example;
      this.start();
    });
    if (this.shown !== model) this.start(false);
  }

  /** The marks of the model, as `NO_MARKS`; those of one that cannot be loaded are not known. */
  get marks() {
    return this.context.facts?.marks ?? NO_MARKS;
  }

  values() {
    return Object.fromEntries(
      Object.entries(this.fields).map(([name, field]) => [name, field.value])
    );
  }

  /** The numbers of the form, as a request has them. */
  settings() {
    const { prompt, ...numbers } = this.values();
    return Object.fromEntries(
      Object.entries(numbers).map(([name, value]) => [camelCase(name), Number(value)])
    );
  }

  /**
   * Starts the text anew, unless a setting is wrong, which the form shows; `isAsked`: whether the
   * reader asked for it.
   */
  start(isAsked = true) {
    this.stop();
    this.shown = this.context.model;
    if (!this.parts.form.reportValidity()) return;
    this.passage.truncate(0);
    const prompt = this.parts.prompt.value;
    if (this.marks.kind === "answers" && !prompt.trim()) {
      say(this.parts.status, isAsked ? "Ask the model something." : "");
      return;
    }
    this.run(this.asked(prompt), this.settings(), 0, isAsked);
  }

  /** A prompt as the model reads it: a question is followed by the mark that begins an answer. */
  asked(prompt) {
    return prompt + this.marks.answer;
  }

  /** The settings in words, without filters that are off. */
  describe(settings) {
    const words = this.chosenFilters(settings).map(
      ({ field }) => `${field} ${settings[camelCase(field)]}`
    );
    return [`temperature ${settings.temperature}`, ...words].join(", ");
  }

  /**
   * Whether the effect of the settings can be computed in the page, which does not know the filters
   * of plugins.
   */
  isComputed(settings) {
    return this.chosenFilters(settings).every(({ field }) => COMPUTED.includes(field));
  }

  stop() {
    this.running?.abort();
  }

  async copy() {
    const isCopied = await copy(this.passage.plainText(this.marks.begin));
    const { status } = this.parts;
    say(
      status,
      isCopied ? "The text is copied." : "The browser allows no copying here; select the text.",
      !isCopied
    );
  }

  /** Copies a link that opens this view, and lets it write with the values of the form. */
  async copyLink() {
    const { prompt } = this.values();
    const end = linkTo({ prompt, ...this.settings(), model: this.context.model });
    const address = `${location.href.split("#")[0]}${end}`;
    const { status } = this.parts;
    if (await copy(address)) {
      say(status, "The link is copied: whoever opens it here gets the text of this form.");
    } else {
      say(status, address); // to be selected, where the browser allows no copying
    }
  }

  savePicture() {
    const { facts, model, source } = this.context;
    const name = model || source.learning?.run.name || "gpt";
    saveCard(this.passage.tokens, facts, name);
    say(this.parts.status, `Saved as ${name}.png.`);
  }

  logitsAfter(ids, signal) {
    const { source, model } = this.context;
    return source.logitsAfter({ model, ids: this.fromMark(ids), signal });
  }

  /** The end of some ids that the model reads: from the last mark that begins a text. */
  fromMark(ids) {
    const { begin } = this.marks;
    return begin === null ? ids : ids.slice(Math.max(0, ids.lastIndexOf(begin)));
  }

  /**
   * Replaces a token, and continues from there with the settings of the form. The seed's random
   * numbers begin anew.
   */
  branch(index, id) {
    if (!this.parts.form.reportValidity()) return;
    this.stop();
    const { tokens } = this.passage;
    const settings = this.settings();
    // the replaced one included
    const written = tokens.slice(0, index + 1).filter(({ isGiven }) => !isGiven);
    if (this.marks.kind !== "items") settings.count = Math.max(0, settings.count - written.length);
    this.passage.truncate(index);
    const ids = this.fromMark(tokens.map((token) => token.id));
    this.run([...ids, id], settings, ids.length, true);
  }

  /**
   * Asks the source for one text, or for the items of a list that are not written yet, one after
   * another. Returns what `source.write` returns for the last of them.
   */
  async ask(request, take) {
    const { kind, begin } = this.marks;
    if (kind !== "items") return this.askOnce(request, take);
    let unknown = [];
    let { prompt, known } = request;
    const beginning = this.parts.prompt.value; // the reader may change it in the meantime
    const first = this.countItems();
    const end = Math.max(request.count, first + 1); // an item that was changed is written anew
    for (let item = first; item < end; item++) {
      let last = null;
      const takeItem = (tokens) => {
        last = tokens.at(-1) ?? last;
        take(tokens);
      };
      const seed = (request.seed + item) % SEEDS;
      const asked = { ...request, prompt, known, seed, count: this.context.facts.longest_item };
      unknown = (await this.askOnce(asked, takeItem)) ?? [];
      await nextFrame(); // so that the page draws, and the reader can stop it
      request.signal.throwIfAborted();
      prompt = beginning;
      known = last?.id === begin ? 1 : 0; // the mark that ends an item begins the next one
    }
    return unknown;
  }

  /** Asks for one text. A token that ends it may have been chosen by the reader. */
  askOnce(request, take) {
    const { prompt, count } = request;
    const isEnded = Array.isArray(prompt) && this.marks.ends.includes(prompt.at(-1));
    return this.context.source.write({ ...request, count: isEnded ? 0 : count }, take);
  }

  /** The number of items of the list that have ended. */
  countItems() {
    const isEnd = ({ id, isGiven }) => !isGiven && this.marks.ends.includes(id);
    return this.passage.tokens.filter(isEnd).length;
  }

  /**
   * Lets the text grow, and says how that went. `known` tokens of the prompt are in the text
   * already. A prompt of ids ends with one that the reader chose; see `branch`.
   */
  async run(prompt, settings, known, isAsked) {
    const { parts, passage, context, word } = this;
    const control = new AbortController();
    const { signal } = control;
    this.running = control;
    parts.stop.disabled = false;
    passage.sampling = settings;
    say(parts.status, "Writing…");
    let began = performance.now();
    const picked = Array.isArray(prompt) ? passage.tokens.length : null;
    let added = 0;
    const add = (tokens) => {
      if (!signal.aborted) added += this.add(tokens, picked);
    };
    // Tokens wait here, since several may come at a time: the prompt's are shown at once, the
    // others one by one.
    const waiting = [];
    const showNext = () => {
      if (!waiting.length) return;
      const numGiven = 1 + waiting.findLastIndex(({ isGiven }) => isGiven);
      add(waiting.splice(0, Math.max(1, numGiven)));
    };
    const timer = setInterval(showNext, PACE_MILLISECONDS);
    const take = (tokens) => {
      // the pace is that of writing: a long prompt takes a while to read
      if (tokens.some(({ isGiven }) => isGiven)) began = performance.now();
      if (prefersStill()) add(tokens);
      else waiting.push(...tokens);
    };
    let fault = null;
    let unknown = [];
    let seconds = 0;
    try {
      const request = { ...settings, model: context.model, prompt, known, signal };
      unknown = (await Promise.race([this.ask(request, take), untilAborted(signal)])) ?? [];
      seconds = (performance.now() - began) / 1000;
      while (waiting.length) await Promise.race([nextFrame(), untilAborted(signal)]);
    } catch (error) {
      if (error.name !== "AbortError") fault = error.message;
    }
    clearInterval(timer);
    if (this.running !== control) return; // another run has taken its place
    this.running = null;
    // a disabled button would lose the focus
    if (document.activeElement === parts.stop) parts.writeButton.focus();
    parts.stop.disabled = true;
    if (fault === null) {
      const bits = describeBits(passage.tokens, context.facts);
      const what = this.marks.kind === "items" ? `${many(this.countItems(), "item")} of ` : "";
      const run = what + describeRun(added, word, settings.seed, seconds);
      const sight = describeSight(passage.tokens.length, context.facts);
      say(parts.status, [run + bits + sight, describeUnknown(unknown)].join(" ").trimEnd());
    } else {
      say(parts.status, fault, true);
    }
    passage.settle();
    if (isAsked) this.written?.(textOf(passage.tokens, this.marks.begin));
  }

  /**
   * Adds tokens, of which the reader has chosen the one at `picked`; returns how many were sampled.
   */
  add(tokens, picked) {
    // the first call may have no tokens
    const isPicked = tokens.length > 0 && this.passage.tokens.length === picked;
    if (isPicked) Object.assign(tokens[0], { isGiven: false, isPicked: true });
    this.passage.add(tokens);
    const isPointedAt = this.parts.passage.matches(":is(:hover, :focus-within)");
    if (!prefersStill() && !isPointedAt) this.passage.show(this.passage.tokens.length - 1);
    if (isPicked) this.passage.focus(picked);
    return tokens.filter((token) => !token.isGiven && !token.isPicked).length;
  }
}

function describeRun(count, word, seed, seconds) {
  const pace = seconds > 0 ? `, ${Math.round(count / seconds)} per second` : "";
  return `${many(count, word)} written with seed ${seed}${pace}.`;
}

/**
 * How surprised the model was by the text that it wrote, per character, beside a guess that knows
 * only the vocabulary.
 */
function describeBits(tokens, { token, vocab_size: size }) {
  const written = tokens.filter(({ isGiven, probability }) => !isGiven && probability > 0);
  const characters = written.reduce((sum, { text }) => sum + [...text].length, 0);
  if (!characters) return "";
  const bits = written.reduce((sum, { probability }) => sum - Math.log2(probability), 0);
  const blind =
    token === "character" && size ? `; guessing blindly: ${Math.log2(size).toFixed(2)}` : "";
  return ` ${(bits / characters).toFixed(2)} bits per character${blind}.`;
}

/** What the model does not see of a long text. */
function describeSight(length, { block_size: window, token }) {
  if (!(length > window)) return "";
  return ` It sees the last ${many(window, token)} at most.`;
}

function nextFrame() {
  return new Promise((done) => setTimeout(done, PACE_MILLISECONDS));
}

/** Throws as soon as a signal is aborted, even if the source has not noticed yet. */
function untilAborted(signal) {
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}

/** The field of a filter in the form. */
function fieldOf(filter) {
  return filter.replaceAll("_", "-");
}

/**
 * The values that the form starts with: the prompt of the model's training, or the first words of
 * its example, and what its configuration samples with.
 */
export function startValues({ example, about, marks, sample: { temperature, ...filters } }) {
  const prompt = marks.kind === "text" ? about.prompt : "";
  const values = {
    prompt: prompt || beginningOf(example, marks),
    count: marks.kind === "items" ? NUM_ITEMS : 300,
    seed: 1337,
    temperature: Math.min(TEMPERATURE.maximum, temperature),
  };
  for (const [name, value] of Object.entries(filters)) values[fieldOf(name)] = value;
  return values;
}

/** The prompt that the form starts with. */
function beginningOf(example, { kind, answer }) {
  if (kind === "items") return ""; // whole ones
  if (kind === "answers") return example.split(SIGNS.get(answer))[0];
  const [beginning = ""] = LINE.exec(example) ?? WORDS_AT_START.exec(example) ?? [];
  return beginning;
}

/** Creates a field for a number with a slider beside it, from a JSON schema. */
function createSetting(schema) {
  const { field, type, description = "" } = schema;
  const isInteger = type === "integer";
  const input = Object.assign(create("input"), { type: "number", id: field, required: true });
  input.step = isInteger ? "1" : "any";
  // how near the field lets a number come to an exclusive bound
  const nearest = isInteger ? 1 : 1e-6;
  input.min = lowestOf(schema, nearest) ?? "";
  input.max = highestOf(schema, nearest) ?? "";
  const step = isInteger ? 1 : 0.01;
  const min = lowestOf(schema, step) ?? 0;
  const max = Math.min(highestOf(schema, step) ?? Infinity, min + SLIDER_RANGE);
  const slider = Object.assign(create("input"), { type: "range", step, min, max });
  const name = `${field[0].toUpperCase()}${field.slice(1)}`;
  slider.setAttribute("aria-label", `${name}, slider`);
  const label = Object.assign(create("label", "", name), { htmlFor: field });
  const row = Object.assign(create("div", "setting", label, input, slider), { title: description });
  return { row, input, slider };
}

/**
 * The lowest number that the bounds of a schema allow, `distance` above an exclusive one; undefined
 * without a bound.
 */
function lowestOf({ minimum, exclusiveMinimum }, distance) {
  if (minimum !== undefined) return minimum;
  return exclusiveMinimum === undefined ? undefined : exclusiveMinimum + distance;
}

/**
 * The highest number that the bounds of a schema allow, `distance` below an exclusive one;
 * undefined without a bound.
 */
function highestOf({ maximum, exclusiveMaximum }, distance) {
  if (maximum !== undefined) return maximum;
  return exclusiveMaximum === undefined ? undefined : exclusiveMaximum - distance;
}
