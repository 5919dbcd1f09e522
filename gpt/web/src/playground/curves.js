import { fill } from "../dom.js";
import { Chart } from "./chart.js";
import template from "./curves.html";
import { compact, describeSeconds, withCommas } from "./words.js";

const MAX_KEPT = 2000; // points of a curve that was followed; then it is asked for anew, thinned
const POLL_MILLISECONDS = 2500;

const NATS = { title: "Loss", unit: "nats per token", format: (value) => value.toFixed(4), height: 220 };
const RATE = { title: "Learning rate", unit: "no unit", format: writeRate, height: 200, base: 0 };
const SPEED = { title: "Throughput", unit: "training tokens per second", format: compact, height: 200, base: 0 };
const AXES = {
  step: { of: "step", name: "optimizer steps", format: (value) => `step ${withCommas(value)}`, tick: compact },
  seconds: {
    of: "seconds",
    name: "time of training, evaluations included",
    format: describeSeconds,
    tick: describeSeconds,
  },
};
AXES.log = { ...AXES.step, name: "optimizer steps, logarithmic", isLog: true };

/** Curves of runs, fetched once and then followed: `update(name)` asks for what is new. */
export class FollowedCurves {
  constructor(source) {
    this.source = source;
    this.known = new Map();
    this.pending = new Map();
  }

  update(name) {
    if (!this.pending.has(name)) {
      this.pending.set(
        name,
        this.ask(name).finally(() => this.pending.delete(name))
      );
    }
    return this.pending.get(name);
  }

  async ask(name) {
    const known = this.known.get(name);
    const after = (known?.last_step ?? 0) - 1; // of the last known step itself there may be an evaluation to come
    const run = await this.source.run({ name, after: Math.max(-1, after) });
    this.known.set(name, grown(known, run) ?? (await this.source.run({ name })));
    return this.known.get(name);
  }
}

/** A run with what is new of it; null where that is too long, or the run went on from an earlier step. */
function grown(known, run) {
  if (!known || known.last_step === null) return run;
  if (run.last_step === null || run.last_step < known.last_step) return null;
  const more = { ...run, every: known.every };
  for (const curve of ["training_curve", "validation_curve"]) {
    const kept = known[curve].step.filter((step) => step < known.last_step).length;
    const columns = Object.entries(known[curve]);
    more[curve] = Object.fromEntries(
      columns.map(([name, values]) => [name, [...values.slice(0, kept), ...run[curve][name]]])
    );
  }
  return more.training_curve.step.length > MAX_KEPT ? null : more;
}

/** The plots of runs in three elements of a view, `curves`, `rate` and `speed`; a reader chooses the axes. */
export class RunCurves {
  constructor({ curves, rate, speed }) {
    this.parts = fill(curves, template);
    const { loss, across, log } = this.parts;
    this.losses = new Chart(loss, NATS);
    this.rates = new Chart(rate, RATE);
    this.speeds = new Chart(speed, SPEED);
    this.chosen = [];
    this.step = null; // that is marked
    for (const setting of [across, log]) setting.addEventListener("change", () => this.show(this.chosen));
  }

  /** Plots `chosen`: { run, hue } each; a hue beyond the last is an earlier one, dashed. */
  show(chosen) {
    this.chosen = chosen;
    this.mark(this.step);
    const { across, log } = this.parts;
    const axis = AXES[across.value];
    const isAlone = chosen.length === 1;
    const seriesOf = (kind, curve, column, more = {}) =>
      chosen.map(({ run, hue }) => ({
        group: run.name,
        hue,
        kind,
        label: "",
        points: pairs(run[curve], axis.of, column),
        ...more,
      }));
    const training = seriesOf("training", "training_curve", "loss", { label: "training" });
    const kind = isAlone ? "smooth" : "smooth several";
    const smooth = training.map((entry) => ({ ...entry, kind, label: null, points: smoothed(entry.points) }));
    const validation = seriesOf("validation", "validation_curve", "loss", { label: "validation" });
    if (isAlone) {
      smooth[0].name = "training";
      Object.assign(validation[0], { name: "validation", hue: chosen[0].hue + 1 });
    } else for (const entry of validation) entry.name = shortened(entry.group);
    this.losses.show([...training, ...smooth, ...validation], axis, log.checked);
    this.rates.show(seriesOf("steady", "training_curve", "learning_rate"), axis, false);
    this.speeds.show(seriesOf("steady", "training_curve", "tokens_per_second"), axis, false);
  }

  /** Marks a step among the losses, where steps are plotted; null: none. */
  mark(step) {
    this.step = step;
    this.losses.mark(AXES[this.parts.across.value].of === "step" ? step : null);
  }
}

/** The means of neighboring points, about a thirtieth of them, without the noise of single batches. */
function smoothed(points) {
  const known = points.filter(([, y]) => y !== null);
  const reach = Math.ceil(known.length / 60);
  return known.map(([x], index) => {
    const left = Math.min(reach, index); // as many on both sides where the loss falls fast
    const near = known.slice(index - left, index + left + 1);
    return [x, near.reduce((sum, [, y]) => sum + y, 0) / near.length];
  });
}

function shortened(name) {
  return name.length > 14 ? `${name.slice(0, 13)}…` : name;
}

function pairs(columns, across, column) {
  return columns[across].map((x, index) => [x, columns[column][index]]).filter(([x]) => x !== null);
}

/** A learning rate with two digits. */
function writeRate(value) {
  return value === 0 ? "0" : value.toExponential(1);
}

/** Calls `ask` now and every few seconds, one call after another, while `root` is on the page and the page in sight. */
export function pollWhileVisible(root, ask) {
  let isAsking = false;
  const poll = async () => {
    if (isAsking || !root.isConnected || document.hidden) return;
    isAsking = true;
    try {
      await ask();
    } finally {
      isAsking = false;
    }
  };
  setInterval(poll, POLL_MILLISECONDS);
  document.addEventListener("visibilitychange", poll);
  poll();
  return poll;
}
