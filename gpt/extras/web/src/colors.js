import { create } from "./dom.js";

// Each ramp has even steps of lightness in one family of hues, so that their order survives color
// blindness and gray printing. It begins near the page's background, so that a token that was
// certain looks like plain text. Blue is for how much there is, of a probability or a weight, and
// purple for surprise: strong blue and strong purple would else mean opposite things.
const LIGHT = toRamp("#eaf6fa #afdff6 #79c5f0 #4ca9e6 #2f8bd4 #266db9 #275196 #24396e #1c2345");
const DARK = toRamp("#13161c #172c46 #1a4570 #1c629c #2e80bd #4a9fd2 #75bce1 #a8d7ea #e3edf0");
const LIGHT_SURPRISE = toRamp(
  "#fbf0f6 #f5d0e4 #eaaacc #db82b2 #c65a97 #a63c7c #822b61 #5d1f46 #39132b"
);
const DARK_SURPRISE = toRamp(
  "#17131a #371a31 #58234d #7d306d #a34a8c #c473a9 #da9dc3 #ebc5da #f5e6ee"
);
const NEGATIVE = [208, 84, 24]; // the color of -1; that of 1 is the last one of the ramp
// The same color means the same surprise, -log2 of the probability, on every page.
const MAX_BITS = 8;
let darkTheme = null;
const redraws = new Map(); // a function for each element that is drawn in the colors of the theme

/** The red, green and blue of each color of a ramp. */
function toRamp(colors) {
  return colors
    .split(" ")
    .map((hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16)));
}

/**
 * The reader's theme. It is asked for late, since Node, in which tests run this module, has none.
 */
function theme() {
  if (!darkTheme) {
    darkTheme = matchMedia("(prefers-color-scheme: dark)");
    darkTheme.addEventListener("change", () => redraws.forEach((draw) => draw()));
  }
  return darkTheme;
}

/**
 * Calls `draw` now, and again whenever the theme changes, until something else is drawn in this
 * element.
 */
export function drawInTheme(root, draw) {
  redraws.set(root, draw);
  draw();
}

/** Red, green and blue of a share from 0 to 1; 0 is near the page's background in both themes. */
export function colorOf(share) {
  return colorAt(theme().matches ? DARK : LIGHT, share);
}

/** The same of surprise, as a share of `MAX_BITS`. */
export function surpriseColorOf(share) {
  return colorAt(theme().matches ? DARK_SURPRISE : LIGHT_SURPRISE, share);
}

/** The color at a share of the length of a ramp. */
function colorAt(ramp, share) {
  const place = Math.min(1, Math.max(0, share)) * (ramp.length - 1);
  const below = Math.min(Math.floor(place), ramp.length - 2);
  return mix(ramp[below], ramp[below + 1], place - below);
}

/** Red, green and blue of a value from -1 to 1; 0 is near the page's background. */
export function signedColorOf(value) {
  if (value >= 0) return colorOf(value);
  return mix(colorOf(0), NEGATIVE, Math.min(1, -value));
}

/** The color that lies a share of the way from one color to another. */
function mix(from, to, share) {
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * share));
}

/** Colors an element, and its text black or white, whichever reads better on the color. */
export function paint(element, share) {
  paintIn(element, colorOf(share));
}

function paintIn(element, color) {
  element.style.backgroundColor = `rgb(${color.join(" ")})`;
  element.style.color = isLightColor(color) ? "#000" : "#fff";
}

/** Whether black reads better than white on a color of red, green and blue. */
export function isLightColor(color) {
  // about where the contrast with black and with white is the same
  return luminance(...color) > 0.18;
}

/** The relative luminance of an sRGB color, by the weights of Rec. 709 and a gamma of 2.2. */
function luminance(...channels) {
  const [red, green, blue] = channels.map((value) => (value / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Red, green and blue of the surprise at a token. */
export function colorOfBits(bits) {
  return surpriseColorOf(bits / MAX_BITS);
}

/** Colors an element by the surprise at a token. */
export function paintBits(element, bits) {
  paintIn(element, colorOfBits(bits));
}

/** Removes what `paint` has set. */
export function unpaint(element) {
  element.style.backgroundColor = "";
  element.style.color = "";
}

/**
 * Draws a bar of colors, `color(share)` at each share from 0 to 1, over `ticks`: pairs of a share
 * and its text.
 */
export function drawLegend(container, title, ticks, color = colorOf) {
  const bar = create("div", "legend-bar");
  const stops = Array.from({ length: 17 }, (_, stop) => `rgb(${color(stop / 16).join(" ")})`);
  bar.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
  const axis = create("div", "legend-axis");
  for (const [place, text] of ticks) {
    const tick = create("span", "", text);
    tick.style.left = `${100 * place}%`;
    axis.append(tick);
  }
  container.replaceChildren(create("div", "legend-title", title), bar, axis);
}

/** Draws the legend of `paintBits`. */
export function drawBitsLegend(container, title) {
  const nameOf = (bits) => (bits === MAX_BITS ? `${bits}+` : String(bits));
  const ticks = [0, 2, 4, 6, 8].map((bits) => [bits / MAX_BITS, nameOf(bits)]);
  drawLegend(container, title, ticks, surpriseColorOf);
}
