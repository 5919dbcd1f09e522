import { colorOf, isLightColor, signedColorOf } from "../colors.js";
import { lengthOf } from "../engine/picture.js";

// a number of so many times the root mean square of its vector has the strongest color
const STRONGEST = 3;
// pixels of a drawing of arcs, twice as many as it is shown with, for sharp screens
const WIDTH = 320;
const HEIGHT = 72;
const BASE = HEIGHT - 12; // of the arcs; below it is a line of cells
const STEPS = 127; // of color, on either side of zero
const FAINTEST = 0.01; // a weight below it has no arc
const THINNEST = 1.5; // pixels of an arc
// the same for a drawing over the full width, in pixels of the page
const WIDE_HEIGHT = 176;
const CELL_HEIGHT = 26;
const WIDE_BASE = 120;
const WIDEST_CELL = 80;
const LEAD = 2; // tokens before the first arc
const LARGEST_LETTER = 20;
const NAME_SIZE = 15; // of what is written below the cells
const SMALLEST_LETTER = 8; // one that is smaller cannot be read
const LARGEST_OVERLAP = 1.3; // of a label over its cell, times the width of the cell
const MOST_NAMED = 4; // tokens whose weights are written
const GAP = 8; // between two of them

/** The colors of this theme, computed once for everything that is drawn with them. */
export function mixInks() {
  const steps = Array.from({ length: 2 * STEPS + 1 }, (_, step) => [
    ...signedColorOf(step / STEPS - 1),
    255,
  ]);
  const shares = Array.from(
    { length: STEPS + 1 },
    (_, step) => `rgb(${colorOf(step / STEPS).join(" ")})`
  );
  return { signed: Uint8ClampedArray.from(steps.flat()), shares };
}

/** Draws a vector as a strip, a cell for each number. */
export function drawStrip(canvas, values, { signed }) {
  const rootMeanSquare = lengthOf(values) / Math.sqrt(values.length);
  const largest = STRONGEST * rootMeanSquare || 1; // 1 where all numbers are 0
  const image = new ImageData(values.length, 1);
  values.forEach((value, index) => {
    const share = Math.max(-1, Math.min(1, value / largest));
    const ink = 4 * (STEPS + Math.round(STEPS * share));
    for (let channel = 0; channel < 4; channel++)
      image.data[4 * index + channel] = signed[ink + channel];
  });
  if (canvas.width !== values.length) Object.assign(canvas, { width: values.length, height: 1 });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/**
 * Draws the weights of a token as arcs to all tokens up to itself, over a line on which `size`
 * tokens have room.
 */
export function drawArcs(canvas, weights, size, { shares }) {
  Object.assign(canvas, { width: WIDTH, height: HEIGHT });
  const context = canvas.getContext("2d");
  const step = WIDTH / size;
  weights.forEach((weight, key) => {
    context.fillStyle = shares[Math.round(STEPS * Math.sqrt(weight))];
    context.fillRect(key * step, BASE + 2, Math.ceil(step), HEIGHT - BASE - 2);
  });
  context.strokeStyle = shares[Math.round(0.6 * STEPS)];
  strokeArcs(context, weights, { step, base: BASE, size, thickest: 7.5 });
}

/**
 * Draws an arc from the last of the tokens with `weights` to each of them, above the height `base`:
 * the more weight, the thicker, up to so many pixels. A token is `step` pixels wide, and an arc
 * over `size` tokens is the highest.
 */
function strokeArcs(context, weights, { step, base, size, thickest }) {
  const middle = (index) => (index + 0.5) * step;
  const query = weights.length - 1;
  weights.forEach((weight, key) => {
    if (weight < FAINTEST) return;
    context.globalAlpha = 0.2 + 0.8 * weight;
    context.lineWidth = THINNEST + (thickest - THINNEST) * weight;
    context.beginPath();
    if (key === query) {
      context.arc(middle(key), base - 7, 5, 0, 2 * Math.PI); // a small circle
    } else {
      // far tokens have higher arcs
      const height = 12 + (base - 18) * Math.sqrt((query - key) / size);
      // a cubic Bézier curve rises to 3/4 of the height of its control points
      const control = base - height * (4 / 3);
      context.moveTo(middle(query), base);
      context.bezierCurveTo(middle(query), control, middle(key), control, middle(key), base);
    }
    context.stroke();
  });
  context.globalAlpha = 1;
}

/**
 * Draws the same over the full width of a canvas, with the tokens themselves in the colors of their
 * weights, and the percentages of those with the most. Tokens before the first arc are left out, as
 * far as the others fill the canvas.
 */
export function drawWideArcs(canvas, labels, weights, inks) {
  const width = canvas.clientWidth;
  const density = window.devicePixelRatio;
  Object.assign(canvas, { width: width * density, height: WIDE_HEIGHT * density });
  const context = canvas.getContext("2d");
  context.scale(density, density);
  const query = weights.length - 1;
  const farthest = weights.findIndex((weight) => weight >= FAINTEST);
  const firstArc = farthest < 0 ? query : farthest;
  const least = Math.ceil(width / WIDEST_CELL); // tokens that fill the canvas
  const first = Math.max(0, Math.min(firstArc - LEAD, query + 1 - least));
  const shown = weights.slice(first);
  const names = labels.slice(first, query + 1);
  const step = Math.min(WIDEST_CELL, width / shown.length);
  context.strokeStyle = inks.shares[Math.round(0.6 * STEPS)];
  const size = Math.max(1, query - firstArc);
  strokeArcs(context, shown, { step, base: WIDE_BASE, size, thickest: 12 });
  context.textAlign = "center";
  context.textBaseline = "middle";
  drawCells(context, names, shown, step, inks);
  drawPercentages(context, names, shown, step);
}

/** Draws a line of cells with tokens, `step` pixels wide each, in the colors of their weights. */
function drawCells(context, labels, weights, step, { shares }) {
  const size = Math.min(LARGEST_LETTER, 1.6 * step);
  context.font = `${size}px ${getComputedStyle(context.canvas).fontFamily}`;
  weights.forEach((weight, key) => {
    const share = Math.sqrt(weight);
    context.fillStyle = shares[Math.round(STEPS * share)];
    context.fillRect(key * step, WIDE_BASE + 2, Math.ceil(step), CELL_HEIGHT);
    const fits = context.measureText(labels[key]).width <= LARGEST_OVERLAP * step;
    if (!fits || size < SMALLEST_LETTER) return;
    context.fillStyle = isLightColor(colorOf(share)) ? "#000" : "#fff";
    context.fillText(labels[key], (key + 0.5) * step, WIDE_BASE + 2 + CELL_HEIGHT / 2);
  });
}

/**
 * Writes below the cells the largest weights, the heaviest first where room is short; with the token
 * itself where its cell has no room for it.
 */
function drawPercentages(context, labels, weights, step) {
  const { color, fontFamily } = getComputedStyle(context.canvas);
  context.font = `${NAME_SIZE}px ${fontFamily}`;
  context.fillStyle = color;
  const width = context.canvas.clientWidth;
  const strongest = [...weights.keys()].sort((one, other) => weights[other] - weights[one]);
  const taken = []; // pairs of the left and right edges of what is written
  for (const key of strongest.slice(0, MOST_NAMED)) {
    const share = `${Math.round(100 * weights[key])}%`;
    const isInCell = 1.6 * step >= SMALLEST_LETTER;
    const name = isInCell ? share : `${labels[key]} ${share}`;
    const half = context.measureText(name).width / 2;
    const middle = Math.max(half, Math.min(width - half, (key + 0.5) * step));
    const isFree = taken.every(
      ([left, right]) => middle + half + GAP < left || right < middle - half - GAP
    );
    if (!isFree) continue;
    taken.push([middle - half, middle + half]);
    context.fillText(name, middle, WIDE_BASE + 2 + CELL_HEIGHT + NAME_SIZE);
  }
}
