import { fill, say, setOptions } from "../dom.js";
import template from "./learning.html";
import { drawHeads, EmbeddingMap } from "./snapshot.js";

const FRAME_MILLISECONDS = 450; // between two snapshots that are played
const POLL_MILLISECONDS = 2500; // between two questions how far a run has come
// the tokens of these tokenizers, by a more telling name
const UNITS = { char: "character", byte: "byte" };

/**
 * Shows in `root` how a run learned; `context` is that of `startShell`. Returns a function that asks
 * for what is new.
 */
export function showLearning(root, context) {
  const learning = new Learning(root, context);
  return () => learning.follow();
}

/**
 * What the model of a run wrote and was at each snapshot, along a slider. A finished run plays once
 * by itself.
 */
class Learning {
  constructor(root, context) {
    this.root = root;
    this.source = context.source;
    this.context = context;
    this.parts = fill(root, template);
    this.isAsking = false;
    this.model = context.model; // the one that was chosen when a run was last chosen for it
    this.run = null; // the chosen one
    this.basis = null; // the run and its last snapshot, in whose plane embeddings are drawn
    this.answers = new Map(); // snapshots in the plane of `basis`
    this.shown = null; // the step and the basis that are shown or asked for
    this.isAwaited = false; // whether what is asked for is not shown yet
    this.texts = []; // what the run wrote, by step
    this.step = null; // the chosen step; null while the last snapshot is followed
    this.timer = null; // while snapshots are played
    // with reduced motion, a run never plays by itself
    this.hasPlayed = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.map = new EmbeddingMap(this.parts);
    const { runs, sampleStep, play } = this.parts;
    runs.addEventListener("change", () => this.poll());
    sampleStep.addEventListener("input", () => {
      this.stop();
      this.choose(Number(sampleStep.value));
    });
    play.addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    setInterval(() => this.poll(), POLL_MILLISECONDS);
    document.addEventListener("visibilitychange", () => this.poll());
    this.poll();
  }

  /** Chooses the run of the chosen model, if that is another one now, and asks for what is new. */
  follow() {
    const { model } = this.context;
    const { runs } = this.parts;
    const isRun = [...runs.options].some(({ value }) => value === model);
    if (model !== this.model && isRun) runs.value = model;
    this.model = model;
    this.poll();
  }

  /**
   * Asks for the runs and then for the chosen run, unless the view is out of sight or an answer is
   * awaited.
   */
  async poll() {
    if (this.isAsking || !this.root.isConnected || document.hidden) return;
    this.isAsking = true;
    const { runs, status } = this.parts;
    let isOther = false; // whether another run was chosen in the meantime
    try {
      this.setNames(await this.source.runs());
      const name = runs.value;
      if (name) await this.load(name);
      say(status, name ? "" : "There is no run yet.");
      isOther = runs.value !== name;
    } catch (error) {
      say(status, `${error.message}; trying again.`, true);
    }
    this.isAsking = false;
    if (isOther) this.poll();
  }

  /**
   * Offers the runs, and chooses at first the one that is being trained, or that of the chosen
   * model. A list that is the same stays open.
   */
  setNames({ runs: names, training }) {
    const { runs } = this.parts;
    const known = [...runs.options].map(({ value }) => value);
    runs.parentElement.hidden = names.length < 2;
    if (names.join("/") !== known.join("/")) {
      setOptions(runs, names, runs.value || training || this.context.model);
    }
  }

  /** Asks for a run, and for its texts where it has new snapshots. */
  async load(name) {
    const run = await this.source.run({ name });
    const isSame = name === this.run?.name && run.snapshots.at(-1) === this.run.snapshots.at(-1);
    if (!isSame) this.texts = await this.source.texts({ model: name });
    this.set(run);
  }

  /** Shows how far a run has come. */
  set(run) {
    const { bar, growth, state } = this.parts;
    // The run was replaced, or goes on from an earlier step: what is known of its snapshots no
    // longer holds.
    const isReplaced = run.name === this.run?.name && run.step < this.run.step;
    if (isReplaced) {
      this.basis = null;
      this.shown = null;
    }
    this.run = run;
    state.textContent = describe(run);
    const isEmpty = !run.snapshots.length;
    bar.hidden = isEmpty;
    growth.hidden = isEmpty;
    if (isEmpty) {
      this.stop();
      return;
    }
    this.setRange();
    if (!run.training && !this.hasPlayed) this.play();
    this.hasPlayed = true;
  }

  get isAtEnd() {
    const { sampleStep: range } = this.parts;
    return range.value === range.max;
  }

  /**
   * Lets the slider have a place for each snapshot, and stay at the chosen step or follow the last
   * one.
   */
  setRange() {
    const { sampleStep: range } = this.parts;
    const { snapshots: steps } = this.run;
    const last = steps.length - 1;
    range.max = String(last);
    range.disabled = steps.length < 2;
    if (this.step === null) {
      this.move(last);
    } else {
      const place = steps.findLastIndex((step) => step <= this.step);
      this.move(Math.max(0, place));
    }
  }

  /** Chooses a place of the slider. At its end, new snapshots are followed. */
  choose(place) {
    const { snapshots: steps } = this.run;
    const isLast = place === steps.length - 1;
    this.step = isLast ? null : steps[place];
    this.move(place);
  }

  /** Moves the slider, and shows the snapshot there. */
  move(place) {
    const { sampleStep: range } = this.parts;
    const step = this.run.snapshots[place];
    range.value = String(place);
    range.setAttribute("aria-valuetext", `step ${step}`);
    this.show(this.run, step);
  }

  /** Shows the snapshots from the chosen one on; each waits until the one before it is seen. */
  play() {
    const { play, sampleStep: range } = this.parts;
    play.textContent = "Pause";
    if (this.isAtEnd) this.choose(0);
    this.timer = setInterval(() => {
      if (!this.root.isConnected || this.isAtEnd) this.stop();
      else if (!this.isAwaited) this.choose(Number(range.value) + 1);
    }, FRAME_MILLISECONDS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.parts.play.textContent = "Play";
  }

  /** Shows the snapshot of a step, unless another one is asked for before its answer comes. */
  async show(run, step) {
    const { sampleAt, failed, mapped, attended } = this.parts;
    const last = run.snapshots.at(-1);
    const basis = JSON.stringify([run.name, last]);
    const key = `${step} ${basis}`;
    if (this.shown === key) return;
    this.shown = key;
    if (this.basis !== basis) this.answers.clear();
    this.basis = basis;
    this.isAwaited = true;
    const snapshot = await this.ask({ name: run.name, step, basis: last });
    if (this.shown !== key) return;
    this.isAwaited = false;
    say(failed, snapshot.problem ?? "", true);
    if (snapshot.problem) {
      this.shown = null; // to be asked for again
      return;
    }
    const loss = snapshot.loss === null ? "" : ` · training loss ${snapshot.loss.toFixed(2)}`;
    sampleAt.textContent = `step ${step.toLocaleString("en")}${loss}`;
    this.showText(step);
    mapped.hidden = !snapshot.tokens.length;
    attended.hidden = !snapshot.attention;
    if (!mapped.hidden) this.map.show(snapshot, UNITS[run.tokenizer] ?? "token");
    if (!attended.hidden) drawHeads(this.parts, snapshot);
  }

  /** Shows the newest text of a step or of one before it, if there is any. */
  showText(step) {
    const { written, writtenAt, sampleText } = this.parts;
    const newest = this.texts.findLast((text) => text.step <= step);
    written.hidden = !newest;
    if (!newest) return;
    writtenAt.textContent = `What it wrote at step ${newest.step.toLocaleString("en")}`;
    sampleText.textContent = (newest.prompt ?? "") + newest.sample;
  }

  /** Asks once, and again after an error, which is returned as `problem`. */
  ask(request) {
    const key = JSON.stringify(request);
    if (!this.answers.has(key)) {
      const failed = (error) => {
        this.answers.delete(key);
        return { problem: error.message };
      };
      this.answers.set(key, this.source.snapshot(request).catch(failed));
    }
    return this.answers.get(key);
  }
}

/** How far a run has come, in words; a run that has ended has only its loss. */
function describe({
  training,
  step,
  max_steps: maxSteps,
  best_step: best,
  best_val_loss: loss,
  snapshots,
}) {
  const words = [];
  const progress = `step ${step.toLocaleString("en")} of ${maxSteps.toLocaleString("en")}`;
  if (training) words.push(`training: ${progress}`);
  if (loss !== null) {
    const place = best === null ? "" : ` at step ${best.toLocaleString("en")}`;
    words.push(`best validation loss ${loss.toFixed(2)} nats per token${place}`);
  }
  if (!snapshots.length) words.push("no snapshot yet");
  return words.join(" · ");
}
