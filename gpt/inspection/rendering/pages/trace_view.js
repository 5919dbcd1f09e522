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
const NEGATIVE = [208, 84, 24]; // the ink of the lowest value; the highest is that of the ramp

/** Fills the elements of trace.html in `root` from the `operations` of a forward pass, as gpt/inspection/views has them. */
function showTrace(root, { operations }) {
  const find = (name) => root.querySelector(`.${name}`);
  const list = find("operations");
  const items = [];
  const readers = operations.map(() => []);
  operations.forEach(({ inputs }, number) => inputs.forEach((input) => readers[input].push(number)));
  let chosen = 0;

  function buildList() {
    let group = null;
    operations.forEach((operation, number) => {
      const title = groupOf(operation, number);
      if (title !== group) list.append(create("div", "group", title));
      group = title;
      const item = buildItem(operation);
      items.push(item);
      list.append(item);
    });
  }

  /** Operations that are in no block stand before the blocks, or after them. */
  function groupOf({ layer }, number) {
    if (layer !== null) return `Block ${layer}`;
    return operations.slice(0, number).some((other) => other.layer !== null) ? "After the blocks" : "Before the blocks";
  }

  function buildItem({ about, shape, axes, is_view: isView }) {
    const item = create("div", isView ? "operation is-view" : "operation");
    item.setAttribute("role", "option");
    item.append(create("span", "about", about), create("span", "shape", namedShape(axes, shape)));
    return item;
  }

  function choose(number) {
    chosen = number;
    const operation = operations[number];
    items.forEach((item, index) => {
      item.setAttribute("aria-selected", index === number);
      item.classList.toggle("is-input", operation.inputs.includes(index));
      item.classList.toggle("is-reader", readers[number].includes(index));
    });
    find("operation-title").textContent = operation.name;
    find("operation-about").textContent = operation.about;
    find("operation-facts").replaceChildren(...factsOf(operation, number).map(buildFact));
    drawHeat(operation);
  }

  function factsOf(operation, number) {
    const { axes, shape, dtype, bytes, is_view: isView, flops, source, statistics: values, parameters, inputs } = operation;
    const count = (amount) => amount.toLocaleString("en");
    const facts = [
      ["shape", `${namedShape(axes, shape)} ${dtype}`],
      ["module", operation.module || "the model itself"],
    ];
    if (source) facts.push(["file", source]);
    facts.push(["reads", inputs.map(linkTo)], ["read by", readers[number].map(linkTo)]);
    for (const use of parameters) facts.push(["parameter", `${use.name}, ${namedShape(use.axes, use.shape)}`]);
    facts.push(["bytes", isView ? `${count(bytes)}, shared with what it reads` : count(bytes)]);
    if (flops) facts.push(["FLOPs", count(flops)]);
    if (values && values.mean !== null) {
      facts.push(["mean, std", `${rounded(values.mean)}, ${rounded(values.std)}`]);
      facts.push(["min, max", `${rounded(values.min)}, ${rounded(values.max)}`]);
    }
    if (values?.infinite) facts.push(["not finite", `${count(values.infinite)} values`]);
    return facts.filter(([, value]) => value.length);
  }

  function linkTo(number) {
    const button = create("button", "link", operations[number].about);
    button.type = "button";
    button.addEventListener("click", () => {
      pick(number);
      items[number].focus();
    });
    return button;
  }

  function drawHeat({ heat, shape }) {
    find("heat").hidden = find("heat-legend").hidden = !heat;
    if (!heat) return;
    const { rows, columns, height, width, scale } = heat;
    const cells = atob(heat.cells);
    const image = new ImageData(columns, rows);
    for (let index = 0; index < cells.length; index++) {
      const step = cells.charCodeAt(index);
      if (step > 0) image.data.set([...signedColorOf((step - 128) / 127), 255], 4 * index);
    }
    const canvas = find("heat-canvas");
    Object.assign(canvas, { width: columns, height: rows });
    canvas.getContext("2d").putImageData(image, 0, 0);
    canvas.style.aspectRatio = `${columns} / ${rows}`;
    canvas.style.maxWidth = `${Math.min(columns * 16, Math.round((columns / rows) * 320))}px`;
    find("heat-caption").textContent = describeHeat(shape, rows, columns, height, width);
    const ticks = [[0, rounded(-scale)], [0.5, "0"], [1, rounded(scale)]];
    drawLegend("value", ticks, find("heat-legend"), (share) => signedColorOf(2 * share - 1));
  }

  function describeHeat(shape, rows, columns, height, width) {
    const first = shape.length > 2 && shape.slice(0, -2).some((size) => size > 1);
    const part = first ? `The first ${height} × ${width} of its values, [${[...shape.slice(0, -2).map(() => 0), ":", ":"].join(", ")}]` : "Its values";
    const pooled = rows < height || columns < width ? `; a cell is the mean of about ${Math.round((height * width) / (rows * columns))}` : "";
    return `${part}, rows down and columns across${pooled}. Nothing is drawn where a value is not finite.`;
  }

  const letters = new Set(operations.flatMap(({ axes }) => axes.split(/[ *]/)));
  find("axes-legend").textContent = Object.entries(AXES).filter(([axis]) => letters.has(axis))
    .map(([axis, about]) => `${axis} ${about}`).join(" · ");
  buildList();
  const pick = makeChoosable(list, items, 1, choose);
  pick(Math.max(0, operations.findIndex(({ about }) => about.startsWith("attention weights"))));
  list.scrollTop = items[chosen].offsetTop - list.offsetTop - list.clientHeight / 2;
  whenThemeChanges(root, () => drawHeat(operations[chosen]));
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

/** Red, green and blue of a value from -1 to 1; 0 is near the page's background. */
function signedColorOf(value) {
  if (value >= 0) return colorOf(value);
  const none = colorOf(0);
  return none.map((channel, index) => Math.round(channel + (NEGATIVE[index] - channel) * Math.min(1, -value)));
}

function buildFact([name, value]) {
  const row = document.createElement("tr");
  const cell = document.createElement("td");
  const parts = Array.isArray(value) ? value : [value];
  parts.forEach((part, index) => cell.append(...(index ? [", ", part] : [part])));
  const heading = create("th", "", name);
  heading.scope = "row";
  row.append(heading, cell);
  return row;
}
