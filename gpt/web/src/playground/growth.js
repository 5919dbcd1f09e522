import { fill, say, setOptions } from "../dom.js";
import template from "./growth.html";
import { EmbeddingMap, Heads } from "./snapshot.js";
import { withCommas } from "./words.js";

const FRAME_MILLISECONDS = 700;
const UNITS = { char: "character", byte: "byte" }; // of a tokenizer; of others tokens

/** What the models of runs wrote and were at each step, along a slider that follows a training until a reader moves it. */
export class Growth {
  /** `mark(step)` is called with the step that is shown, and with null where the last one is followed. */
  constructor(root, source, mark) {
    this.root = root;
    this.parts = fill(root, template);
    this.source = source;
    this.mark = mark;
    this.runs = [];
    this.answers = new Map(); // of the run and the last snapshot in `basis`
    this.basis = null;
    this.ends = new Map(); // the last step of each run
    this.step = null; // that was chosen, here or by the address; null: the last one is followed
    this.timer = null;
    this.map = new EmbeddingMap(this.parts);
    this.heads = new Heads(this.parts);
    const { sampleRun, sampleStep, play } = this.parts;
    sampleRun.addEventListener("change", () => this.setRange());
    sampleStep.addEventListener("input", () => {
      this.stop();
      this.choose(Number(sampleStep.value));
    });
    play.addEventListener("click", () => (this.timer ? this.stop() : this.play()));
  }

  /** Chooses a step of the address; another value is ignored. */
  want(step) {
    if (/^\d+$/.test(step ?? "")) this.step = Number(step);
  }

  set(runs) {
    this.runs = runs.map((run) => ({ ...run, steps: stepsOf(run) })).filter(({ steps }) => steps.length);
    this.root.hidden = !this.runs.length;
    if (!this.runs.length) {
      this.stop();
      return;
    }
    // one was replaced, or goes on from an earlier step
    if (this.runs.some((run) => run.last_step < this.ends.get(run.name))) {
      this.basis = null;
      this.shown = null;
    }
    for (const run of this.runs) this.ends.set(run.name, run.last_step);
    const { sampleRun, of } = this.parts;
    of.hidden = this.runs.length < 2;
    setOptions(
      sampleRun,
      this.runs.map(({ name }) => name)
    );
    this.setRange();
  }

  get run() {
    return this.runs.find(({ name }) => name === this.parts.sampleRun.value);
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
    sampleAt.textContent = `step ${withCommas(step)}`;
    range.setAttribute("aria-valuetext", `step ${step}`);
    this.mark(this.isAtEnd ? null : step);
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
    const unit = UNITS[run.config?.["data.tokenizer"]] ?? "token";
    if (!mapped.hidden) this.map.show(snapshot, unit);
    mapped.dataset.step = taken;
    if (!attended.hidden) this.heads.show(snapshot, unit);
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
