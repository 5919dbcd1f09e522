import { drawBitsLegend, paintBits } from "../colors.js";
import { create, createButton, fill, say } from "../dom.js";
import { unitOf, writeText } from "../tokens.js";
import template from "./ablation.html";

const CONTINUED = 48; // tokens that the model writes after the text
const QUOTED_WORDS = 3; // of each continuation in the line about the effect

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
  const unit = unitOf(view);
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
    parts.effect.hidden = heads.length === 0;
    parts.chips.hidden = heads.length === 0;
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
    // -1: both are the same
    const parting = left.written.findIndex((label, index) => label !== whole.written[index]);
    const given = labels.join("");
    parts.effect.replaceChildren(
      describeChange(left.mean, whole.mean),
      ...describeWords(given, whole.written, left.written, parting)
    );
    const without = heads.length === 1 ? "Without it" : `Without ${heads.length} heads`;
    parts.titleWithAll.textContent = withBits("With all heads", whole.mean, unit);
    parts.titleWithout.textContent = withBits(without, left.mean, unit);
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

/** The change of the mean surprise; nothing for a text of one token, at which there is none. */
function describeChange(left, whole) {
  if (whole === null) return "";
  const sign = left < whole ? "−" : "+";
  return `${sign}${Math.abs(left - whole).toFixed(3)} bits: `;
}

/**
 * What became of the first words after the text `given` that are not the same; `parting` is the
 * first different token of the two continuations, -1 where there is none.
 */
function describeWords(given, whole, left, parting) {
  if (parting < 0) return ["it writes the same"];
  const same = given + whole.slice(0, parting).join("");
  const before = create("em", "", wordsAt(given + whole.join(""), same.length));
  const after = create("em", "", wordsAt(given + left.join(""), same.length));
  return [before, " became ", after];
}

/** A few words of a text with signs for white space, from the word on that `place` is in. */
function wordsAt(signed, place) {
  const text = signed.replace(/[␣⏎⇥]/g, " ");
  const start = text.lastIndexOf(" ", place - 1) + 1; // 0 in the first word
  const words = text.slice(start).split(" ").filter(Boolean);
  return words.slice(0, QUOTED_WORDS).join(" ");
}

function withBits(title, mean, unit) {
  return mean === null ? title : `${title}: ${mean.toFixed(3)} bits per ${unit}`;
}
