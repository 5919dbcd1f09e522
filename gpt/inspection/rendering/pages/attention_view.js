/**
 * Fills the elements of attention.html in `root` from `labels` (T), `layers`, `heads`, the `layer` and `head` to start
 * with, and `weights`: the lower triangles, row after row, head after head, as floats or packed. Heads can be ablated
 * where `view` has the `text` and `model` that `source`, which computes, is to be asked about.
 */
function showAttention(root, view, source = null) {
  const byId = (id) => root.querySelector(`#${id}`);
  const { labels, layers, heads } = view;
  const size = labels.length;
  const triangle = (size * (size + 1)) / 2;
  let weights = null;
  let summaries = null;
  takeWeights(view);

  const state = { layer: view.layer ?? 0, head: view.head ?? 0, query: size - 1, key: 0, pointed: null };
  const box = byId("box");
  const plot = byId("plot");
  const thumbnails = [];
  const axes = [byId("queries"), byId("keys")].map((axis) =>
    labels.map((label) => {
      const tick = create("span", label.length > 1 ? "long" : "", label);
      axis.append(tick);
      return tick;
    })
  );
  const tokens = writeText(byId("text"), labels);

  const drawArcs = showArcs(byId("arcs"), labels, (query) => chooseQuery(query));
  const ablation = source && showAblation(byId("ablation"), view, source, { marked: markAblated, changed: takeAndDraw });

  function takeWeights(given) {
    weights = typeof given.weights === "string" ? readWeights(given.weights) : given.weights;
    summaries = summarizeHeads({ labels, layers, heads, weights });
  }

  function takeAndDraw(given) {
    takeWeights(given);
    drawAll();
  }

  function markAblated(ablated) {
    const numbers = ablated.map(([layer, head]) => layer * heads + head);
    thumbnails.forEach((button, index) => {
      button.classList.toggle("ablated-head", numbers.includes(index));
      button.setAttribute("aria-label", nameOf(index) + (numbers.includes(index) ? ", ablated" : ""));
    });
    showAblated();
  }

  function showAblated() {
    byId("ablate").checked = thumbnails[state.layer * heads + state.head].classList.contains("ablated-head");
  }

  function nameOf(index) {
    return `layer ${Math.floor(index / heads)}, head ${index % heads}`;
  }

  function weightAt(layer, head, query, key) {
    return weights[(layer * heads + head) * triangle + (query * (query + 1)) / 2 + key];
  }

  function shareOf(weight) {
    return byId("stretch").checked ? Math.sqrt(weight) : weight;
  }

  /** Draws the lower triangle, the largest of `step` x `step` weights to a pixel so that thin lines stay. */
  function drawHead(canvas, layer, head, step, table) {
    const side = Math.ceil(size / step);
    const largest = new Float32Array(side * side).fill(-1);
    for (let query = 0; query < size; query++) {
      for (let key = 0; key <= query; key++) {
        const pixel = Math.floor(query / step) * side + Math.floor(key / step);
        largest[pixel] = Math.max(largest[pixel], weightAt(layer, head, query, key));
      }
    }
    const image = new ImageData(side, side);
    largest.forEach((weight, pixel) => {
      if (weight >= 0) image.data.set(table[Math.round(255 * shareOf(weight))], 4 * pixel);
    });
    canvas.width = canvas.height = side;
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function colorTable() {
    return Array.from({ length: 256 }, (_, share) => [...colorOf(share / 255), 255]);
  }

  function buildHeads() {
    const grid = byId("heads");
    grid.style.setProperty("--heads", heads);
    grid.append(create("span", "", ""), ...Array.from({ length: heads }, (_, head) => create("span", "", head)));
    for (let layer = 0; layer < layers; layer++) {
      grid.append(create("span", "", layer));
      for (let head = 0; head < heads; head++) {
        const button = create("button", "thumbnail");
        button.type = "button";
        button.setAttribute("aria-label", nameOf(thumbnails.length));
        button.append(document.createElement("canvas"));
        grid.append(button);
        thumbnails.push(button);
      }
    }
  }

  /** Everything that depends on the colors. */
  function drawAll() {
    const table = colorTable();
    thumbnails.forEach((button, index) => {
      drawHead(button.firstChild, Math.floor(index / heads), index % heads, Math.ceil(size / 96), table);
    });
    const ticks = byId("stretch").checked ? [0, 0.02, 0.1, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
    drawLegend("weight", ticks.map((weight) => [shareOf(weight), String(weight)]), byId("legend"));
    drawChosenHead();
    ablation?.draw();
  }

  function drawChosenHead() {
    const { layer, head } = state;
    const { itself, previous, first, distance, entropy } = summaries[layer][head];
    byId("matrix-title").textContent = `Layer ${layer}, head ${head}`;
    byId("summary").textContent =
      `Average weight on the previous token ${decimals(previous)}, on itself ${decimals(itself)}, ` +
      `on the first ${decimals(first)}; it looks back ${distance.toFixed(1)} positions, ` +
      `with an entropy of ${entropy.toFixed(1)} bits.`;
    plot.setAttribute("aria-label", `weights of layer ${layer}, head ${head}; the arrow keys move through them`);
    drawHead(byId("canvas"), layer, head, 1, colorTable());
    showAblated();
    showCell();
  }

  /** Shows the cell under the mouse, or else the chosen one. */
  function showCell() {
    const { query, key } = state.pointed ?? state;
    const { layer, head } = state;
    plot.style.setProperty("--query", query);
    plot.style.setProperty("--key", key);
    axes.forEach((ticks, axis) => {
      ticks.forEach((tick, index) => tick.classList.toggle("on", index === (axis === 0 ? query : key)));
    });
    const places = `from ${quoted(labels[query])} (${query}) to ${quoted(labels[key])} (${key})`;
    byId("readout").textContent =
      key > query ? `${places}: hidden, it comes later` : `${places}: ${decimals(weightAt(layer, head, query, key))}`;
    tokens.forEach((token, index) => {
      if (index <= query) paint(token, shareOf(weightAt(layer, head, query, index)));
      else unpaint(token);
      token.classList.toggle("later", index > query);
      token.classList.toggle("looking", index === query);
      token.classList.toggle("pointed", index === key);
    });
    showArcsOf(query);
  }

  /** Draws arcs from the query of the cell that is shown. */
  function showArcsOf(query) {
    const { layer, head } = state;
    drawArcs(query, Array.from({ length: query + 1 }, (_, key) => weightAt(layer, head, query, key)));
    byId("arcs").setAttribute("aria-label", `arcs from ${quoted(labels[query])} (${query}) to what it attends to`);
  }

  /** Scrolls the matrix, and never the page, until the chosen cell is in sight. */
  function reveal() {
    const mark = plot.querySelector(".cell-mark").getBoundingClientRect();
    const frame = box.getBoundingClientRect();
    const left = frame.left + byId("queries").offsetWidth;
    const top = frame.top + byId("keys").offsetHeight;
    const right = frame.left + box.clientWidth;
    const bottom = frame.top + box.clientHeight;
    box.scrollLeft += Math.min(0, mark.left - left) + Math.max(0, mark.right - right);
    box.scrollTop += Math.min(0, mark.top - top) + Math.max(0, mark.bottom - bottom);
  }

  function setCellSize(pixels) {
    const matrix = byId("matrix");
    matrix.style.setProperty("--cell", `${pixels}px`);
    matrix.classList.toggle("unlabelled", pixels < 9);
    byId("zoom").value = pixels;
  }

  function strongestKey(query) {
    let best = 0;
    for (let key = 1; key <= query; key++) {
      if (weightAt(state.layer, state.head, query, key) > weightAt(state.layer, state.head, query, best)) best = key;
    }
    return best;
  }

  function cellAt(event) {
    const frame = plot.getBoundingClientRect();
    const along = (offset, length) => Math.min(size - 1, Math.max(0, Math.floor((offset / length) * size)));
    return { query: along(event.clientY - frame.top, frame.height), key: along(event.clientX - frame.left, frame.width) };
  }

  function point(cell) {
    state.pointed = cell;
    showCell();
  }

  buildHeads();
  root.style.setProperty("--size", size);

  const chooseQuery = makeChoosable(
    byId("text"),
    tokens,
    size,
    (query, key = strongestKey(query)) => {
      Object.assign(state, { query, key, pointed: null });
      showCell();
      reveal();
    },
    (key) => point(key === null ? null : { query: state.query, key })
  );
  const chooseHead = makeChoosable(byId("heads"), thumbnails, heads, (index) => {
    Object.assign(state, { layer: Math.floor(index / heads), head: index % heads });
    drawChosenHead();
  });

  plot.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse") point(cellAt(event));
  });
  plot.addEventListener("pointerleave", () => point(null));
  plot.addEventListener("click", (event) => {
    const { query, key } = cellAt(event);
    chooseQuery(query, key);
  });
  plot.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const [down, right] = steps[event.key] ?? [];
    if (down === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const within = (place) => Math.min(size - 1, Math.max(0, place));
    chooseQuery(within(state.query + down), within(state.key + right));
  });
  byId("zoom").addEventListener("input", (event) => {
    setCellSize(Number(event.target.value));
    reveal();
  });
  byId("stretch").addEventListener("change", drawAll);

  if (ablation) {
    for (const element of [byId("ablation"), ...root.querySelectorAll(".ablation-hint")]) element.hidden = false;
    byId("ablate").addEventListener("change", () => ablation.toggle(state.layer, state.head));
    byId("heads").addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() === "x") ablation.toggle(state.layer, state.head);
    });
  }

  setCellSize(Math.min(28, Math.max(4, Math.floor((box.clientWidth - 48) / size)))); // so that all of it is in sight
  drawAll();
  chooseHead(state.layer * heads + state.head);
  chooseQuery(state.query);
  whenThemeChanges(root, drawAll);
}
