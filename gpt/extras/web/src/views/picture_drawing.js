import { colorOf, signedColorOf } from "../colors.js";
import { lengthOf } from "../engine/picture.js";

// a number of so many times the root mean square of its vector has the strongest color
const STRONGEST = 3;
// pixels of a drawing of arcs, twice as many as it is shown with, for sharp screens
const WIDTH = 320;
const HEIGHT = 72;
const BASE = HEIGHT - 12; // of the arcs; below it is a line of cells
const STEPS = 127; // of color, on either side of zero
const FAINTEST = 0.01; // a weight below it has no arc

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
  const middle = (index) => (index + 0.5) * step;
  const query = weights.length - 1;
  weights.forEach((weight, key) => {
    context.fillStyle = shares[Math.round(STEPS * Math.sqrt(weight))];
    context.fillRect(key * step, BASE + 2, Math.ceil(step), HEIGHT - BASE - 2);
  });
  context.strokeStyle = shares[Math.round(0.6 * STEPS)];
  weights.forEach((weight, key) => {
    if (weight < FAINTEST) return;
    context.globalAlpha = 0.2 + 0.8 * weight;
    context.lineWidth = 1.5 + 6 * weight;
    context.beginPath();
    if (key === query) {
      context.arc(middle(key), BASE - 7, 5, 0, 2 * Math.PI); // a small circle
    } else {
      // far tokens have higher arcs
      const height = 12 + (BASE - 18) * Math.sqrt((query - key) / size);
      // a cubic Bézier curve rises to 3/4 of the height of its control points
      const control = BASE - height * (4 / 3);
      context.moveTo(middle(query), BASE);
      context.bezierCurveTo(middle(query), control, middle(key), control, middle(key), BASE);
    }
    context.stroke();
  });
}
