import { drawInTheme, paint, unpaint } from "../colors.js";
import { create, createButton, fill, keyIn, within } from "../dom.js";
import { drawBars, makeChoosable, percent, unitOf } from "../tokens.js";
import template from "./picture.html";
import { drawArcs, drawStrip, mixInks } from "./picture_drawing.js";
import { Numbers } from "./picture_numbers.js";
import { describeParts } from "./picture_parts.js";

let temperature = 1; // chosen in any picture of this page
const PAUSE = 500; // milliseconds after ↑ or ↓, whose focus may scroll the page

/** Draws a model as one picture. */
export function showPicture(root, view, source = null) {
  new Picture(root, view, source);
}

class Picture {
  constructor(root, view, source) {
    this.view = view;
    this.source = view.goOn ? source : null;
    this.numbers = new Numbers(view);
    this.token = view.isAtEnd ? view.ids.length - 1 : mostDebated(view.lens);
    root.classList.toggle("flowing", Boolean(view.isAtEnd));
    this.shown = []; // parts with their elements
    this.parts = fill(root, template);
    this.build();
    this.pickToken = makeChoosable(this.parts.line, this.tokens, Infinity, (token) => this.chooseToken(token));
    const items = this.shown.map(({ item }) => item);
    const choose = (index) => {
      this.chosen = index;
      const block = items[index].closest("details");
      if (block) block.open = true;
      this.explain(index);
    };
    this.pickPart = makeChoosable(this.parts.flow, items, 1, choose);
    this.listen();
    this.stage = this.stages[0];
    drawInTheme(root, () => this.pickToken(this.token));
    this.pickPart(0);
    this.watchParts();
  }

  build() {
    const { before, blocks, after } = describeParts(this.numbers, unitOf(this.view));
    const { line, flow } = this.parts;
    this.tokens = this.view.labels.map((label) => Object.assign(create("span", "token", label), { role: "button" }));
    line.append(...this.tokens);
    this.bars = create("ol", "bars");
    this.stages = [
      this.createStage(0, "text", ...before.map((part) => this.createRow(part))),
      ...blocks.map((block, layer) => this.createBlock(block, layer)),
      this.createStage(
        blocks.length,
        "logits",
        ...after.map((part) => this.createRow(part)),
        this.bars,
        ...this.ending()
      ),
    ];
    flow.append(...this.stages);
  }

  createStage(row, name, ...children) {
    const stage = create("section", "picture-stage", ...children);
    Object.assign(stage.dataset, { row, name });
    stage.style.setProperty("--row", row);
    stage.setAttribute("aria-label", name);
    return stage;
  }

  createBlock({ parameters, attention, middle, mlp, stream }, layer) {
    const summary = create("summary", "", create("b", "", `Block ${layer}`), create("span", "note", parameters));
    const block = create(
      "details",
      "block",
      summary,
      this.createBranch(attention),
      this.createRow(middle),
      this.createBranch(mlp)
    );
    return this.createStage(layer, `block ${layer}`, block, this.createRow(stream));
  }

  /** A way out of the stream and back, with the heads as tiles below attention. */
  createBranch(parts) {
    const tiles = create("div", "head-tiles");
    const branch = create("div", "branch");
    for (const part of parts) {
      if (part.kind === "head") tiles.append(this.createHead(part));
      else branch.append(this.createRow(part));
      if (part.kind === "attention") branch.append(tiles);
    }
    return branch;
  }

  /** What chooses the next token after the place in the text: its temperature, and a button that appends it. */
  ending() {
    if (!this.source) return [];
    const slider = Object.assign(create("input"), { type: "range", min: 0, max: 2, step: 0.05, value: temperature });
    const value = create("output", "note", temperature);
    slider.addEventListener("input", () => {
      temperature = Number(slider.value);
      value.textContent = slider.value;
      this.sample();
    });
    const goOn = createButton("", "Go on", async () => this.view.goOn(await this.sample()));
    return [create("div", "ending", create("label", "", "Temperature ", slider, " ", value), goOn)];
  }

  /** Draws the probabilities at the temperature; returns the text so far, and what is sampled after it. */
  async sample() {
    const { token, source, view } = this;
    const [prompt, chosen, written] = [view.ids.slice(0, token + 1), temperature, []];
    const take = (tokens) => written.push(...tokens);
    await source.write({ model: view.model, prompt, count: 1, temperature, seed: token }, take);
    const { id, sampled } = written.at(-1);
    const isStill = token === this.token && temperature === chosen;
    const entries = sampled.map(([, ...entry]) => entry);
    if (isStill) drawBars(this.bars, entries, (index) => (sampled[index][0] === id ? "chosen" : ""));
    return written.map(({ text }) => text).join("");
  }

  /** A row of the picture: a button with name and shape, what is drawn, and figures. */
  createRow(part) {
    const value = create("span", "value");
    const guess = part.guess ? create("span", "guess") : null;
    const drawn = part.vector ? create("canvas", "strip") : create("span", "middle", part.middle ?? "");
    const row = createButton(`part ${part.kind}`, "", () => {});
    row.append(
      create("span", "node"),
      create("span", "name", part.name, create("span", "note", part.shape)),
      drawn,
      create("span", "figures", guess ?? value, create("span", "note", ...(guess ? [value] : [part.note])))
    );
    this.shown.push({ part, item: row, value, guess, drawn });
    return row;
  }

  createHead(part) {
    const [value, drawn] = [create("span", "note"), create("canvas", "arcs-of-head")];
    const tile = createButton("head", "", () => {});
    tile.append(create("span", "name", part.name), drawn, value);
    this.shown.push({ part, item: tile, value, drawn });
    return tile;
  }

  createCell(index) {
    const { labels, ids } = this.view;
    return create("span", index === this.token ? "id chosen" : "id", labels[index], create("span", "note", ids[index]));
  }

  /** Arrow keys choose another token wherever the reader is. */
  listen() {
    const { flow } = this.parts;
    const move = (by) => this.pickToken(within(this.token + by, this.tokens.length - 1));
    const keys = { ArrowLeft: -1, ArrowRight: 1 };
    flow.addEventListener(
      "keydown",
      (event) => {
        const by = keyIn(keys, event);
        if (!by) return;
        event.preventDefault();
        event.stopPropagation();
        move(by);
      },
      { capture: true }
    );
    for (const block of flow.querySelectorAll("details")) block.addEventListener("toggle", () => this.draw());
  }

  /** Tells the story while the page scrolls: explains the part that passes a line across the window. */
  watchParts() {
    let [isFirst, movedAt] = [true, -Infinity];
    const { flow } = this.parts;
    flow.addEventListener("keydown", (event) => {
      if (["ArrowUp", "ArrowDown"].includes(event.key)) movedAt = performance.now();
    });
    const places = new Map(this.shown.map(({ item }, index) => [item, index]));
    places.set(this.stages.at(-1), this.shown.length - 1); // what follows the last part belongs to it
    const pass = (entries) => {
      if (isFirst) {
        isFirst = false; // nobody has scrolled yet
        return;
      }
      const there = entries.filter(({ isIntersecting }) => isIntersecting).map(({ target }) => target);
      const stage = there.find((target) => this.stages.includes(target));
      const part = there.filter((target) => places.has(target)).at(-1);
      if (stage) this.showStage(stage);
      if (part && performance.now() - movedAt > PAUSE) this.pickPart(places.get(part));
    };
    // Not the window: in a frame that would be another page's, of which a browser may tell nothing.
    const root = getComputedStyle(flow).overflowY === "auto" ? flow : document;
    const observer = new IntersectionObserver(pass, { root, rootMargin: "-45% 0px -55% 0px" });
    for (const element of [...this.stages, ...places.keys()]) observer.observe(element);
  }

  showStage(stage) {
    this.stage = stage;
    const { row, name } = stage.dataset;
    this.parts.stage.textContent = stage === this.stages.at(-1) ? name : `guess after ${name}`;
    showGuess(this.parts.guess, this.view.lens[row][this.token]);
  }

  chooseToken(token) {
    this.token = token;
    const { line } = this.parts;
    this.tokens.forEach((item, index) => item.classList.toggle("later", index > token));
    const item = this.tokens[token];
    line.scrollLeft = item.offsetLeft - (line.clientWidth - item.offsetWidth) / 2;
    this.draw();
    if (this.chosen !== undefined) this.explain(this.chosen);
  }

  draw() {
    const { token, numbers } = this;
    const inks = mixInks();
    for (const { part, item, value, guess, drawn } of this.shown) {
      const block = item.closest("details");
      if (block && !block.open) continue;
      value.textContent = part.value(token);
      if (part.vector) drawStrip(drawn, part.vector(token), inks);
      if (part.weights) drawArcs(drawn, part.weights(token), numbers.size, inks);
      if (part.tokens) drawn.replaceChildren(...part.tokens(token).map((index) => this.createCell(index)));
      if (guess) showGuess(guess, part.guess(token));
    }
    this.showStage(this.stage);
    const [candidates, came] = [this.view.top[token], this.view.labels[token + 1]];
    drawBars(this.bars, candidates, (index) => (candidates[index][0] === came ? "came" : ""));
    if (this.source && temperature !== 1) this.sample();
  }

  explain(index) {
    const { part, item } = this.shown[index];
    const { title, about } = this.parts;
    const block = item.closest(".picture-stage").dataset.name;
    title.textContent = part.title ?? (item.closest("details") ? `${part.name}, ${block}` : part.name);
    about.textContent = part.about(this.token);
    const inks = part.pair && mixInks();
    const rows = (part.pair?.(this.token) ?? []).map(([name, vector]) => {
      const canvas = create("canvas", "strip");
      drawStrip(canvas, vector, inks);
      return create("div", "", create("span", "note", name), canvas);
    });
    this.parts.pair.replaceChildren(...rows);
    const weights = part.weights?.(this.token) ?? [];
    this.tokens.forEach((token, key) => {
      if (key < weights.length) paint(token, Math.sqrt(weights[key]));
      else unpaint(token);
    });
  }
}

/** The last of the places at which the guess changes most often from block to block. */
function mostDebated(lens) {
  const guesses = lens[0].map((_, token) => new Set(lens.map((row) => row[token][0])).size);
  return guesses.lastIndexOf(Math.max(...guesses));
}

/** Shows a token as a tile in the color of its probability. */
function showGuess(element, [label, probability]) {
  const tile = create("span", "tile", label);
  paint(tile, probability);
  element.replaceChildren(tile, percent(probability));
}
