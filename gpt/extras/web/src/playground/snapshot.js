import { colorOf, drawInTheme } from "../colors.js";
import { create, keyIn, within } from "../dom.js";

const KEYS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
// A token is of the first that fits.
const CLASSES = [
  { name: "white space", fits: /^([␣⏎⇥]+|CR)$/u, color: "light-dark(#4e5a68, #b9c3d0)" },
  { name: "vowels", fits: /^[aeiouyäöüáéíóúàèâêîôû]$/u, color: "light-dark(#0b62b0, #5db1f5)" },
  { name: "other letters", fits: /^\p{Ll}$/u, color: "light-dark(#00775a, #43c9a0)" },
  { name: "capitals", fits: /^\p{Lu}$/u, color: "light-dark(#c04a00, #ff9a5c)" },
  { name: "digits", fits: /^\p{N}$/u, color: "light-dark(#a3307f, #ec8cc9)" },
  { name: "all else", fits: /./su, color: "light-dark(#7a6200, #d8bd4a)" },
];

/** Tokens in a plane, which move there from step to step. */
export class EmbeddingMap {
  constructor({ map, classes, nearest }) {
    this.map = map;
    this.classes = classes;
    this.nearest = nearest;
    this.tokens = [];
    this.labels = [];
    this.at = null; // the token that is pointed at
    map.addEventListener("pointermove", (event) => {
      const frame = map.getBoundingClientRect();
      this.point(
        this.closest(
          100 * ((event.clientX - frame.left) / frame.width),
          100 * ((event.clientY - frame.top) / frame.height)
        )
      );
    });
    map.addEventListener("pointerleave", () => this.point(null));
    map.addEventListener("keydown", (event) => {
      const by = keyIn(KEYS, event);
      if (by === undefined) return;
      event.preventDefault();
      this.point(within((this.at ?? 0) + by, this.tokens.length - 1));
    });
  }

  show({ tokens, points, nearest, step }, unit) {
    this.unit = unit;
    if (tokens.join() !== this.tokens.join()) this.create(tokens);
    this.neighbors = nearest;
    this.places = points.map(([x, y]) => [50 + 46 * x, 50 - 46 * y]);
    this.places.forEach(([x, y], index) => {
      this.labels[index].style.transform = `translate(${x}px, ${y}px)`;
    });
    this.map.setAttribute(
      "aria-label",
      `The tokens' embeddings at step ${step}; the arrow keys go from token to token`
    );
    this.point(this.at);
  }

  create(tokens) {
    this.tokens = tokens;
    this.at = null;
    const kinds = tokens.map((token) => CLASSES.find(({ fits }) => fits.test(token)) ?? CLASSES.at(-1));
    this.labels = tokens.map((token, index) => {
      const label = document.createElementNS(this.map.namespaceURI, "text");
      label.setAttribute("class", "map-token");
      label.textContent = token;
      label.style.fill = kinds[index].color;
      return label;
    });
    this.map.replaceChildren(...this.labels);
    const named = CLASSES.filter((kind) => kinds.includes(kind)).map(({ name, color }) => {
      const item = create("span", "", name);
      item.style.color = color;
      return item;
    });
    this.classes.replaceChildren(...named);
  }

  closest(x, y) {
    const distance = ([left, top]) => (left - x) ** 2 + (top - y) ** 2;
    return this.places.reduce(
      (best, place, index) => (distance(place) < distance(this.places[best]) ? index : best),
      0
    );
  }

  /** Shows which embeddings point most nearly where a token's does; null: none is pointed at. */
  point(index) {
    this.at = index;
    const near = index === null ? [] : this.neighbors[index];
    this.labels.forEach((label, each) => {
      label.classList.toggle("pointed", each === index);
      label.classList.toggle("near", near.includes(each));
    });
    const names = near.map((each) => this.tokens[each]).join("  ");
    this.nearest.textContent =
      index === null ? `Point at a ${this.unit} for its neighbors.` : `${this.tokens[index]}: nearest ${names}`;
  }
}

/** Draws the weights of all heads in small: layers below each other, heads side by side. */
export function drawHeads({ heads: canvas, line: words }, { attention, line, step }) {
  const size = line.length + 1; // with a gap
  const [layers, across] = [attention.length, attention[0].length];
  words.textContent = `In “${line.map((label) => (label === "␣" ? " " : label)).join("")}”`;
  Object.assign(canvas, { width: across * size - 1, height: layers * size - 1 });
  canvas.setAttribute("aria-label", `The attention of ${layers} layers of ${across} heads at step ${step}`);
  drawInTheme(canvas, () => {
    const image = new ImageData(canvas.width, canvas.height);
    attention.flat().forEach((rows, head) => {
      const begin = Math.floor(head / across) * size * image.width + (head % across) * size;
      rows.forEach((row, query) => {
        for (let key = 0; key <= query; key++) {
          image.data.set([...colorOf(row[key]), 255], 4 * (begin + query * image.width + key));
        }
      });
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
  });
}
