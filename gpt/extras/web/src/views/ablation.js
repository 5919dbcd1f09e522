import { drawBitsLegend, paintBits } from "../colors.js";
import { createButton, fill, say } from "../dom.js";
import { unitOf, writeText } from "../tokens.js";
import template from "./ablation.html";

const CONTINUED = 48; // tokens that the model writes after the text

/**
 * Shows in `root` what ablating heads does to the model's surprise at the text and to what it writes after it, beside
 * what it does with all heads.
 *
 * `view` is that of attention, with the `text` and `model` to ask `source` about. `changed(view)` follows with the
 * attention of the model that is left, and `marked(heads)` with the ablated heads, as pairs of a layer and a head.
 * Returns `toggle(layer, head)` and `draw()`.
 */
export function showAblation(root, view, source, { marked, changed }) {
  const parts = fill(root, template);
  const { model, text, last, labels } = view;
  let heads = [];
  let running = null;
  let whole = null; // of the model with all its heads
  let left = null; // of what is left of it

  function toggle(layer, head) {
    const others = heads.filter(([one, other]) => one !== layer || other !== head);
    choose(others.length < heads.length ? others : [...heads, [layer, head]]);
  }

  function choose(chosen) {
    heads = chosen;
    marked(heads);
    parts.none.hidden = heads.length > 0;
    parts.clear.hidden = heads.length === 0;
    parts.ablated.replaceChildren(...heads.map(createChip));
    compute();
  }

  function createChip([layer, head]) {
    const name = `layer ${layer}, head ${head}`;
    return createButton("chip", `${name} ×`, () => toggle(layer, head), `restore ${name}`);
  }

  async function compute() {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    say(parts.status, "Computing…");
    try {
      whole ??= await ask([], signal);
      left = heads.length ? await ask(heads, signal) : null;
      const attention = await source.attention({ model, text, last, ablate: heads, signal });
      if (signal.aborted) return;
      say(parts.status, "");
      changed(attention);
    } catch (error) {
      if (!signal.aborted) say(parts.status, error.message, true);
    }
  }

  /** The model's surprise at the text, and what it writes after it. */
  async function ask(ablate, signal) {
    const surprisal = labels.length > 1 ? await source.surprisal({ model, text, last, ablate, signal }) : null;
    const continuation = await source.continuation({ model, text, last, ablate, count: CONTINUED, signal });
    return { bits: surprisal?.bits ?? [null], mean: surprisal?.mean_bits ?? null, written: continuation.labels };
  }

  function draw() {
    parts.effects.hidden = left === null;
    if (left === null) return;
    parts.effect.textContent =
      left.mean === null ? "" : describeEffect(left.mean, whole.mean, heads.length, unitOf(view));
    const parting = left.written.findIndex((label, index) => label !== whole.written[index]);
    drawText(parts.withAll, whole, parting);
    drawText(parts.without, left, parting);
    drawBitsLegend(parts.bitsLegend, "bits of surprise");
  }

  function drawText(box, { bits, written }, parting) {
    box.replaceChildren();
    const tokens = writeText(box, [...labels, ...written], null);
    tokens.forEach((token, index) => {
      if (index >= labels.length) token.classList.add("continued");
      else if (bits[index] !== null) paintBits(token, bits[index]);
    });
    if (parting >= 0) tokens[labels.length + parting].classList.add("parting");
  }

  parts.clear.addEventListener("click", () => choose([]));
  return { toggle, draw };
}

function describeEffect(left, whole, count, unit) {
  const change = `${left < whole ? "−" : "+"}${Math.abs(left - whole).toFixed(3)}`;
  const without = `${left.toFixed(3)} bits per ${unit} without ${count === 1 ? "it" : "them"}`;
  return `${without}, ${whole.toFixed(3)} with all heads (${change}).`;
}
