import { fill, setOptions } from "../dom.js";
import template from "./growth.html";
import { EmbeddingMap, Heads } from "./snapshot.js";
import { withCommas } from "./words.js";

const FRAME_MILLISECONDS = 700;

/** What the models of runs wrote and were at each step, along a slider that follows a training until a reader moves it. */
export class Growth {
  /** `mark(step)` is called with a chosen step, and with null where the last one is followed. */
  constructor(root, source, mark) {
    this.root = root;
    this.parts = fill(root, template);
    this.source = source;
    this.mark = mark;
    this.runs = [];
    this.answers = new Map();
    this.isLast = true;
    this.wanted = null; // a step of the address
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
    if (/^\d+$/.test(step ?? "")) this.wanted = Number(step);
  }

  set(runs) {
    this.runs = runs.map((run) => ({ ...run, steps: stepsOf(run) })).filter(({ steps }) => steps.length);
    this.root.hidden = !this.runs.length;
    if (!this.runs.length) return;
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

  setRange() {
    const { sampleStep: range } = this.parts;
    const { steps } = this.run;
    range.max = String(steps.length - 1);
    range.disabled = steps.length < 2;
    const before = steps.findLastIndex((step) => step <= this.wanted);
    if (this.wanted !== null) this.choose(Math.max(0, before));
    else this.choose(this.isLast ? steps.length - 1 : Math.min(Number(range.value), steps.length - 1));
  }

  choose(place) {
    const { sampleStep: range, sampleAt } = this.parts;
    const { steps } = this.run;
    const step = steps[place];
    range.value = String(place);
    this.isLast = place === steps.length - 1;
    this.wanted = null;
    sampleAt.textContent = `step ${withCommas(step)}`;
    range.setAttribute("aria-valuetext", `step ${step}`);
    this.mark(this.isLast ? null : step);
    this.show(this.run, step);
  }

  play() {
    const { play, sampleStep: range } = this.parts;
    play.textContent = "Pause";
    if (this.isLast) this.choose(0);
    this.timer = setInterval(() => {
      if (!this.root.isConnected || this.isLast) this.stop();
      else this.choose(Number(range.value) + 1);
    }, FRAME_MILLISECONDS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.parts.play.textContent = "Play";
  }

  async show(run, step) {
    const { sampleText, mapped, attended } = this.parts;
    const taken = run.snapshots.findLast((place) => place <= step) ?? run.snapshots[0];
    const key = JSON.stringify([run.name, step, run.snapshots.at(-1)]);
    if (this.shown === key) return;
    this.shown = key;
    const asked = { name: run.name, step: taken, basis: run.snapshots.at(-1) };
    const [snapshot, written] = await Promise.all([
      taken === undefined ? null : this.ask("snapshot", asked),
      run.samples.includes(step) ? this.ask("sample", { name: run.name, step }) : null,
    ]);
    if (this.shown !== key) return;
    sampleText.textContent = written ? written.text + (written.truncated ? "…" : "") : (snapshot?.sample ?? "");
    mapped.hidden = !snapshot?.tokens?.length;
    attended.hidden = !snapshot?.attention;
    if (!mapped.hidden) this.map.show(snapshot);
    if (!attended.hidden) this.heads.show(snapshot);
  }

  /** Asks once; an error stands in place of a text. */
  ask(what, request) {
    const key = what + JSON.stringify(request);
    if (!this.answers.has(key)) {
      const failed = (error) => {
        this.answers.delete(key);
        return { text: error.message };
      };
      this.answers.set(key, this.source[what](request).catch(failed));
    }
    return this.answers.get(key);
  }
}

function stepsOf({ samples, snapshots }) {
  return [...new Set([...samples, ...snapshots])].sort((a, b) => a - b);
}
