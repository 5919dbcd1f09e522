import { fill, say, setOptions } from "../dom.js";
import template from "./learning.html";
import { drawHeads, EmbeddingMap } from "./snapshot.js";

const FRAME_MILLISECONDS = 700;
const POLL_MILLISECONDS = 2500;
const UNITS = { char: "character", byte: "byte" }; // of a tokenizer; of others tokens

export const LEARNING = {
  name: "learning",
  title: "Learning",
  sentence:
    "Play a run from its first step: noise becomes letters, then words, and similar characters gather. The " +
    "slider follows a training until you move it, and goes on with it from its last step.",
  more:
    "Early steps have short samples, several side by side, since whole ones would take too much of the training's time. " +
    "Embeddings are drawn in the plane in which those of the last snapshot vary most, with the same scale at all steps, " +
    "and neighbors are those with the largest cosine in all dimensions. Attention is that to one line of the validation " +
    "text.",
  show: (root, context) => {
    const learning = new Learning(root, context);
    return () => learning.poll();
  },
};

/** What the model of a run wrote and was at each step, along a slider. */
class Learning {
  constructor(root, context) {
    this.root = root;
    this.source = context.source;
    this.parts = fill(root, template);
    this.isAsking = false;
    this.run = null; // the chosen one, with `steps` that can be shown
    this.answers = new Map(); // of the run and the last snapshot in `basis`
    this.basis = null;
    this.step = null; // that was chosen; null: the last one is followed
    this.timer = null;
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

  /** Asks for the runs and for the chosen one, one question after another, while it is in sight. */
  async poll() {
    if (this.isAsking || !this.root.isConnected || document.hidden) return;
    this.isAsking = true;
    const { runs, status } = this.parts;
    let isOther = false; // one that was chosen meanwhile
    try {
      this.setNames(await this.source.runs());
      const name = runs.value;
      if (name) this.set(await this.source.run({ name }));
      say(status, name ? "" : "There is no run yet.");
      isOther = runs.value !== name;
    } catch (error) {
      say(status, `${error.message}; trying again.`, true);
    }
    this.isAsking = false;
    if (isOther) this.poll();
  }

  /** Offers the runs, at first the one that trains; the list stays as it is, under the reader's hand, where they are the same. */
  setNames({ runs: names, training }) {
    const { runs } = this.parts;
    const known = [...runs.options].map(({ value }) => value);
    if (names.join("/") !== known.join("/")) setOptions(runs, names, runs.value || training);
  }

  set(run) {
    const { bar, growth, state } = this.parts;
    const isReplaced = run.name === this.run?.name && run.step < this.run.step; // or goes on from an earlier step
    if (isReplaced) this.basis = this.shown = null;
    this.run = { ...run, steps: stepsOf(run) };
    state.textContent = describe(this.run);
    const isEmpty = !this.run.steps.length;
    bar.hidden = growth.hidden = isEmpty;
    if (isEmpty) this.stop();
    else this.setRange();
  }

  get isAtEnd() {
    const { sampleStep: range } = this.parts;
    return range.value === range.max;
  }

  setRange() {
    const { sampleStep: range } = this.parts;
    const { steps } = this.run;
    range.max = String(steps.length - 1);
    range.disabled = steps.length < 2;
    const isFollowed = this.step === null;
    this.move(
      isFollowed
        ? steps.length - 1
        : Math.max(
            0,
            steps.findLastIndex((step) => step <= this.step)
          )
    );
  }

  /** Goes where a reader wants to be, from then on. */
  choose(place) {
    const { steps } = this.run;
    this.step = place === steps.length - 1 ? null : steps[place];
    this.move(place);
  }

  move(place) {
    const { sampleStep: range, sampleAt } = this.parts;
    const step = this.run.steps[place];
    range.value = String(place);
    sampleAt.textContent = `step ${step.toLocaleString("en")}`;
    range.setAttribute("aria-valuetext", `step ${step}`);
    this.show(this.run, step);
  }

  play() {
    const { play, sampleStep: range } = this.parts;
    play.textContent = "Pause";
    if (this.isAtEnd) this.choose(0);
    this.timer = setInterval(() => {
      if (!this.root.isConnected || this.isAtEnd) this.stop();
      else this.choose(Number(range.value) + 1);
    }, FRAME_MILLISECONDS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.parts.play.textContent = "Play";
  }

  async show(run, step) {
    const { sampleText, failed, mapped, attended } = this.parts;
    const taken = run.snapshots.findLast((place) => place <= step) ?? run.snapshots[0];
    const last = run.snapshots.at(-1);
    const isSampled = run.samples.includes(step); // which it is only after its snapshot
    const key = JSON.stringify([run.name, step, last, isSampled]);
    if (this.shown === key) return;
    this.shown = key;
    const basis = JSON.stringify([run.name, last]);
    if (this.basis !== basis) this.answers.clear();
    this.basis = basis;
    const [snapshot, written] = await Promise.all([
      taken === undefined ? null : this.ask("snapshot", { name: run.name, step: taken, basis: last }),
      isSampled ? this.ask("sample", { name: run.name, step }) : null,
    ]);
    if (this.shown !== key) return;
    const problem = snapshot?.problem ?? written?.problem ?? "";
    if (problem) this.shown = null; // to be asked for again
    say(failed, problem, true);
    sampleText.textContent = written ? (written.text ?? "") + (written.truncated ? "…" : "") : (snapshot?.sample ?? "");
    mapped.hidden = !snapshot?.tokens?.length;
    attended.hidden = !snapshot?.attention;
    const unit = UNITS[run.tokenizer] ?? "token";
    if (!mapped.hidden) this.map.show(snapshot, unit);
    mapped.dataset.step = taken;
    if (!attended.hidden) drawHeads(this.parts, snapshot);
  }

  /** Asks once, and again after an error, which is returned as `problem`. */
  ask(what, request) {
    const key = what + JSON.stringify(request);
    if (!this.answers.has(key)) {
      const failed = (error) => {
        this.answers.delete(key);
        return { problem: error.message };
      };
      this.answers.set(key, this.source[what](request).catch(failed));
    }
    return this.answers.get(key);
  }
}

function stepsOf({ samples, snapshots }) {
  return [...new Set([...samples, ...snapshots])].sort((a, b) => a - b);
}

/** How far a run is. */
function describe({ training, step, max_steps: whole, best_step: best, best_val_loss: loss, steps }) {
  const [done, all] = [step, whole].map((count) => count.toLocaleString("en"));
  const state = `${training ? "training: " : ""}step ${done} of ${all}`;
  const lowest = loss === null ? "" : ` · best validation loss ${loss.toFixed(4)} nats per token at step ${best}`;
  return `${state}${lowest}${steps.length ? "" : " · no sample yet"}`;
}
