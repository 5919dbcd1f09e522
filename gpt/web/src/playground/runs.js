import { create, fill, partsOf, say, setOptions } from "../dom.js";
import { dress, HUES } from "./chart.js";
import { FollowedCurves, pollWhileVisible, showCurves } from "./curves.js";
import template from "./runs.html";
import { describeRough, joined, withCommas } from "./words.js";

export const RUNS = {
  name: "runs",
  title: "Runs",
  sentence:
    "Look for where the validation loss stops falling while the training loss goes on: from there a model learns its " +
    "text by heart. In the samples, letters come first, then words, then lines that make sense.",
  show: (root, context) => new Runs(root, context).poll,
};

/** The runs, their curves and samples. */
class Runs {
  constructor(root, context) {
    this.parts = fill(root, template);
    this.context = context;
    this.source = context.source;
    this.curves = new FollowedCurves(this.source);
    this.draw = showCurves(this.parts);
    this.samples = new Samples(this.parts.samples, this.source);
    this.rows = new Map();
    this.hues = new Map(); // of the chosen runs
    this.models = new Set(); // names that the server can load
    this.isFirst = true;
    this.parts.across.addEventListener("change", () => this.follow());
    this.parts.log.addEventListener("change", () => this.follow());
    this.poll = pollWhileVisible(root, () => this.ask());
  }

  async ask() {
    try {
      const { runs } = await this.source.runs();
      if (runs.some(({ name, has_checkpoint: isSaved }) => isSaved && !this.models.has(name))) {
        this.models = new Set(await this.source.models());
      }
      this.setRuns(runs);
      await this.follow();
      say(this.parts.status, "");
    } catch (error) {
      say(this.parts.status, `${error.message}; trying again.`, true);
    }
  }

  setRuns(runs) {
    const { none, list } = this.parts;
    none.hidden = runs.length > 0;
    for (const { name } of runs) if (!this.rows.has(name)) this.rows.set(name, this.createRow(name));
    const names = new Set(runs.map(({ name }) => name));
    for (const name of [...this.rows.keys()].filter((name) => !names.has(name))) {
      this.rows.get(name).element.remove();
      this.rows.delete(name);
      this.hues.delete(name);
    }
    const order = runs.map(({ name }) => this.rows.get(name).element);
    if (order.some((element, index) => list.children[index] !== element)) list.append(...order);
    for (const run of runs) this.describe(run);
    const first = runs.find(({ training }) => training) ?? runs.find(({ problem }) => !problem);
    if (this.isFirst && first) this.choose(first.name, true);
    this.isFirst = this.isFirst && !runs.length;
  }

  createRow(name) {
    const box = Object.assign(create("input"), { type: "checkbox" });
    const swatch = create("span", "swatch");
    const facts = create("span", "run-facts");
    const actions = create("span", "run-actions");
    const label = create("label", "run-label", box, swatch, create("span", "run-name", name), facts);
    box.addEventListener("change", () => this.choose(name, box.checked));
    return { element: create("div", "run", label, actions), box, swatch, facts, actions, run: null };
  }

  describe(run) {
    const row = this.rows.get(run.name);
    row.run = run;
    row.facts.textContent = describeRun(run);
    row.facts.classList.toggle("live", run.training);
    if (this.models.has(run.name) && !row.actions.childElementCount) {
      row.actions.append(...createModelLinks(run.name, this.context));
    }
  }

  async choose(name, isChosen) {
    const row = this.rows.get(name);
    row.box.checked = isChosen;
    if (isChosen) {
      const taken = new Set(this.hues.values());
      const free = [...Array(HUES).keys()].find((hue) => !taken.has(hue));
      this.hues.set(name, free ?? this.hues.size % HUES);
      dress(row.swatch, this.hues.get(name));
    } else {
      this.hues.delete(name);
      row.swatch.className = "swatch";
      row.swatch.style.removeProperty("--hue");
    }
    await this.follow();
  }

  /** Asks for what is new of the chosen runs, and draws it. */
  async follow() {
    const { known } = this.curves;
    const isDone = (name) => {
      const run = this.rows.get(name)?.run;
      return known.has(name) && !run?.training && known.get(name).step === run?.step;
    };
    const behind = [...this.hues.keys()].filter((name) => !isDone(name));
    await Promise.all(behind.map((name) => this.curves.update(name)));
    const chosen = [...this.hues].map(([name, hue]) => ({ run: known.get(name), hue })).filter(({ run }) => run);
    const { across, log, thinned } = this.parts;
    this.draw(chosen, { across: across.value, isLog: log.checked });
    const sparse = chosen.filter(({ run }) => run.every > 1).map(({ run }) => `${run.name}: one of ${run.every}`);
    thinned.textContent = sparse.length ? `Points of the training loss that are plotted: ${sparse.join(", ")}.` : "";
    this.samples.set(chosen.map(({ run }) => run));
  }
}

function describeRun(run) {
  if (run.problem) return run.problem;
  const { config } = run;
  const whole = run.max_steps === null ? "" : ` of ${withCommas(run.max_steps)}`;
  const left = run.seconds_left === null ? "" : `, about ${describeRough(run.seconds_left)} left`;
  const best = run.best_val_loss === null ? "" : `best ${run.best_val_loss.toFixed(4)} nats at step ${run.best_step}`;
  const size = run.parameters === null ? "" : `${withCommas(run.parameters)} parameters`;
  const shape = `${config["model.n_layer"]} layers of ${config["model.n_embd"]}, ${config["model.block_size"]} positions`;
  const state = `${run.training ? "training: " : ""}step ${withCommas(run.step)}${whole}${left}`;
  return joined(state, best, size, shape, config["optim.name"]);
}

/** Links that open a run's checkpoint in other views. */
export function createModelLinks(name, context) {
  return Object.entries({ write: "Write", attention: "Attention" }).map(([view, title]) => {
    const link = Object.assign(create("a", "", title), { href: `#${view}`, title: `${title} with ${name}` });
    link.addEventListener("click", () => context.chooseModel(name));
    return link;
  });
}

/** The samples of one of several runs by step. */
class Samples {
  constructor(root, source) {
    this.root = root;
    this.parts = partsOf(root);
    this.source = source;
    this.runs = [];
    this.shown = "";
    this.isLast = true; // the last sample is followed until another is chosen
    const { sampleRun, sampleStep } = this.parts;
    sampleRun.addEventListener("change", () => {
      this.isLast = true;
      this.setRange();
    });
    sampleStep.addEventListener("input", () => {
      this.isLast = sampleStep.value === sampleStep.max;
      this.setRange();
    });
  }

  set(runs) {
    this.runs = runs.filter(({ samples }) => samples.length);
    this.root.hidden = !this.runs.length;
    if (!this.runs.length) return;
    setOptions(
      this.parts.sampleRun,
      this.runs.map(({ name }) => name)
    );
    this.setRange();
  }

  setRange() {
    const { sampleRun, sampleStep: range } = this.parts;
    const { samples } = this.runs.find(({ name }) => name === sampleRun.value);
    const place = this.isLast ? samples.length - 1 : Math.min(Number(range.value), samples.length - 1);
    range.max = samples.length - 1;
    range.value = place;
    range.disabled = samples.length < 2;
    this.show(sampleRun.value, samples[place]);
  }

  async show(name, step) {
    const { sampleAt, sampleStep, sampleText } = this.parts;
    sampleAt.textContent = `step ${withCommas(step)}`;
    sampleStep.setAttribute("aria-valuetext", `step ${step}`);
    const key = `${name} ${step}`;
    if (this.shown === key) return;
    this.shown = key;
    const sample = await this.source.sample({ name, step }).catch((error) => ({ text: error.message }));
    if (this.shown === key) sampleText.textContent = sample.text + (sample.truncated ? "…" : "");
  }
}
