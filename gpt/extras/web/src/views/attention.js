import { colorOf, drawInTheme, drawLegend, paint, unpaint } from "../colors.js";
import { create, createButton, fill } from "../dom.js";
import { makeChoosable, nameOf, percent, unitOf, writeText } from "../tokens.js";
import { showAblation } from "./ablation.js";
import template from "./attention.html";
import { Heads } from "./heads.js";
import { describeKinds, measureHeads, mostTelling } from "./kinds.js";
import { Matrix } from "./matrix.js";

const THUMBNAIL = 96; // most pixels of a side
// the share of the color scale for a weight, so that small weights can be told apart
const shareOf = Math.sqrt;
const TICKS = [0, 0.02, 0.1, 0.25, 0.5, 1].map((weight) => [shareOf(weight), String(weight)]);

/**
 * Shows the attention of `view`; heads can be ablated where it has the `text` and `model` to ask
 * `source` about.
 */
export function showAttention(root, view, source = null) {
  new AttentionView(root, view, source);
}

/**
 * `view` has `labels` (T), the numbers of `layers` and `heads`, and `weights` as `Heads` takes
 * them. It opens on the head that its `layer` and `head` name, or on the most telling one of those
 * that fit.
 */
class AttentionView {
  constructor(root, view, source) {
    this.parts = fill(root, template);
    this.view = view;
    this.labels = view.labels;
    this.size = view.labels.length;
    this.kinds = describeKinds(unitOf(view));
    this.measure(view);
    this.head = this.mostTelling(view);
    this.query = this.size - 1;
    this.key = 0;
    this.pointed = null; // the query and key under the mouse
    root.style.setProperty("--size", this.size);
    const { text } = this.parts;
    this.tokens = writeText(text, this.labels);
    this.thumbnails = this.addThumbnails(view);
    this.ablation = source && this.allowAblation(root, view, source);
    this.chooseHead = makeChoosable(this.parts.heads, this.thumbnails, view.heads, (head) => {
      this.head = head;
      this.drawChosenHead();
      this.scrollToHead();
    });
    this.chooseQuery = makeChoosable(
      text,
      this.tokens,
      this.size,
      (query, key = this.heads.strongestKey(this.head, query)) => this.chooseCell(query, key),
      (key) => this.point(key === null ? null : { query: this.query, key })
    );
    this.matrix = new Matrix(this.parts, this.labels, {
      point: (cell) => this.point(cell),
      choose: (query, key) => this.chooseQuery(query, key),
    });
    drawInTheme(root, () => this.draw());
    this.chooseHead(this.head);
    this.chooseQuery(this.query);
  }

  /** Takes the weights of a view, and measures what its heads look at. */
  measure(view) {
    this.heads = new Heads(view);
    this.measured = measureHeads(this.heads, this.labels);
  }

  /**
   * The number of the most telling head: of a layer, where one is given, and at a place in its
   * layer, where one is given.
   */
  mostTelling({ layer, head }) {
    const among = [];
    for (let index = 0; index < this.heads.count; index++) {
      const isInLayer = layer === undefined || layer === null || layer === this.layerOf(index);
      const isAtPlace = head === undefined || head === null || head === this.placeOf(index);
      if (isInLayer && isAtPlace) among.push(index);
    }
    return mostTelling(this.measured, among);
  }

  /** The layer of a head, by its number among those of all layers. */
  layerOf(head) {
    return Math.floor(head / this.view.heads);
  }

  /** The number of a head in its layer, by its number among those of all layers. */
  placeOf(head) {
    return head % this.view.heads;
  }

  /** Scrolls the thumbnails until the column of the chosen head stands in the middle. */
  scrollToHead() {
    const { offsetLeft, offsetWidth } = this.thumbnails[this.head];
    const { headsBox: box } = this.parts;
    box.scrollLeft = offsetLeft - box.offsetLeft - (box.clientWidth - offsetWidth) / 2;
  }

  /** Adds a button for each head, in a grid with a row for each layer, and returns the buttons. */
  addThumbnails({ layers, heads }) {
    const grid = this.parts.heads;
    grid.style.setProperty("--heads", heads);
    grid.append(create("span")); // the corner
    for (let head = 0; head < heads; head++) grid.append(create("span", "", head));
    const buttons = [];
    for (let layer = 0; layer < layers; layer++) {
      grid.append(create("span", "layer", layer));
      for (let head = 0; head < heads; head++) {
        const button = createButton("thumbnail", create("canvas"), null); // the grid handles clicks
        button.append(create("span", "kind"));
        grid.append(button);
        buttons.push(button);
      }
    }
    return buttons;
  }

  /**
   * Lets the reader ablate heads, by a checkbox or the key X, and shows the attention of the model
   * that is left.
   */
  allowAblation(root, view, source) {
    const { ablation: section, ablate, heads } = this.parts;
    section.hidden = false;
    for (const hint of root.querySelectorAll(".ablation-hint")) hint.hidden = false;
    const ablation = showAblation(section, view, source, {
      marked: (ablated) =>
        this.markAblated(ablated.map(([layer, head]) => layer * view.heads + head)),
      changed: (changed) => {
        this.measure(changed);
        this.draw();
      },
    });
    const toggle = () => ablation.toggle(this.layerOf(this.head), this.placeOf(this.head));
    ablate.addEventListener("change", toggle);
    heads.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() === "x") toggle();
    });
    return ablation;
  }

  /** Marks the ablated heads, by their numbers among those of all layers. */
  markAblated(ablated) {
    this.thumbnails.forEach((button, head) =>
      button.classList.toggle("ablated-head", ablated.includes(head))
    );
    this.nameHeads();
    this.showWhetherAblated();
  }

  /**
   * Writes below each thumbnail what the head looks at and how far back, by which heads of one kind
   * can be told apart.
   */
  nameHeads() {
    this.thumbnails.forEach((button, head) => {
      const { kind } = this.measured[head];
      let shown = kind ?? "mixed";
      let spoken = kind ?? "no name";
      let title = kind
        ? `looks at ${this.kinds[kind]}`
        : "has no name: no kind of place stands out";
      if (button.classList.contains("ablated-head")) {
        shown = "ablated";
        spoken = "ablated";
        title = "ablated";
      }
      const distance = `${this.heads.summarize(head).distance.toFixed(1)} back`;
      button.lastChild.textContent = `${shown}\n${distance}`;
      button.setAttribute("aria-label", [this.heads.nameOf(head), spoken, distance].join(", "));
      button.title = title;
    });
  }

  showWhetherAblated() {
    this.parts.ablate.checked = this.thumbnails[this.head].classList.contains("ablated-head");
  }

  /** Draws all that depends on the colors or on the weights. */
  draw() {
    const step = Math.ceil(this.size / THUMBNAIL);
    const inks = this.inks();
    this.thumbnails.forEach((button, head) => this.drawHead(button.firstChild, head, step, inks));
    this.nameHeads();
    drawLegend(this.parts.legend, "weight", TICKS);
    this.drawChosenHead();
    this.ablation?.draw();
  }

  /** The colors of this theme as pixels, by 255 steps of the scale. */
  inks() {
    return Array.from({ length: 256 }, (_, step) => [...colorOf(step / 255), 255]);
  }

  /**
   * Draws the lower triangle of a head, a pixel for `step` x `step` weights: for the largest, so
   * that thin lines stay.
   */
  drawHead(canvas, head, step, inks) {
    const side = Math.ceil(this.size / step);
    const largest = new Float32Array(side * side).fill(-1); // -1 stays where there is no weight
    for (let query = 0; query < this.size; query++) {
      const row = Math.floor(query / step) * side;
      this.heads.row(head, query).forEach((weight, key) => {
        const pixel = row + Math.floor(key / step);
        largest[pixel] = Math.max(largest[pixel], weight);
      });
    }
    const image = new ImageData(side, side);
    largest.forEach((weight, pixel) => {
      if (weight >= 0) image.data.set(inks[Math.round(255 * shareOf(weight))], 4 * pixel);
    });
    canvas.width = side;
    canvas.height = side;
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  drawChosenHead() {
    const { matrixTitle, summary, plot, canvas } = this.parts;
    const name = this.heads.nameOf(this.head);
    const { kind } = this.measured[this.head];
    const title = name.replace("layer", "Layer");
    matrixTitle.textContent = kind ? `${title}: ${kind}` : title;
    summary.textContent = this.describeHead();
    plot.setAttribute("aria-label", `weights of ${name}; the arrow keys move through them`);
    this.drawHead(canvas, this.head, 1, this.inks());
    this.showWhetherAblated();
    this.showCell();
  }

  describeHead() {
    const { measures, kind } = this.measured[this.head];
    const { distance, entropy } = this.heads.summarize(this.head);
    const rest = `It looks back ${distance.toFixed(1)} positions, with an entropy of ${entropy.toFixed(1)} bits.`;
    if (!kind) return `No kind of place stands out in what it looks at. ${rest}`;
    const { weight, even } = measures.find(({ name }) => name === kind);
    const share = `${percent(weight)} of its weight is on ${this.kinds[kind]}`;
    return `On average ${share}; uniform attention would have ${percent(even)} there. ${rest}`;
  }

  chooseCell(query, key) {
    this.query = query;
    this.key = key;
    this.pointed = null;
    this.showCell();
    this.matrix.reveal();
  }

  /** Shows the cell under the mouse; null when the mouse has left. */
  point(cell) {
    this.pointed = cell;
    this.showCell();
  }

  /** Shows the cell under the mouse, or else the chosen one. */
  showCell() {
    const { query, key } = this.pointed ?? this;
    const { readout } = this.parts;
    const row = this.heads.row(this.head, query);
    this.matrix.mark({ query, key });
    const from = nameOf(this.labels, query);
    const to = nameOf(this.labels, key);
    const weight = key > query ? "hidden, it comes later" : percent(row[key]);
    readout.textContent = `From ${from} to ${to}: ${weight}`;
    this.tokens.forEach((token, index) => {
      if (index <= query) paint(token, shareOf(row[index]));
      else unpaint(token);
      token.classList.toggle("later", index > query);
      token.classList.toggle("looking", index === query);
      token.classList.toggle("pointed", index === key);
    });
  }
}
