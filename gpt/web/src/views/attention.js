import { colorOf, drawInTheme, drawLegend, paint, unpaint } from "../colors.js";
import { create, createButton, fill, keyIn, within } from "../dom.js";
import { decimals, makeChoosable, quoted, writeText } from "../tokens.js";
import { showAblation } from "./ablation.js";
import { showArcs } from "./arcs.js";
import template from "./attention.html";
import { Heads } from "./heads.js";

const THUMBNAIL = 96; // pixels of its side, at most
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** The attention of `view`; heads can be ablated where it has the `text` and `model` that `source` is to be asked about. */
export function showAttention(root, view, source = null) {
  new AttentionView(root, view, source);
}

/** `view` has `labels` (T), `layers`, `heads`, the `layer` and `head` to start with, and `weights` as of `Heads`. */
class AttentionView {
  constructor(root, view, source) {
    this.parts = fill(root, template);
    this.labels = view.labels;
    this.size = view.labels.length;
    this.head = (view.layer ?? 0) * view.heads + (view.head ?? 0);
    this.query = this.size - 1;
    this.key = 0;
    this.pointed = null; // the query and key under the mouse
    this.heads = new Heads(view);
    root.style.setProperty("--size", this.size);
    const { text, arcs, queries, keys, box } = this.parts;
    this.ticks = [queries, keys].map((axis) => this.labels.map((label) => this.addTick(axis, label)));
    this.tokens = writeText(text, this.labels);
    this.thumbnails = this.addThumbnails(view);
    this.drawArcs = showArcs(arcs, this.labels, (query) => this.chooseQuery(query));
    this.ablation = source && this.allowAblation(root, view, source);
    this.chooseHead = makeChoosable(this.parts.heads, this.thumbnails, view.heads, (head) => {
      this.head = head;
      this.drawChosenHead();
    });
    this.chooseQuery = makeChoosable(
      text,
      this.tokens,
      this.size,
      (query, key = this.heads.strongestKey(this.head, query)) => this.chooseCell(query, key),
      (key) => this.point(key === null ? null : { query: this.query, key })
    );
    this.listen();
    this.setCellSize(Math.min(28, Math.max(4, Math.floor((box.clientWidth - 48) / this.size)))); // all of it in sight
    drawInTheme(root, () => this.draw());
    this.chooseHead(this.head);
    this.chooseQuery(this.query);
  }

  addTick(axis, label) {
    const tick = create("span", label.length > 1 ? "long" : "", label);
    axis.append(tick);
    return tick;
  }

  addThumbnails({ layers, heads }) {
    const grid = this.parts.heads;
    grid.style.setProperty("--heads", heads);
    grid.append(create("span"), ...Array.from({ length: heads }, (_, head) => create("span", "", head)));
    const buttons = Array.from({ length: layers * heads }, (_, head) =>
      createButton("thumbnail", create("canvas"), null, this.heads.nameOf(head))
    );
    buttons.forEach((button, head) => {
      if (head % heads === 0) grid.append(create("span", "", head / heads));
      grid.append(button);
    });
    return buttons;
  }

  allowAblation(root, view, source) {
    const { ablation: section, ablate, heads } = this.parts;
    for (const element of [section, ...root.querySelectorAll(".ablation-hint")]) element.hidden = false;
    const ablation = showAblation(section, view, source, {
      marked: (ablated) => this.markAblated(ablated.map(([layer, head]) => layer * view.heads + head)),
      changed: (changed) => {
        this.heads = new Heads(changed);
        this.draw();
      },
    });
    const toggle = () => ablation.toggle(Math.floor(this.head / view.heads), this.head % view.heads);
    ablate.addEventListener("change", toggle);
    heads.addEventListener("keydown", (event) => event.key.toLowerCase() === "x" && toggle());
    return ablation;
  }

  markAblated(ablated) {
    this.thumbnails.forEach((button, head) => {
      const isAblated = ablated.includes(head);
      button.classList.toggle("ablated-head", isAblated);
      button.setAttribute("aria-label", this.heads.nameOf(head) + (isAblated ? ", ablated" : ""));
    });
    this.showWhetherAblated();
  }

  showWhetherAblated() {
    this.parts.ablate.checked = this.thumbnails[this.head].classList.contains("ablated-head");
  }

  listen() {
    const { plot, zoom, stretch } = this.parts;
    plot.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse") this.point(this.cellAt(event));
    });
    plot.addEventListener("pointerleave", () => this.point(null));
    plot.addEventListener("click", (event) => {
      const { query, key } = this.cellAt(event);
      this.chooseQuery(query, key);
    });
    plot.addEventListener("keydown", (event) => {
      const step = keyIn(STEPS, event);
      if (!step) return;
      event.preventDefault();
      this.chooseQuery(within(this.query + step[0], this.size - 1), within(this.key + step[1], this.size - 1));
    });
    zoom.addEventListener("input", () => {
      this.setCellSize(Number(zoom.value));
      this.reveal();
    });
    stretch.addEventListener("change", () => this.draw());
  }

  shareOf(weight) {
    return this.parts.stretch.checked ? Math.sqrt(weight) : weight;
  }

  /** Draws all that depends on the colors or on the weights. */
  draw() {
    const step = Math.ceil(this.size / THUMBNAIL);
    const inks = this.inks();
    this.thumbnails.forEach((button, head) => this.drawHead(button.firstChild, head, step, inks));
    const ticks = this.parts.stretch.checked ? [0, 0.02, 0.1, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
    drawLegend(
      this.parts.legend,
      "weight",
      ticks.map((weight) => [this.shareOf(weight), String(weight)])
    );
    this.drawChosenHead();
    this.ablation?.draw();
  }

  inks() {
    return Array.from({ length: 256 }, (_, share) => [...colorOf(share / 255), 255]);
  }

  /** Draws the lower triangle, the largest of `step` x `step` weights to a pixel so that thin lines stay. */
  drawHead(canvas, head, step, inks) {
    const side = Math.ceil(this.size / step);
    const largest = new Float32Array(side * side).fill(-1);
    for (let query = 0; query < this.size; query++) {
      const row = Math.floor(query / step) * side;
      this.heads.row(head, query).forEach((weight, key) => {
        const pixel = row + Math.floor(key / step);
        largest[pixel] = Math.max(largest[pixel], weight);
      });
    }
    const image = new ImageData(side, side);
    largest.forEach((weight, pixel) => {
      if (weight >= 0) image.data.set(inks[Math.round(255 * this.shareOf(weight))], 4 * pixel);
    });
    canvas.width = canvas.height = side;
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  drawChosenHead() {
    const { matrixTitle, summary, plot, canvas } = this.parts;
    const { itself, previous, first, distance, entropy } = this.heads.summarize(this.head);
    const name = this.heads.nameOf(this.head);
    matrixTitle.textContent = name.replace("l", "L");
    summary.textContent =
      `Average weight on the previous token ${decimals(previous)}, on itself ${decimals(itself)}, ` +
      `on the first ${decimals(first)}; it looks back ${distance.toFixed(1)} positions, ` +
      `with an entropy of ${entropy.toFixed(1)} bits.`;
    plot.setAttribute("aria-label", `weights of ${name}; the arrow keys move through them`);
    this.drawHead(canvas, this.head, 1, this.inks());
    this.showWhetherAblated();
    this.showCell();
  }

  chooseCell(query, key) {
    Object.assign(this, { query, key, pointed: null });
    this.showCell();
    this.reveal();
  }

  point(cell) {
    this.pointed = cell;
    this.showCell();
  }

  /** Shows the cell under the mouse, or else the chosen one. */
  showCell() {
    const { query, key } = this.pointed ?? this;
    const { plot, readout, arcs } = this.parts;
    const row = this.heads.row(this.head, query);
    plot.style.setProperty("--query", query);
    plot.style.setProperty("--key", key);
    this.ticks.forEach((ticks, axis) => {
      ticks.forEach((tick, index) => tick.classList.toggle("on", index === [query, key][axis]));
    });
    const [from, to] = [query, key].map((index) => `${quoted(this.labels[index])} (${index})`);
    readout.textContent = `from ${from} to ${to}: ${key > query ? "hidden, it comes later" : decimals(row[key])}`;
    this.tokens.forEach((token, index) => {
      if (index <= query) paint(token, this.shareOf(row[index]));
      else unpaint(token);
      token.classList.toggle("later", index > query);
      token.classList.toggle("looking", index === query);
      token.classList.toggle("pointed", index === key);
    });
    this.drawArcs(query, row);
    arcs.setAttribute("aria-label", `arcs from ${from} to what it attends to`);
  }

  /** Scrolls the matrix, and never the page, until the chosen cell is in sight. */
  reveal() {
    const { plot, box, queries, keys } = this.parts;
    const mark = plot.querySelector(".cell-mark").getBoundingClientRect();
    const frame = box.getBoundingClientRect();
    const [left, top] = [frame.left + queries.offsetWidth, frame.top + keys.offsetHeight];
    const [right, bottom] = [frame.left + box.clientWidth, frame.top + box.clientHeight];
    box.scrollLeft += Math.min(0, mark.left - left) + Math.max(0, mark.right - right);
    box.scrollTop += Math.min(0, mark.top - top) + Math.max(0, mark.bottom - bottom);
  }

  setCellSize(pixels) {
    const { matrix, zoom } = this.parts;
    matrix.style.setProperty("--cell", `${pixels}px`);
    matrix.classList.toggle("unlabelled", pixels < 9);
    zoom.value = pixels;
  }

  cellAt(event) {
    const { left, top, width, height } = this.parts.plot.getBoundingClientRect();
    const along = (offset, length) => within(Math.floor((offset / length) * this.size), this.size - 1);
    return { query: along(event.clientY - top, height), key: along(event.clientX - left, width) };
  }
}
