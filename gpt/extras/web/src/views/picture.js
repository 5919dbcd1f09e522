import { drawInTheme, paint, unpaint } from "../colors.js";
import { create, createButton, fill, keyIn, within } from "../dom.js";
import { textOf } from "../marks.js";
import { drawBars, makeChoosable, percent, quoted, unitOf } from "../tokens.js";
import { measureHeads, mostTelling } from "./kinds.js";
import template from "./picture.html";
import { drawArcs, drawStrip, drawWideArcs, mixInks } from "./picture_drawing.js";
import { Numbers } from "./picture_numbers.js";
import { describeParts } from "./picture_parts.js";
import { Tour } from "./tour.js";

// as they were chosen last, in any picture of this page
let temperature = 1;
const openBlocks = new Set([0]);
// milliseconds after ↑ or ↓ in which scrolling, which the new focus may cause, chooses no part
const PAUSE = 500;
// heads of these kinds look far back, so that their arcs are wide
const FAR_KINDS = ["duplicate", "induction", "line start", "word start"];

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
    this.shown = []; // the parts of the model with their elements
    this.sampled = null; // the most likely token at another temperature than 1, once it is known
    this.measured = measureHeads(this.numbers.heads, view.labels);
    this.looking = []; // for each block, the drawing of the head in it that looks back
    // a button that is replaced by a new one gives it the focus
    const hadFocus = root.contains(document.activeElement) && isGoOn(document.activeElement);
    this.parts = fill(root, template);
    this.build();
    this.pickToken = makeChoosable(this.parts.line, this.tokens, Infinity, (token) =>
      this.chooseToken(token)
    );
    const items = this.shown.map(({ item }) => item);
    const choose = (index) => {
      this.chosen = index;
      const block = items[index].closest("details");
      if (block) block.open = true;
      this.explain(index);
    };
    this.pickPart = makeChoosable(this.parts.flow, items, 1, choose);
    this.listen();
    // a reader who lets the model go on looks at its end
    this.stage = this.stages.at(view.isAtEnd ? -1 : 0);
    drawInTheme(root, () => this.pickToken(this.token));
    this.pickPart(view.isAtEnd ? this.shown.length - 1 : 0);
    this.tour = new Tour(this.parts, view, unitOf(view), (name) => this.showCard(name));
    this.watchParts();
    new ResizeObserver(() => this.drawLooking()).observe(this.parts.flow);
    if (hadFocus) this.goOn?.focus({ preventScroll: true });
  }

  /**
   * Creates the line of tokens, and the stages: what comes before the blocks, each block, and what
   * comes after them.
   */
  build() {
    const { before, blocks, after } = describeParts(this.numbers, unitOf(this.view));
    const { line, flow, outcome } = this.parts;
    this.tokens = this.view.labels.map((label) =>
      Object.assign(create("span", "token", label), { role: "button" })
    );
    line.append(...this.tokens);
    this.bars = create("ol", "bars");
    // in the order of the model, in which `createRow` and `createHead` number the parts
    const text = this.createStage(0, 0, "text", ...before.map((part) => this.createRow(part)));
    const blockStages = blocks.map((block, layer) => this.createBlock(block, layer));
    const logits = this.createStage(
      blocks.length + 1,
      blocks.length, // the same as after the last block
      "logits",
      ...after.map((part) => this.createRow(part))
    );
    // In a frame the parts scroll by themselves, and the bars would be out of sight below them.
    const isFramed = document.body.classList.contains("framed");
    outcome.hidden = !isFramed;
    const place = isFramed ? outcome : logits;
    place.append(this.bars);
    if (this.source) logits.append(this.createEnding());
    this.stages = [text, ...blockStages, logits];
    flow.append(...this.stages);
  }

  /**
   * Creates a part of the page, the one at a place in the order of the model; `row` is that of the
   * lens, whose guess is shown while the stage is in sight.
   */
  createStage(place, row, name, ...children) {
    const stage = create("section", "picture-stage", ...children);
    Object.assign(stage.dataset, { row, name });
    stage.style.setProperty("--place", place);
    stage.setAttribute("aria-label", name);
    return stage;
  }

  createBlock({ parameters, attention, middle, mlp, stream }, layer) {
    const summary = create(
      "summary",
      "",
      create("b", "", `Block ${layer}`),
      create("span", "note", parameters)
    );
    const block = create(
      "details",
      "block",
      summary,
      this.createBranch(attention),
      this.createRow(middle),
      this.createBranch(mlp)
    );
    block.open = openBlocks.has(layer);
    block.addEventListener("toggle", () => {
      if (block.open) openBlocks.add(layer);
      else openBlocks.delete(layer);
      this.draw();
    });
    const row = layer + 1; // row 0 is that of the embeddings
    return this.createStage(row, row, `block ${layer}`, block, this.createRow(stream));
  }

  /**
   * Creates a branch, which leaves the stream and comes back to it, with the heads as tiles below
   * attention.
   */
  createBranch(parts) {
    const tiles = create("div", "head-tiles");
    const branch = create("div", "branch");
    for (const part of parts) {
      if (part.kind === "head") tiles.append(this.createHead(part));
      else branch.append(this.createRow(part));
      if (part.kind === "attention") branch.append(tiles, this.createLooking(part.layer));
    }
    return branch;
  }

  /**
   * Creates the drawing of one head of a layer over the full width, at first the most telling of
   * those that look far back.
   */
  createLooking(layer) {
    const { heads } = this.numbers;
    const inLayer = Array.from({ length: heads.heads }, (_, head) => layer * heads.heads + head);
    const far = inLayer.filter((head) => FAR_KINDS.includes(this.measured[head].kind));
    const head = mostTelling(this.measured, far.length > 0 ? far : inLayer) % heads.heads;
    const caption = create("p", "hint");
    const canvas = create("canvas", "wide-arcs");
    canvas.setAttribute("role", "img");
    const figure = create("div", "looking-head", caption, canvas);
    this.looking.push({ layer, head, figure, caption, canvas });
    return figure;
  }

  /**
   * Creates what samples the next token: a slider for the temperature, and a button that appends
   * the token.
   */
  createEnding() {
    const slider = Object.assign(create("input"), {
      type: "range",
      min: 0,
      max: 2,
      step: 0.05,
      value: temperature,
    });
    const value = create("output", "note", temperature);
    slider.addEventListener("input", () => {
      temperature = Number(slider.value);
      this.sampled = null;
      value.textContent = slider.value;
      this.sample();
    });
    this.goOn = createButton("go-on", "Go on", async () => this.view.goOn(await this.sample()));
    const label = create("label", "", "Temperature ", slider, " ", value);
    return create("div", "ending actions", label, this.goOn);
  }

  /**
   * Samples the next token, and draws its probabilities at the temperature; returns the text with
   * this token.
   */
  async sample() {
    const { token, source, view } = this;
    const prompt = view.ids.slice(0, token + 1);
    const asked = temperature;
    const written = []; // the tokens of the prompt, and the next one
    const take = (tokens) => written.push(...tokens);
    await source.write({ model: view.model, prompt, count: 1, temperature, seed: token }, take);
    const { id, sampled } = written.at(-1);
    // nothing else was chosen in the meantime
    const isCurrent = token === this.token && temperature === asked;
    const bars = sampled.map(([, label, probability]) => [label, probability]);
    if (isCurrent) {
      drawBars(this.bars, bars, (index) => (sampled[index][0] === id ? "chosen" : ""));
      this.sampled = temperature === 1 ? null : bars[0];
      this.showStage(this.stage);
    }
    return textOf(written, source.begin);
  }

  /** Creates a row of the picture: a button with name and shape, what is drawn, and figures. */
  createRow(part) {
    const value = create("span", "value");
    const guess = part.guess ? create("span", "guess") : null;
    const drawn = part.vector
      ? create("canvas", "strip")
      : create("span", "middle", part.middle ?? "");
    // the guess, where there is one, takes the place of the value, which takes that of the note
    const figures = guess
      ? create("span", "figures", guess, create("span", "note", value))
      : create("span", "figures", value, create("span", "note", part.note));
    const row = createButton(`part ${part.kind}`, "", () => {});
    const name = create("span", "name", part.name, create("span", "note", part.shape));
    row.append(create("span", "node"), name, drawn, figures);
    this.shown.push({ part, item: row, value, guess, drawn });
    return row;
  }

  /** Creates the tile of a head, on which its attention is drawn as arcs. */
  createHead(part) {
    const value = create("span", "note");
    const drawn = create("canvas", "arcs-of-head");
    const tile = createButton("head", "", () => {});
    tile.append(create("span", "name", part.name), drawn, value);
    this.shown.push({ part, item: tile, value, drawn });
    return tile;
  }

  /** Creates the cell of a token with its id. */
  createCell(index) {
    const { labels, ids } = this.view;
    const className = index === this.token ? "id chosen" : "id";
    return create("span", className, labels[index], create("span", "note", ids[index]));
  }

  /** Lets ← and → choose another token wherever the focus is. */
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
      { capture: true } // before the handler of the parts, which has these keys, too
    );
  }

  /**
   * Explains, while the reader scrolls, the part that passes a line across the window, a little
   * above its middle.
   */
  watchParts() {
    let isFirst = true;
    let movedAt = -Infinity; // when an arrow key was pressed last
    const { flow } = this.parts;
    flow.addEventListener("keydown", (event) => {
      if (["ArrowUp", "ArrowDown"].includes(event.key)) movedAt = performance.now();
    });
    const indices = new Map(this.shown.map(({ item }, index) => [item, index]));
    // what follows the last part belongs to it
    indices.set(this.stages.at(-1), this.shown.length - 1);
    const pass = (entries) => {
      if (isFirst) {
        isFirst = false; // an observer calls once at the start, when nobody has scrolled yet
        return;
      }
      const passing = entries
        .filter(({ isIntersecting }) => isIntersecting)
        .map(({ target }) => target);
      const stage = passing.find((target) => this.stages.includes(target));
      if (stage) this.showStage(stage);
      const part = passing.filter((target) => indices.has(target)).at(-1);
      const isScrolledByKey = performance.now() - movedAt <= PAUSE;
      if (!part || isScrolledByKey || this.tour.isOnTheWay) return;
      const index = indices.get(part);
      const { kind, layer } = this.shown[index].part;
      // of the heads, which stand side by side, the one that is drawn
      this.pickPart(kind === "head" ? this.indexOfDrawnHead(layer) : index);
    };
    // The document, not the default, which is the window of the topmost page: if this page is in a
    // frame of another site, a browser tells nothing of that.
    const root = getComputedStyle(flow).overflowY === "auto" ? flow : document;
    const observer = new IntersectionObserver(pass, { root, rootMargin: "-45% 0px -55% 0px" });
    for (const element of [...this.stages, ...indices.keys()]) observer.observe(element);
  }

  /** Shows what the model would expect if it ended after a stage. */
  showStage(stage) {
    this.stage = stage;
    const { row, name } = stage.dataset;
    const isLast = stage === this.stages.at(-1);
    const isSampled = isLast && this.sampled !== null;
    let words = isLast ? name : `guess after ${name}`;
    if (isSampled) words += ` at temperature ${temperature}`;
    this.parts.stage.textContent = words;
    showGuess(this.parts.guess, isSampled ? this.sampled : this.view.lens[row][this.token]);
  }

  chooseToken(token) {
    this.token = token;
    this.sampled = null;
    const { line } = this.parts;
    this.tokens.forEach((item, index) => item.classList.toggle("later", index > token));
    const item = this.tokens[token];
    line.scrollLeft = item.offsetLeft - (line.clientWidth - item.offsetWidth) / 2;
    this.draw();
    if (this.chosen !== undefined) this.explain(this.chosen);
  }

  /** Draws all that depends on the token or on the colors, but for blocks that are closed. */
  draw() {
    const { token, numbers } = this;
    const inks = mixInks();
    for (const { part, item, value, guess, drawn } of this.shown) {
      const block = item.closest("details");
      if (block && !block.open) continue;
      value.textContent = part.value(token);
      if (part.vector) drawStrip(drawn, part.vector(token), inks);
      if (part.weights) drawArcs(drawn, part.weights(token), numbers.size, inks);
      if (part.tokens)
        drawn.replaceChildren(...part.tokens(token).map((index) => this.createCell(index)));
      if (guess) showGuess(guess, part.guess(token));
    }
    this.drawLooking();
    this.showStage(this.stage);
    const candidates = this.view.top[token];
    const came = this.view.labels[token + 1];
    drawBars(this.bars, candidates, (index) => (candidates[index][0] === came ? "came" : ""));
    if (this.source && temperature !== 1) this.sample();
  }

  /** Draws, of each block that is open, one head over the full width. */
  drawLooking() {
    const inks = mixInks();
    for (const { layer, head, figure, caption, canvas } of this.looking) {
      if (!figure.closest("details").open) continue;
      const { labels } = this.view;
      const weights = this.numbers.weightsOf(layer, head, this.token);
      const most = this.numbers
        .strongest(layer, head, this.token)
        .map(([key, weight]) => `${quoted(labels[key])} with ${percent(weight)}`);
      caption.textContent = `Head ${head} looks back from ${quoted(labels[this.token])} to ${most.join(", ")}`;
      canvas.setAttribute("aria-label", `the weights of head ${head} as arcs`);
      drawWideArcs(canvas, labels, weights, inks);
    }
  }

  /** The index of the part whose head is drawn over the full width of a layer's block. */
  indexOfDrawnHead(layer) {
    const { head } = this.looking[layer];
    return this.shown.findIndex(({ part }) => part.layer === layer && part.head === head);
  }

  /**
   * Chooses the part that a card of the tour is about; returns the element to scroll to, which has
   * more to show than the part where that is a head or the logits.
   */
  showCard(name) {
    const isHead = name === "head";
    const index = isHead
      ? this.indexOfDrawnHead(0)
      : this.shown.findIndex(({ part }) => part.card === name);
    const { item } = this.shown[index];
    this.pickPart(index);
    this.showStage(item.closest(".picture-stage"));
    if (isHead) return this.looking[0].figure;
    return name === "bars" ? this.bars : item;
  }

  /**
   * Shows what a part does with the token, the two vectors that a head compares, and its weights on
   * the line of tokens.
   */
  explain(index) {
    const { part, item } = this.shown[index];
    const { title, about, pair } = this.parts;
    if (part.kind === "head" && this.looking[part.layer].head !== part.head) {
      this.looking[part.layer].head = part.head;
      this.drawLooking();
    }
    const stage = item.closest(".picture-stage").dataset.name;
    const isInBlock = item.closest("details") !== null;
    title.textContent = part.title ?? (isInBlock ? `${part.name}, ${stage}` : part.name);
    about.textContent = part.about(this.token);
    pair.replaceChildren();
    if (part.pair) {
      const inks = mixInks();
      for (const [name, vector] of part.pair(this.token)) {
        const canvas = create("canvas", "strip");
        drawStrip(canvas, vector, inks);
        pair.append(create("div", "", create("span", "note", name), canvas));
      }
    }
    const weights = part.weights?.(this.token) ?? [];
    this.tokens.forEach((token, key) => {
      if (key < weights.length) paint(token, Math.sqrt(weights[key]));
      else unpaint(token);
    });
  }
}

/** Whether an element appends the next token to the text. */
function isGoOn(element) {
  return element.classList.contains("go-on");
}

/** The last of the tokens after which the model's layers have the most different guesses. */
function mostDebated(lens) {
  const numGuesses = lens[0].map((_, token) => {
    const guesses = new Set(lens.map((row) => row[token][0]));
    return guesses.size;
  });
  return numGuesses.lastIndexOf(Math.max(...numGuesses));
}

/** Shows a token as a tile in the color of its probability. */
function showGuess(element, [label, probability]) {
  const tile = create("span", "tile", label);
  paint(tile, probability);
  element.replaceChildren(tile, percent(probability));
}
