import { drawBitsLegend, drawInTheme, paintBits } from "../colors.js";
import { fill } from "../dom.js";
import { drawBars, makeReadable, nameOf, surprise, unitOf, writeText } from "../tokens.js";
import { drawDoors, placeIn } from "./doors.js";
import template from "./surprisal.html";

/**
 * A text with the `bits` of each token, and what was most likely `before` and `after` the sampling `settings`. Opens on
 * what surprised most. Returns `choose(params)`, which chooses the `token` of an address.
 */
export function showSurprisal(root, view) {
  const { labels, bits, before, after, mean_bits: mean, settings } = view;
  const unit = unitOf(view);
  const parts = fill(root, template);
  const tokens = writeText(parts.text, labels);

  function draw() {
    drawBitsLegend(parts.legend, "bits");
    tokens.forEach((token, index) => bits[index] !== null && paintBits(token, bits[index]));
  }

  /** Only a list that the filters made shorter is known to be whole. */
  function isNeverPicked(index) {
    const isWhole = after[index].length < before[index].length;
    return isWhole && after[index].every(([label]) => label !== labels[index]);
  }

  function describe(index) {
    if (bits[index] === null) return `This is the first ${unit}: there is nothing to predict it from.`;
    const rest = isNeverPicked(index) ? " Sampling with these settings never picks it." : "";
    return `${surprise(2 ** -bits[index])}.${rest}`;
  }

  function showDetails(index) {
    parts.detailsTitle.textContent = nameOf(labels, index);
    parts.readout.textContent = describe(index);
    drawDoors(parts.doors, view, index, { lens: ["what each block expected here", index - 1] });
    for (const [list, entries] of [
      [parts.before, before[index]],
      [parts.after, after[index]],
    ]) {
      drawBars(list, entries, (entry) => (entries[entry][0] === labels[index] ? "came" : ""));
    }
  }

  tokens.forEach((token, index) => {
    token.classList.toggle("unknown", bits[index] === null);
    token.setAttribute("aria-label", labels[index] + (bits[index] === null ? "" : `, ${bits[index].toFixed(1)} bits`));
  });
  parts.mean.textContent = mean.toFixed(3);
  parts.unit.textContent = unit;
  parts.afterTitle.textContent = `With ${settings}`;
  const choose = makeReadable(parts.text, tokens, labels.length, showDetails);
  drawInTheme(root, draw);
  choose(Math.max(0, bits.indexOf(Math.max(...bits))));
  return (params) => {
    const token = placeIn(params, "token", labels.length - 1);
    if (token !== null) choose(token);
  };
}
