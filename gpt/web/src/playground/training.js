import { fill, say } from "../dom.js";
import { FollowedCurves, pollWhileVisible, RunCurves } from "./curves.js";
import { Growth } from "./growth.js";
import { createModelLinks } from "./runs.js";
import template from "./training.html";
import { TrainingForm } from "./training_form.js";
import { describeRough, joined, withCommas } from "./words.js";

const ENDINGS = { 0: "Done", 130: "Stopped and saved", 143: "Stopped and saved", [-15]: "Stopped before it began" }; // by exit code
const STATES = { starting: "Starting", training: "Training", stopping: "Saving a checkpoint, then it stops" };

export const TRAINING = {
  name: "training",
  title: "Train",
  sentence:
    "Choose a text and a recipe, and watch a model learn it. The loss falls steeply while it learns how often each " +
    "letter comes, and slowly while it learns words.",
  more:
    "The slider follows the training until you move it, and goes on with it from its last step. Early steps have short " +
    "samples, several side by side, since whole ones would take too much of the training's time.",
  show: (root, context) => new Training(root, context).reopen,
};

/** A form that starts a training, and the one that runs. */
class Training {
  constructor(root, context) {
    this.parts = fill(root, template);
    this.context = context;
    this.source = context.source;
    this.curves = new FollowedCurves(this.source);
    this.plots = new RunCurves(this.parts);
    this.growth = new Growth(this.parts.samples, this.source, (step) => this.plots.mark(step));
    this.growth.want(context.params.get("step"));
    this.form = null; // built once training is allowed
    this.token = "";
    this.isActing = false;
    this.isRefused = false;
    const { stop, resume, name } = this.parts;
    stop.addEventListener("click", () => this.act("stop", { name: name.textContent }));
    resume.addEventListener("click", () => this.act("resume", { name: name.textContent }));
    this.poll = pollWhileVisible(root, () => this.ask());
    this.reopen = () => {
      this.growth.want(context.params.get("step"));
      this.poll();
    };
  }

  async ask() {
    if (this.isRefused) return;
    const { curves, status, allowed } = this.parts;
    try {
      const answer = await this.source.training();
      this.show(answer);
      const run = answer.training?.run;
      curves.hidden = !run?.max_steps;
      if (run?.max_steps) await this.followRun(run.name);
      this.form.setUnfinished((await this.source.runs()).runs.filter(isUnfinished).map(({ name }) => name));
    } catch (error) {
      this.isRefused = error.status === 403;
      const said = `${error.message[0].toUpperCase()}${error.message.slice(1)}.`;
      status.textContent = this.isRefused ? said : `${error.message}; trying again.`;
      allowed.hidden = this.isRefused || !this.form;
    }
  }

  /** Starts, stops or goes on, once at a time; returns whether that was done. */
  async act(action, body) {
    if (this.isActing) return false;
    let isDone = true;
    const { fault, current } = this.parts;
    this.isActing = true;
    fault.textContent = "";
    try {
      this.show(await this.source.changeTraining(action, this.token, body));
      if (action !== "stop") current.scrollIntoView({ block: "nearest" });
    } catch (error) {
      fault.textContent = error.message;
      isDone = false;
    }
    this.isActing = false;
    this.poll();
    return isDone;
  }

  show({ token, training }) {
    const { allowed, status, current } = this.parts;
    this.token = token;
    this.form ??= new TrainingForm(this.parts, this.source, (action, body) => this.act(action, body));
    allowed.hidden = false;
    status.textContent = "";
    current.hidden = !training;
    this.form.setBusy(training && training.state !== "ended" ? training.run.name : null);
    if (!training) return;
    this.showState(training);
    this.showConsole(training);
  }

  showState({ run, state, exit_code: code, lines, can_stop: canStop }) {
    const { name, reason, progress, stop, resume, links } = this.parts;
    const isWrong = state === "ended" && !(code in ENDINGS);
    name.textContent = run.name;
    say(this.parts.state, describeTraining(run, state, code), isWrong);
    reason.textContent = isWrong ? (lines.at(-1) ?? "") : "";
    progress.max = run.max_steps ?? 1;
    progress.value = run.step;
    progress.hidden = run.max_steps === null;
    stop.hidden = state === "ended" || !canStop;
    stop.disabled = state === "stopping";
    resume.hidden = state !== "ended" || !isUnfinished(run);
    stop.parentElement.hidden = stop.hidden && resume.hidden;
    const targets = state === "ended" && run.has_checkpoint ? createModelLinks(run.name, this.context) : [];
    if (links.childElementCount !== targets.length) links.replaceChildren(...targets);
  }

  showConsole({ lines, command: words }) {
    const { console: printed, command } = this.parts;
    const isAtEnd = printed.scrollTop + printed.clientHeight >= printed.scrollHeight - 4;
    printed.textContent = lines.join("\n");
    if (isAtEnd) printed.scrollTop = printed.scrollHeight;
    command.textContent = words;
    command.parentElement.hidden = words === "";
  }

  async followRun(name) {
    const run = await this.curves.update(name);
    this.plots.show([{ run, hue: 0 }]);
    this.growth.set([run]);
  }
}

function isUnfinished(run) {
  return run.max_steps !== null && run.step < run.max_steps && !run.training && !run.problem;
}

function describeTraining(run, state, code) {
  const steps = run.max_steps === null ? "" : `step ${withCommas(run.step)} of ${withCommas(run.max_steps)}`;
  const best = run.best_val_loss === null ? "" : `best validation loss ${run.best_val_loss.toFixed(4)} nats per token`;
  const left = run.seconds_left === null ? "" : `about ${describeRough(run.seconds_left)} left`;
  const words = state === "ended" ? (ENDINGS[code] ?? "Ended with an error") : STATES[state];
  return `${joined(words, steps, left, best)}.`;
}
