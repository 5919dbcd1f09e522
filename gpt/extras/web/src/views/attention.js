import { colorOf, drawInTheme, drawLegend, paint, unpaint } from "../colors.js";
import { create, createButton, fill } from "../dom.js";
import { makeChoosable, nameOf, percent, unitOf, writeText } from "../tokens.js";
import { showAblation } from "./ablation.js";
import template from "./attention.html";
import { Heads } from "./heads.js";
import { describeKinds, measureHeads, mostTelling } from "./kinds.js";
import { Matrix } from "./matrix.js";

const THUMBNAIL = 96; // pixels of its side, at most
const shareOf = Math.sqrt; // of the colors, by a weight: small ones can be told apart
const TICKS = [0, 0.02, 0.1, 0.25, 0.5, 1].map((weight) => [shareOf(weight), String(weight)]);

/** The attention of `view`; heads can be ablated where it has the `text` and `model` that `source` is to be asked about. */
export function showAttention(root, view, source = null) {
  new AttentionView(root, view, source);
}

/**
 * `view` has `labels` (T), `layers`, `heads`, and `weights` as of `Heads`; where it has a `layer` and a `head`, it opens
 * on that head, else on the most telling one.
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
      const { offsetLeft, offsetWidth } = this.thumbnails[head];
      const box = this.parts.headsBox;
      box.scrollLeft = offsetLeft - box.offsetLeft - (box.clientWidth - offsetWidth) / 2;
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

  measure(view) {
    this.heads = new Heads(view);
    this.measured = measureHeads(this.heads, this.labels);
  }

  /** The most telling head, of one layer, or of one place in each, where these are given. */
  mostTelling({ layer, head }) {
    const isMeant = (given, own) => (given ?? own) === own;
    const all = Array.from({ length: this.heads.count }, (_, index) => index);
    const among = all.filter(
      (index) => isMeant(layer, Math.floor(index / this.view.heads)) && isMeant(head, index % this.view.heads)
    );
    return mostTelling(this.measured, among);
  }

  addThumbnails({ layers, heads }) {
    const grid = this.parts.heads;
    grid.style.setProperty("--heads", heads);
    grid.append(create("span"), ...Array.from({ length: heads }, (_, head) => create("span", "", head)));
    const buttons = Array.from({ length: layers * heads }, () => createButton("thumbnail", create("canvas"), null));
    buttons.forEach((button, head) => {
      button.append(create("span", "kind"));
      if (head % heads === 0) grid.append(create("span", "layer", head / heads));
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
        this.measure(changed);
        this.draw();
      },
    });
    const toggle = () => ablation.toggle(Math.floor(this.head / view.heads), this.head % view.heads);
    ablate.addEventListener("change", toggle);
    heads.addEventListener("keydown", (event) => event.key.toLowerCase() === "x" && toggle());
    return ablation;
  }

  markAblated(ablated) {
    this.thumbnails.forEach((button, head) => button.classList.toggle("ablated-head", ablated.includes(head)));
    this.nameHeads();
    this.showWhetherAblated();
  }

  nameHeads() {
    this.thumbnails.forEach((button, head) => {
      const { kind } = this.measured[head];
      const far = `${this.heads.summarize(head).distance.toFixed(1)} back`; // what tells heads of one kind apart
      const what = kind ? `looks at ${this.kinds[kind]}` : "has no name: no kind of place stands out";
      const isAblated = button.classList.contains("ablated-head");
      const words = [this.heads.nameOf(head), isAblated ? "ablated" : (kind ?? "no name"), far];
      button.lastChild.textContent = `${isAblated ? "ablated" : (kind ?? "mixed")}\n${far}`;
      button.setAttribute("aria-label", words.join(", "));
      button.title = isAblated ? "ablated" : what;
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
      if (weight >= 0) image.data.set(inks[Math.round(255 * shareOf(weight))], 4 * pixel);
    });
    canvas.width = canvas.height = side;
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  drawChosenHead() {
    const { matrixTitle, summary, plot, canvas } = this.parts;
    const name = this.heads.nameOf(this.head);
    const { kind } = this.measured[this.head];
    matrixTitle.textContent = `${name.replace("l", "L")}${kind ? `: ${kind}` : ""}`;
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
    Object.assign(this, { query, key, pointed: null });
    this.showCell();
    this.matrix.reveal();
  }

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
    const [from, to] = [query, key].map((index) => nameOf(this.labels, index));
    readout.textContent = `From ${from} to ${to}: ${key > query ? "hidden, it comes later" : percent(row[key])}`;
    this.tokens.forEach((token, index) => {
      if (index <= query) paint(token, shareOf(row[index]));
      else unpaint(token);
      token.classList.toggle("later", index > query);
      token.classList.toggle("looking", index === query);
      token.classList.toggle("pointed", index === key);
    });
  }
}
