import { saveCard } from "../card.js";
import { camelCase, copy, create, createButton, fill, prefersStill, say } from "../dom.js";
import { offerExamples } from "../examples.js";
import { linkTo } from "../link.js";
import { plainTextOf, textOf } from "../marks.js";
import { showLearning } from "../playground/learning.js";
import { listCharacters } from "../tokens.js";
import { describeModel } from "./about.js";
import template from "./start.html";
import { startValues } from "./write.js";

/** The view without its `show`; see `startShell`. */
export const START = { name: "start", title: "Start" };
const TICK_MILLISECONDS = 16; // between two drawings: as fast as a screen shows them
// A stage takes 1.2 s, so that five of them take six.
const TYPING_TICKS = 55;
const HOLDING_TICKS = 20;
const NUM_EARLIER = 4; // stages before the last one
const CHARACTERS = 200; // of a text, as a snapshot has
const TOKENS = 60; // of a text, where a token is longer than a character
const SEEDS = 2 ** 32; // as many as there are
const MOST_ITEMS = 16; // of a list in a text, as a snapshot has
const LABELS = {
  text: "Now you: type a beginning",
  items: "Now you: type how each begins",
  answers: "Now you: ask a question",
};

/**
 * The first screen: one beginning, continued by the model as it was at a few steps of its training,
 * and at last by the model itself; what the model is; and a field for a beginning of the reader's
 * own. `context` is that of `startShell`; `seed` is the seed of the first text, and `written(text)`
 * is called after each text that the reader has asked for.
 *
 * Only the last stage is computed here. So its link and its picture are of the text that is shown.
 */
export class Story {
  constructor(root, context, { seed, written }) {
    this.parts = fill(root, template);
    this.context = context;
    this.firstSeed = seed;
    this.written = written;
    this.model = null; // the name of the one that is shown
    this.stages = []; // see `stagesOf`; the last one grows while the model writes
    this.stage = 0; // the index of the one that is shown
    this.isPlaying = false; // whether the next stage follows by itself
    this.ticks = 0; // since the stage was shown
    this.timer = null;
    this.tokens = []; // of the last stage
    this.request = null; // by which the last stage is written
    this.running = null; // the AbortController of the text that is being written
    this.listen();
  }

  listen() {
    const { form, link, picture } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.writeOwn();
    });
    link.addEventListener("click", () => this.copyLink());
    picture.addEventListener("click", () => this.savePicture());
  }

  /** Tells the story of the chosen model, unless it is told already. */
  async open() {
    const { context, parts } = this;
    const { facts, model } = context;
    if (!facts || this.model === model) return;
    this.model = model;
    this.running?.abort();
    const texts = await context.source.texts({ model }).catch(() => []);
    if (this.model !== model) return; // the reader has chosen another one
    const { command } = facts.about;
    parts.about.replaceChildren(...describeModel(facts));
    parts.label.textContent = LABELS[facts.marks.kind];
    offerExamples(parts.examples, facts.examples ?? [], (example) => {
      parts.beginning.value = example;
      this.writeOwn();
    });
    parts.commanded.hidden = !command;
    parts.command.textContent = command ?? "";
    this.stages = stagesOf(texts);
    // a question ends a line of its own
    const prompt = this.stages[0]?.prompt.replace(/\n$/, "") ?? startValues(facts).prompt;
    parts.beginning.placeholder = prompt.split("\n")[0];
    this.stages.push({ label: "trained", prompt, text: "", isComplete: false });
    this.showStages();
    this.write(prompt, this.firstSeed);
    this.isPlaying = !prefersStill();
    this.show(this.isPlaying ? 0 : this.stages.length - 1);
  }

  /** Lists the stages as buttons, unless there is but one. */
  showStages() {
    const buttons = this.stages.map(({ label }, index) => {
      const choose = () => {
        this.isPlaying = false;
        this.show(index);
      };
      const isShare = label.endsWith("%");
      const button = createButton("", label, choose, isShare ? `${label} trained` : "");
      if (isShare) button.append(create("span", "unit", " trained"));
      return button;
    });
    this.parts.stages.hidden = buttons.length < 2;
    this.parts.stages.replaceChildren(...buttons);
  }

  /** Shows a stage, letter by letter where motion is wanted. */
  show(index) {
    this.stage = index;
    this.ticks = 0;
    // beside the noise of an early stage it would be a joke
    const isLast = index === this.stages.length - 1;
    this.parts.about.classList.toggle("is-early", !isLast);
    [...this.parts.stages.children].forEach((button, each) =>
      button.setAttribute("aria-pressed", String(each === index))
    );
    clearInterval(this.timer);
    this.timer = setInterval(() => this.tick(), TICK_MILLISECONDS);
    this.tick();
  }

  /** Draws what is to be seen now, and goes on to the next stage after the end of this one. */
  tick() {
    const { text, isComplete } = this.stages[this.stage];
    this.ticks++;
    const share = prefersStill() ? 1 : Math.min(1, this.ticks / TYPING_TICKS);
    this.draw(share);
    if (share < 1 || !isComplete) return;
    const isLast = this.stage === this.stages.length - 1;
    const isHeld = text !== "" && this.ticks < TYPING_TICKS + HOLDING_TICKS;
    if (isHeld && this.isPlaying && !isLast) return;
    clearInterval(this.timer);
    if (this.isPlaying && !isLast) this.show(this.stage + 1);
  }

  /** Draws the first part of a stage's text after its prompt. */
  draw(share) {
    const { prompt, text, isComplete } = this.stages[this.stage];
    const isCut =
      isComplete && share === 1 && /\w$/.test(text) && this.context.facts.marks.kind === "text";
    const letters = [...text];
    const shown = letters.slice(0, Math.ceil(share * letters.length)).join("");
    const given = create("span", "given", prompt);
    const dots = create("span", isCut ? "cut" : "");
    this.parts.text.replaceChildren(given, shown, dots, create("span", "cursor"));
  }

  /** Writes after the beginning that the reader has typed; another text each time. */
  writeOwn() {
    const { beginning: field, status } = this.parts;
    const beginning = field.value;
    if (!this.stages.length) return; // the model is not loaded yet
    if (this.context.facts.marks.kind === "answers" && !beginning.trim()) {
      say(status, "Ask the model something.");
      return;
    }
    const isRepeated = this.request?.prompt === beginning && !this.running;
    const seed = isRepeated ? (this.request.seed + 1) % SEEDS : this.firstSeed;
    this.isPlaying = false;
    this.write(beginning, seed, true);
    this.show(this.stages.length - 1);
  }

  /** Lets the model write the last stage; `isAsked`: whether the reader has asked for it. */
  async write(prompt, seed, isAsked = false) {
    const { context, parts } = this;
    const { facts, model } = context;
    this.running?.abort();
    const control = new AbortController();
    this.running = control;
    const shown = facts.marks.kind === "answers" ? `${prompt}\n` : prompt;
    const stage = { label: "trained", prompt: shown, text: "", isComplete: false };
    this.stages[this.stages.length - 1] = stage;
    this.tokens = [];
    this.request = { prompt, seed, count: countOf(facts), ...settingsOf(facts) };
    const { begin, kind } = facts.marks;
    parts.choices.href = linkTo(this.linked());
    if (isAsked) say(parts.status, "");
    const add = (tokens) => {
      if (control.signal.aborted) return;
      this.tokens.push(...tokens);
      // of a list, later items begin with the prompt, too
      const ownPrompt = this.tokens.findIndex(({ isGiven }) => !isGiven);
      const written = ownPrompt < 0 ? [] : this.tokens.slice(ownPrompt);
      const text = plainTextOf(written, begin);
      stage.text = kind === "text" ? text : text.trimEnd(); // the last mark is a line end there
    };
    const request = { ...this.request, model, signal: control.signal };
    try {
      const unknown = await writeAll(context, request, add);
      if (unknown?.length) {
        const named = listCharacters(unknown);
        say(
          parts.status,
          `The model does not know ${named}; it has read a plain form, or nothing.`
        );
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      say(parts.status, error.message, true);
    }
    stage.isComplete = true;
    if (this.running === control) this.running = null;
    if (isAsked) this.written?.(textOf(this.tokens, begin));
  }

  /** What a link to the last stage has. Of a list the Write view counts items, not tokens. */
  linked() {
    const { facts, model } = this.context;
    const { count, ...values } = this.request;
    return facts.marks.kind === "items" ? { ...values, model } : { ...values, count, model };
  }

  async copyLink() {
    const address = `${location.href.split("#")[0]}${linkTo(this.linked())}`;
    const isCopied = await copy(address);
    const { status } = this.parts;
    if (isCopied) say(status, "The link is copied: whoever opens it here gets the same text.");
    else say(status, address); // to be selected, where the browser allows no copying
  }

  savePicture() {
    const { facts, model } = this.context;
    const name = model || this.context.source.learning?.run.name || "gpt";
    saveCard(this.tokens, facts, name);
    say(this.parts.status, `Saved as ${name}.png.`);
  }
}

/**
 * Lets the source write a text: of a list as many items as fill it, each with the next seed. Calls
 * `add(tokens)`, and returns the characters of the prompt that the model does not know.
 */
async function writeAll({ source, facts }, request, add) {
  const { kind, answer, begin } = facts.marks;
  if (kind !== "items") return source.write({ ...request, prompt: request.prompt + answer }, add);
  let unknown = [];
  let room = request.count;
  let last = null; // the token that ended the item before
  for (let item = 0; item < MOST_ITEMS && room > 0; item++) {
    const seed = (request.seed + item) % SEEDS;
    const take = (tokens) => {
      room -= tokens.length;
      last = tokens.at(-1) ?? last;
      add(tokens);
    };
    const known = last?.id === begin ? 1 : 0; // the mark that ends an item begins the next one
    unknown = await source.write({ ...request, seed, known, count: Math.max(1, room) }, take);
    await new Promise((done) => setTimeout(done)); // so that the page draws
  }
  return unknown;
}

/**
 * The stages before the last one: the first text of a training, and the last ones before its end,
 * each with a label. Texts of older runs, which have no prompt, are left out.
 */
function stagesOf(texts) {
  const continued = texts.filter(({ prompt }) => prompt !== null);
  const last = continued.at(-1)?.step;
  const earlier = continued.slice(0, -1);
  const chosen = [...earlier.slice(0, 1), ...earlier.slice(1).slice(1 - NUM_EARLIER)];
  return chosen.map(({ step, prompt, sample }) => ({
    label: step === 0 ? "untrained" : `${Math.max(1, Math.round((100 * step) / last))}%`,
    prompt,
    text: sample,
    isComplete: true,
  }));
}

/** How many tokens a text has: some lines. */
function countOf({ token }) {
  return token === "character" || token === "byte" ? CHARACTERS : TOKENS;
}

/** What the model's configuration samples with, as a request has it. */
function settingsOf({ sample }) {
  return Object.fromEntries(
    Object.entries(sample).map(([name, value]) => [camelCase(name), value])
  );
}

/** Shows the story in `root`, and below it how the model learned; returns what refreshes both. */
export function showStart(root, context, options) {
  const story = new Story(root, context, options);
  const { learning, below } = story.parts;
  below.hidden = !context.source.hasLearning;
  const poll = below.hidden ? () => {} : showLearning(learning, context);
  story.open();
  return () => {
    story.open();
    poll();
  };
}
