import { colorOf, drawInTheme } from "../colors.js";
import { create, keyIn, within } from "../dom.js";

const KEYS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
// A token is of the first class that fits.
const CLASSES = [
  { name: "white space", fits: /^([␣⏎⇥]+|CR)$/u, color: "light-dark(#4e5a68, #b9c3d0)" },
  { name: "vowels", fits: /^[aeiouyäöüáéíóúàèâêîôû]$/u, color: "light-dark(#0b62b0, #5db1f5)" },
  { name: "other letters", fits: /^\p{Ll}$/u, color: "light-dark(#00775a, #43c9a0)" },
  { name: "capitals", fits: /^\p{Lu}$/u, color: "light-dark(#c04a00, #ff9a5c)" },
  { name: "digits", fits: /^\p{N}$/u, color: "light-dark(#a3307f, #ec8cc9)" },
  { name: "all else", fits: /./su, color: "light-dark(#7a6200, #d8bd4a)" },
];

/** Draws tokens in a plane by their embeddings, where they move from step to step. */
export class EmbeddingMap {
  constructor({ map, classes, nearest }) {
    this.map = map;
    this.classes = classes;
    this.nearest = nearest;
    this.tokens = [];
    this.labels = [];
    this.pointed = null; // the index of the token that is pointed at
    map.addEventListener("pointermove", (event) => {
      const frame = map.getBoundingClientRect();
      // in units of the map, whose sides are 100 long
      const x = 100 * ((event.clientX - frame.left) / frame.width);
      const y = 100 * ((event.clientY - frame.top) / frame.height);
      this.point(this.closest(x, y));
    });
    map.addEventListener("pointerleave", () => this.point(null));
    map.addEventListener("keydown", (event) => {
      const by = keyIn(KEYS, event);
      if (by === undefined) return;
      event.preventDefault();
      this.point(within((this.pointed ?? 0) + by, this.tokens.length - 1));
    });
  }

  /**
   * Shows the tokens of a snapshot at their `points`, from -1 to 1; `unit` is the word for a token.
   */
  show({ tokens, points, nearest, step }, unit) {
    this.unit = unit;
    if (tokens.join() !== this.tokens.join()) this.create(tokens);
    this.neighbors = nearest;
    // with a margin of 4 for the letters
    this.places = points.map(([x, y]) => [50 + 46 * x, 50 - 46 * y]);
    this.places.forEach(([x, y], index) => {
      this.labels[index].style.transform = `translate(${x}px, ${y}px)`;
    });
    this.map.setAttribute(
      "aria-label",
      `The tokens' embeddings at step ${step}; the arrow keys go from token to token`
    );
    this.point(this.pointed);
  }

  /** Creates a label for each token, and the legend of their classes. */
  create(tokens) {
    this.tokens = tokens;
    this.pointed = null;
    const kinds = tokens.map(
      (token) => CLASSES.find(({ fits }) => fits.test(token)) ?? CLASSES.at(-1)
    );
    this.labels = tokens.map((token, index) => {
      const label = document.createElementNS(this.map.namespaceURI, "text");
      label.setAttribute("class", "map-token");
      label.textContent = token;
      label.style.fill = kinds[index].color;
      return label;
    });
    this.map.replaceChildren(...this.labels);
    this.classes.replaceChildren();
    for (const kind of CLASSES) {
      if (!kinds.includes(kind)) continue;
      const item = create("span", "", kind.name);
      item.style.color = kind.color;
      this.classes.append(item);
    }
  }

  /** The index of the token that is closest to a place of the map. */
  closest(x, y) {
    const distances = this.places.map(([left, top]) => (left - x) ** 2 + (top - y) ** 2);
    return distances.indexOf(Math.min(...distances));
  }

  /**
   * Shows the neighbors of a token, whose embeddings have the most similar directions; null where
   * none is pointed at.
   */
  point(index) {
    this.pointed = index;
    const near = index === null ? [] : this.neighbors[index];
    this.labels.forEach((label, each) => {
      label.classList.toggle("pointed", each === index);
      label.classList.toggle("near", near.includes(each));
    });
    const names = near.map((each) => this.tokens[each]).join("  ");
    this.nearest.textContent =
      index === null
        ? `Point at a ${this.unit} for its neighbors.`
        : `${this.tokens[index]}: nearest ${names}`;
  }
}

/**
 * Draws the attention weights of all heads, a pixel for each: layers below each other, heads side
 * by side.
 */
export function drawHeads({ heads: canvas, line: words }, { attention, line, step }) {
  const size = line.length + 1; // with a gap of one pixel
  const layers = attention.length;
  const heads = attention[0].length;
  words.textContent = `In “${line.map((label) => (label === "␣" ? " " : label)).join("")}”`;
  Object.assign(canvas, { width: heads * size - 1, height: layers * size - 1 });
  canvas.setAttribute(
    "aria-label",
    `The attention of ${layers} layers of ${heads} heads at step ${step}`
  );
  drawInTheme(canvas, () => {
    const image = new ImageData(canvas.width, canvas.height);
    for (let layer = 0; layer < layers; layer++) {
      for (let head = 0; head < heads; head++) {
        const corner = layer * size * image.width + head * size; // the first pixel of the head
        drawTriangle(image, attention[layer][head], corner);
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  });
}

/**
 * Draws the lower triangle of a head's weights into an image; the keys above it are hidden from the
 * queries.
 */
function drawTriangle(image, rows, corner) {
  rows.forEach((row, query) => {
    for (let key = 0; key <= query; key++) {
      const pixel = corner + query * image.width + key;
      image.data.set([...colorOf(row[key]), 255], 4 * pixel);
    }
  });
}
