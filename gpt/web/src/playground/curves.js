import { Chart } from "./chart.js";
import { compact, describeSeconds, withCommas } from "./words.js";

const MAX_KEPT = 2000; // points of a curve that was followed; then it is asked for anew, thinned
const POLL_MILLISECONDS = 2500;

const NATS = { title: "Loss", unit: "nats per token", format: (value) => value.toFixed(4) };
const RATE = { title: "Learning rate", unit: "no unit", format: writeRate, height: 200, base: 0 };
const SPEED = { title: "Throughput", unit: "training tokens per second", format: compact, height: 200, base: 0 };
const AXES = {
  step: { name: "optimizer steps", format: (value) => `step ${withCommas(value)}`, tick: compact },
  seconds: { name: "time of training, evaluations included", format: describeSeconds, tick: describeSeconds },
};

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
    const run = await this.source.run({ name, after: known?.last_step ?? -1 });
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
    const columns = Object.entries(known[curve]);
    more[curve] = Object.fromEntries(columns.map(([name, values]) => [name, [...values, ...run[curve][name]]]));
  }
  return more.training_curve.step.length > MAX_KEPT ? null : more;
}

/**
 * Fills three elements with the plots of runs. Returns `draw(chosen, { across, isLog })`; `chosen`: { run, hue } each; a
 * hue beyond the last is an earlier one, dashed.
 */
export function showCurves({ loss, rate, speed }) {
  const [losses, rates, speeds] = [new Chart(loss, NATS), new Chart(rate, RATE), new Chart(speed, SPEED)];
  return (chosen, { across = "step", isLog = false } = {}) => {
    const axis = AXES[across];
    const seriesOf = (kind, curve, column, label = "") =>
      chosen.map(({ run, hue }) => ({ group: run.name, hue, kind, label, points: pairs(run[curve], across, column) }));
    const training = seriesOf("training", "training_curve", "loss", "training");
    const validation = seriesOf("validation", "validation_curve", "loss", "validation");
    const both = training.flatMap((entry, index) => [entry, validation[index]]);
    losses.show(both, axis, isLog);
    rates.show(seriesOf("steady", "training_curve", "learning_rate"), axis, false);
    speeds.show(seriesOf("steady", "training_curve", "tokens_per_second"), axis, false);
  };
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
