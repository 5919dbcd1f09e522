const MAX_KEPT = 2000; // points of a curve that was followed; then it is asked for anew, thinned
const HUES = 8;
const DASHES = 3; // ways to draw a line of one hue
const POLL_MILLISECONDS = 2500;

const NATS = { title: "Loss", unit: "nats per token", format: (value) => value.toFixed(4) };
const RATE = { title: "Learning rate", unit: "no unit", format: writeRate, height: 200, base: 0 };
const SPEED = { title: "Throughput", unit: "training tokens per second", format: compact, height: 200, base: 0 };

/** Curves of runs, fetched once and then followed: `update(name)` asks for what is new, `get(name)` returns them. */
class FollowedCurves {
  constructor(source) {
    this.source = source;
    this.known = new Map();
    this.pending = new Map();
  }

  get(name) {
    return this.known.get(name);
  }

  update(name) {
    if (!this.pending.has(name)) {
      this.pending.set(name, this.ask(name).finally(() => this.pending.delete(name)));
    }
    return this.pending.get(name);
  }

  async ask(name) {
    const known = this.known.get(name);
    const run = await this.source.run({ name, after: known?.last_step ?? -1 });
    if (!known || known.last_step === null) {
      this.known.set(name, run);
    } else if (run.last_step === null || run.last_step < known.last_step) {
      this.known.set(name, await this.source.run({ name })); // it went on from an earlier step
    } else {
      const curves = ["training_curve", "validation_curve"].map((curve) => [curve, joined(known[curve], run[curve])]);
      const grown = { ...run, every: known.every, ...Object.fromEntries(curves) };
      const isLong = grown.training_curve.step.length > MAX_KEPT;
      this.known.set(name, isLong ? await this.source.run({ name }) : grown);
    }
    return this.known.get(name);
  }
}

function joined(columns, more) {
  return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, [...values, ...more[name]]]));
}

/** Fills three elements with the plots of runs. Returns `draw(chosen, { across, isLog })`; `chosen`: { run, hue } each; a hue beyond the last is an earlier one, dashed. */
function showCurves(loss, rate, speed) {
  const charts = [
    [showChart(loss, NATS), "loss", true],
    [showChart(rate, RATE), "learning_rate", false],
    [showChart(speed, SPEED), "tokens_per_second", false],
  ];
  return (chosen, { across = "step", isLog = false } = {}) => {
    const axis = across === "step" ? STEPS : SECONDS;
    for (const [draw, column, isLoss] of charts) {
      const series = chosen.flatMap(({ run, hue }) => {
        const training = { group: run.name, hue, points: pairs(run.training_curve, across, column) };
        if (!isLoss) return [{ ...training, kind: "steady", label: "" }];
        const validation = { group: run.name, hue, points: pairs(run.validation_curve, across, column) };
        return [
          { ...training, kind: "training", label: "training" },
          { ...validation, kind: "validation", label: "validation" },
        ];
      });
      draw({ series, across: axis, isLog: isLoss && isLog });
    }
  };
}

const STEPS = {
  name: "optimizer steps",
  format: (value) => `step ${value.toLocaleString("en")}`,
  tick: (value) => compact(value),
};
const SECONDS = { name: "time of training, evaluations included", format: describeSeconds, tick: describeSeconds };

function pairs(columns, across, column) {
  return columns[across].map((x, index) => [x, columns[column][index]]).filter(([x]) => x !== null);
}

/** A learning rate with two digits. */
function writeRate(value) {
  return value === 0 ? "0" : value.toExponential(1);
}

function compact(value) {
  return value >= 10000
    ? new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value)
    : Number(value.toPrecision(3)).toLocaleString("en");
}

function describeSeconds(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) {
    const rest = Math.round(seconds % 60);
    return seconds < 600 && rest ? `${Math.floor(seconds / 60)} min ${rest} s` : `${Math.round(seconds / 60)} min`;
  }
  if (seconds < 36 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/** A time without more digits than an estimate has. */
function describeRough(seconds) {
  return describeSeconds(seconds < 60 ? Math.ceil(seconds / 10) * 10 : seconds < 600 ? Math.round(seconds / 30) * 30 : seconds);
}

/** Calls `ask` now and every few seconds, one call after another, while `root` is on the page and the page in sight. */
function pollWhileVisible(root, ask) {
  let isAsking = false;
  const poll = async () => {
    if (isAsking || !root.isConnected || document.hidden) return;
    isAsking = true;
    await ask();
    isAsking = false;
  };
  setInterval(poll, POLL_MILLISECONDS);
  document.addEventListener("visibilitychange", poll);
  poll();
  return poll;
}
