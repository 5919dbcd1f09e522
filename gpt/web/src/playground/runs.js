import { create, fill, say } from "../dom.js";
import { dress, HUES } from "./chart.js";
import { FollowedCurves, pollWhileVisible, RunCurves } from "./curves.js";
import { Growth } from "./growth.js";
import template from "./runs.html";
import { describeRough, joined, withCommas } from "./words.js";

export const RUNS = {
  name: "runs",
  title: "Runs",
  sentence:
    "Play a run from its first step: noise becomes letters, then words, and alike characters find each other. Where " +
    "the validation loss stops falling while the training loss goes on, a model begins to learn its text by heart.",
  more:
    "The loss is in nats per token: 1 nat is 1.44 bits. The faint line is the loss of each batch, the line through it " +
    "their mean; the dots are evaluations on text that is not trained on. Embeddings are drawn in the plane in which " +
    "those of the last snapshot vary most, with the same scale at all steps, and neighbors are those with the largest " +
    "cosine in all dimensions. Attention is that to one line of the validation text.",
  show: (root, context) => new Runs(root, context).reopen,
};

/** The runs, their curves and samples. */
class Runs {
  constructor(root, context) {
    this.parts = fill(root, template);
    this.context = context;
    this.source = context.source;
    this.curves = new FollowedCurves(this.source);
    this.plots = new RunCurves(this.parts);
    this.growth = new Growth(this.parts.samples, this.source, (step) => this.plots.mark(step));
    this.growth.want(context.params.get("step"));
    this.rows = new Map();
    this.hues = new Map(); // of the chosen runs
    this.models = new Set(); // names that the server can load
    this.isFirst = true;
    const poll = pollWhileVisible(root, () => this.ask());
    this.reopen = () => {
      this.growth.want(context.params.get("step"));
      poll();
    };
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
    const { none, some, list } = this.parts;
    none.hidden = runs.length > 0;
    some.hidden = !runs.length;
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
      return known.get(name)?.training === false && !run?.training && known.get(name).step === run?.step;
    };
    const behind = [...this.hues.keys()].filter((name) => !isDone(name));
    await Promise.all(behind.map((name) => this.curves.update(name)));
    const chosen = [...this.hues].map(([name, hue]) => ({ run: known.get(name), hue })).filter(({ run }) => run);
    const { thinned } = this.parts;
    this.plots.show(chosen);
    const sparse = chosen.filter(({ run }) => run.every > 1).map(({ run }) => `${run.name}: one of ${run.every}`);
    thinned.textContent = sparse.length ? `Points of the training loss that are plotted: ${sparse.join(", ")}.` : "";
    this.growth.set(chosen.map(({ run }) => run));
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
function createModelLinks(name, context) {
  return Object.entries({ write: "Write", attention: "Attention" }).map(([view, title]) => {
    const link = Object.assign(create("a", "", title), { href: `#${view}`, title: `${title} with ${name}` });
    link.addEventListener("click", () => context.chooseModel(name));
    return link;
  });
}
