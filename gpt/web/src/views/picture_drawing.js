import { colorOf, signedColorOf } from "../colors.js";
import { lengthOf } from "../engine/picture.js";

const STRONGEST = 3; // times the root mean square of a vector: the strongest color
const [WIDTH, HEIGHT] = [320, 72]; // of arcs, twice as fine as they are shown
const BASE = HEIGHT - 12;
const FAINTEST = 0.01; // a weight below it has no arc

/** A vector as a strip, a cell for each number. */
export function drawStrip(canvas, values) {
  const largest = (STRONGEST * lengthOf(values)) / Math.sqrt(values.length) || 1;
  const image = new ImageData(values.length, 1);
  values.forEach((value, index) => image.data.set([...signedColorOf(value / largest), 255], 4 * index));
  Object.assign(canvas, { width: values.length, height: 1 });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Weights of the last token of a row as arcs to all before it, over a line on which `size` tokens have room. */
export function drawArcs(canvas, weights, size) {
  Object.assign(canvas, { width: WIDTH, height: HEIGHT });
  const context = canvas.getContext("2d");
  const step = WIDTH / size;
  const middle = (index) => (index + 0.5) * step;
  const query = weights.length - 1;
  weights.forEach((weight, key) => {
    context.fillStyle = `rgb(${colorOf(Math.sqrt(weight)).join(" ")})`;
    context.fillRect(key * step, BASE + 2, Math.ceil(step), HEIGHT - BASE - 2);
  });
  context.strokeStyle = `rgb(${colorOf(0.6).join(" ")})`;
  weights.forEach((weight, key) => {
    if (weight < FAINTEST) return;
    context.globalAlpha = 0.2 + 0.8 * weight;
    context.lineWidth = 1.5 + 6 * weight;
    context.beginPath();
    if (key === query) context.arc(middle(key), BASE - 7, 5, 0, 2 * Math.PI);
    else {
      const peak = BASE - (12 + (BASE - 18) * Math.sqrt((query - key) / size)) * (4 / 3);
      context.moveTo(middle(query), BASE);
      context.bezierCurveTo(middle(query), peak, middle(key), peak, middle(key), BASE);
    }
    context.stroke();
  });
}
