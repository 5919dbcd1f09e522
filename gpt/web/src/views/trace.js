import { drawInTheme, drawLegend, signedColorOf } from "../colors.js";
import { create, createButton, fill } from "../dom.js";
import { makeChoosable } from "../tokens.js";
import { createRow } from "./lens.js";
import template from "./trace.html";

const AXES = {
  B: "texts of the batch",
  T: "positions of the text",
  S: "positions that are looked at",
  C: "width of the stream",
  H: "heads",
  K: "key and value heads",
  D: "width of a head",
  F: "hidden units",
  V: "different tokens",
};

/**
 * The `operations` of a forward pass, as gpt/inspection/views has them. Opens on attention weights. Returns
 * `choose(params)`, which chooses the `operation` of an address by its name.
 */
export function showTrace(root, { operations }) {
  const parts = fill(root, template);
  const items = operations.map(createItem);
  const readers = operations.map(() => []);
  operations.forEach(({ inputs }, number) => inputs.forEach((input) => readers[input].push(number)));
  let chosen = 0;

  function choose(number) {
    chosen = number;
    const operation = operations[number];
    items.forEach((item, index) => {
      item.setAttribute("aria-selected", String(index === number));
      item.classList.toggle("is-input", operation.inputs.includes(index));
      item.classList.toggle("is-reader", readers[number].includes(index));
    });
    parts.title.textContent = operation.name;
    parts.about.textContent = operation.about;
    const facts = factsOf(operation, operation.inputs.map(createLink), readers[number].map(createLink));
    parts.facts.replaceChildren(...facts.filter(([, value]) => value.length).map(createFact));
    drawHeat(parts, operation);
  }

  function createLink(number) {
    return createButton("link", operations[number].about, () => {
      pick(number);
      items[number].focus();
    });
  }

  const letters = new Set(operations.flatMap(({ axes }) => axes.split(/[ *]/)));
  const axes = Object.entries(AXES).filter(([axis]) => letters.has(axis));
  parts.axes.textContent = axes.map(([axis, about]) => `${axis} ${about}`).join(" · ");
  let group = null;
  items.forEach((item, number) => {
    const title = groupOf(operations, number);
    if (title !== group) parts.list.append(create("div", "group", title));
    group = title;
    parts.list.append(item);
  });
  const pick = makeChoosable(parts.list, items, 1, choose);

  function pickFirst(isMeant) {
    const number = operations.findIndex(isMeant);
    if (number < 0) return;
    pick(number);
    parts.list.scrollTop = items[number].offsetTop - parts.list.offsetTop - parts.list.clientHeight / 2;
  }

  pick(0);
  pickFirst(({ about }) => about.startsWith("attention weights"));
  drawInTheme(root, () => drawHeat(parts, operations[chosen]));
  return (params) => pickFirst(({ name }) => name === params.get("operation"));
}

/** Operations that are in no block stand before the blocks, or after them. */
function groupOf(operations, number) {
  const { layer } = operations[number];
  if (layer !== null) return `Block ${layer}`;
  return operations.slice(0, number).some((other) => other.layer !== null) ? "After the blocks" : "Before the blocks";
}

function createItem({ about, shape, axes, is_view: isView }) {
  const words = [create("span", "about", about), create("span", "shape", namedShape(axes, shape))];
  const item = create("div", isView ? "operation is-view" : "operation", ...words);
  item.setAttribute("role", "option");
  return item;
}

/** Names and values; empty ones say nothing. */
function factsOf(operation, inputs, readers) {
  const { axes, shape, dtype, bytes, is_view: isView, flops, source, statistics: values, parameters } = operation;
  const count = (amount) => amount.toLocaleString("en");
  const isMeasured = values && values.mean !== null;
  return [
    ["shape", `${namedShape(axes, shape)} ${dtype}`],
    ["module", operation.module || "the model itself"],
    ["file", source],
    ["reads", inputs],
    ["read by", readers],
    ...parameters.map((use) => ["parameter", `${use.name}, ${namedShape(use.axes, use.shape)}`]),
    ["bytes", isView ? `${count(bytes)}, shared with what it reads` : count(bytes)],
    ["FLOPs", flops ? count(flops) : ""],
    ["mean, std", isMeasured ? `${rounded(values.mean)}, ${rounded(values.std)}` : ""],
    ["min, max", isMeasured ? `${rounded(values.min)}, ${rounded(values.max)}` : ""],
    ["not finite", values?.infinite ? `${count(values.infinite)} values` : ""],
  ];
}

function createFact([name, value]) {
  const words = [value].flat().flatMap((part, index) => (index ? [", ", part] : [part]));
  return createRow(name, [create("td", "", ...words)]);
}

function drawHeat({ heat: figure, canvas, caption, legend }, { heat, shape }) {
  figure.hidden = legend.hidden = !heat;
  if (!heat) return;
  const { rows, columns, scale } = heat;
  const cells = atob(heat.cells);
  const image = new ImageData(columns, rows);
  for (let index = 0; index < cells.length; index++) {
    const step = cells.charCodeAt(index);
    if (step > 0) image.data.set([...signedColorOf((step - 128) / 127), 255], 4 * index);
  }
  Object.assign(canvas, { width: columns, height: rows });
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.style.aspectRatio = `${columns} / ${rows}`;
  canvas.style.maxWidth = `${Math.min(columns * 16, Math.round((columns / rows) * 320))}px`;
  caption.textContent = describeHeat(shape, heat);
  const ticks = [
    [0, rounded(-scale)],
    [0.5, "0"],
    [1, rounded(scale)],
  ];
  drawLegend(legend, "value", ticks, (share) => signedColorOf(2 * share - 1));
}

function describeHeat(shape, { rows, columns, height, width }) {
  const others = shape.slice(0, -2);
  const slice = `[${[...others.map(() => 0), ":", ":"].join(", ")}]`;
  const isPart = others.some((size) => size > 1);
  const part = isPart ? `The first ${height} × ${width} of its values, ${slice}` : "Its values";
  const mean = `; a cell is the mean of about ${Math.round((height * width) / (rows * columns))}`;
  const pooled = rows < height || columns < width ? mean : "";
  return `${part}, rows down and columns across${pooled}. Nothing is drawn where a value is not finite.`;
}

/** A shape with the names of its axes, such as B 1 × T 16 × C 64. */
function namedShape(axes, shape) {
  const names = axes.split(" ");
  return shape.map((size, axis) => (names[axis] === String(size) ? size : `${names[axis]} ${size}`)).join(" × ");
}

/** Four significant digits. */
function rounded(value) {
  return String(Number(value.toPrecision(4)));
}
