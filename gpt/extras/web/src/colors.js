import { create } from "./dom.js";

// Even steps of lightness in one family of hues, from near the page's background on: order survives color blindness and
// gray printing, and what is certain is plain text.
const [LIGHT, DARK] = [
  ["#eaf6fa", "#afdff6", "#79c5f0", "#4ca9e6", "#2f8bd4", "#266db9", "#275196", "#24396e", "#1c2345"],
  ["#13161c", "#172c46", "#1a4570", "#1c629c", "#2e80bd", "#4a9fd2", "#75bce1", "#a8d7ea", "#e3edf0"],
].map((ramp) => ramp.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16))));
const NEGATIVE = [208, 84, 24]; // the ink of the lowest signed value; the highest is that of the ramp
// Fixed, so that the same color means the same surprise, -log2 of the probability, on every page.
const MAX_BITS = 8;
let darkTheme = null;
const redraws = new Map(); // by the element that is drawn in

/** The reader's theme: asked for late, since Node, which checks a page's numbers, has none. */
function theme() {
  if (!darkTheme) {
    darkTheme = matchMedia("(prefers-color-scheme: dark)");
    darkTheme.addEventListener("change", () => redraws.forEach((draw) => draw()));
  }
  return darkTheme;
}

/** Calls `draw` now, and when the colors change until something else is drawn in this element. */
export function drawInTheme(root, draw) {
  redraws.set(root, draw);
  draw();
}

/** Red, green and blue of a share from 0 to 1; 0 is near the page's background in both themes. */
export function colorOf(share) {
  const ramp = theme().matches ? DARK : LIGHT;
  const place = Math.min(1, Math.max(0, share)) * (ramp.length - 1);
  const below = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[below].map((low, channel) => Math.round(low + (ramp[below + 1][channel] - low) * (place - below)));
}

/** Red, green and blue of a value from -1 to 1; 0 is near the page's background. */
export function signedColorOf(value) {
  if (value >= 0) return colorOf(value);
  return colorOf(0).map((channel, index) => Math.round(channel + (NEGATIVE[index] - channel) * Math.min(1, -value)));
}

/** Colors an element, with the ink that reads better on it. */
export function paint(element, share) {
  const [red, green, blue] = colorOf(share);
  const [r, g, b] = [red, green, blue].map((value) => (value / 255) ** 2.2);
  element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
  element.style.color = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}

export function paintBits(element, bits) {
  paint(element, bits / MAX_BITS);
}

export function unpaint(element) {
  element.style.backgroundColor = element.style.color = "";
}

/** Ticks are pairs of a place from 0 to 1 and its text; `color(share)` is that of the bar from 0 to 1. */
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

export function drawBitsLegend(container, title) {
  const nameOf = (bits) => (bits === MAX_BITS ? `${bits}+` : String(bits));
  drawLegend(
    container,
    title,
    [0, 2, 4, 6, 8].map((bits) => [bits / MAX_BITS, nameOf(bits)])
  );
}
