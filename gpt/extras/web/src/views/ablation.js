import { drawBitsLegend, paintBits } from "../colors.js";
import { createButton, fill, say } from "../dom.js";
import { unitOf, writeText } from "../tokens.js";
import template from "./ablation.html";

const CONTINUED = 48; // tokens that the model writes after the text

/**
 * Shows in `root` how ablating heads changes the model's surprise at the text, and what it writes
 * after the text.
 *
 * `view` is that of attention, with the `text` and `model` to ask `source` about. `marked(heads)`
 * is called with the ablated heads, pairs of a layer and a head, at each choice; `changed(view)`
 * when the attention of the model without them has been computed. Returns `toggle(layer, head)`,
 * which ablates or restores a head, and `draw()`.
 */
export function showAblation(root, view, source, { marked, changed }) {
  const parts = fill(root, template);
  const { model, text, last, labels } = view;
  let heads = []; // the ablated ones
  let running = null; // the AbortController of the computation
  let whole = null; // the answers of the model with all its heads
  let left = null; // the answers of the model without the ablated heads; null where none is ablated

  function toggle(layer, head) {
    const others = heads.filter((each) => each[0] !== layer || each[1] !== head);
    const isAblated = others.length < heads.length;
    choose(isAblated ? others : [...heads, [layer, head]]);
  }

  /** Ablates these heads and no others. */
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
      left = heads.length > 0 ? await ask(heads, signal) : null;
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
    const request = { model, text, last, ablate, signal };
    // of a text of one token, which nothing predicts
    let surprisal = { bits: [null], mean_bits: null };
    if (labels.length > 1) surprisal = await source.surprisal(request);
    const continuation = await source.continuation({ ...request, count: CONTINUED });
    return { bits: surprisal.bits, mean: surprisal.mean_bits, written: continuation.labels };
  }

  function draw() {
    parts.effects.hidden = left === null;
    if (left === null) return;
    const hasMean = left.mean !== null;
    parts.effect.textContent = hasMean
      ? describeEffect(left.mean, whole.mean, heads.length, unitOf(view))
      : "";
    // -1: both are the same
    const parting = left.written.findIndex((label, index) => label !== whole.written[index]);
    drawText(parts.withAll, whole, parting);
    drawText(parts.without, left, parting);
    drawBitsLegend(parts.bitsLegend, "bits of surprise");
  }

  /**
   * Draws the text in the colors of surprise, and its continuation, in which `parting` is the first
   * different token.
   */
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
  const sign = left < whole ? "−" : "+";
  const change = Math.abs(left - whole).toFixed(3);
  const heads = count === 1 ? "it" : "them";
  return `${left.toFixed(3)} bits per ${unit} without ${heads}, ${whole.toFixed(3)} with all heads (${sign}${change}).`;
}
