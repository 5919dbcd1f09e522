import { create, keyIn, within } from "../dom.js";

const LARGEST = 28; // most pixels of a cell
const LABELLED = 9; // pixels of a cell from which on a letter fits beside it
const STEPS = {
  ArrowUp: { query: -1, key: 0 },
  ArrowDown: { query: 1, key: 0 },
  ArrowLeft: { query: 0, key: -1 },
  ArrowRight: { query: 0, key: 1 },
};

/**
 * The frame of a square matrix: its size, the letters at its edges, and the cell that is pointed at
 * or chosen.
 */
export class Matrix {
  /**
   * `point(cell)` is called with the query and key under the mouse, or null when it leaves, and
   * `choose(query, key)` when a click, a finger or an arrow key chooses a cell.
   */
  constructor(parts, labels, { point, choose }) {
    this.parts = parts;
    this.size = labels.length;
    this.point = point;
    this.choose = choose;
    this.cell = { query: 0, key: 0 };
    this.queryTicks = createTicks(parts.queries, labels);
    this.keyTicks = createTicks(parts.keys, labels);
    this.listen();
    new ResizeObserver(() => this.fit()).observe(parts.place);
    this.fit();
  }

  listen() {
    const { plot } = this.parts;
    const chooseAt = (event) => {
      const { query, key } = this.cellAt(event);
      this.choose(query, key);
    };
    plot.addEventListener("pointerdown", (event) => {
      if (event.isPrimary) plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", (event) => {
      if (plot.hasPointerCapture(event.pointerId)) chooseAt(event);
      else if (event.pointerType === "mouse") this.point(this.cellAt(event));
    });
    plot.addEventListener("pointerleave", () => this.point(null));
    plot.addEventListener("click", chooseAt);
    plot.addEventListener("keydown", (event) => {
      const step = keyIn(STEPS, event);
      if (!step) return;
      event.preventDefault();
      this.point(null); // the mouse may lie on another cell
      const { query, key } = this.cell;
      const last = this.size - 1;
      this.choose(within(query + step.query, last), within(key + step.key, last));
    });
  }

  /** Marks a cell, and the letters of its row and its column. */
  mark(cell) {
    this.cell = cell;
    const { style } = this.parts.matrix;
    style.setProperty("--query", cell.query);
    style.setProperty("--key", cell.key);
    this.queryTicks.forEach((tick, index) => tick.classList.toggle("on", index === cell.query));
    this.keyTicks.forEach((tick, index) => tick.classList.toggle("on", index === cell.key));
  }

  /** Scrolls the matrix, and never the page, until the marked cell is in sight. */
  reveal() {
    const { plot, box, queries, keys } = this.parts;
    const mark = plot.querySelector(".cell-mark").getBoundingClientRect();
    const frame = box.getBoundingClientRect();
    // the letters at the edges stay in place, and cover what is below them
    const left = frame.left + queries.offsetWidth;
    const top = frame.top + keys.offsetHeight;
    const right = frame.left + box.clientWidth;
    const bottom = frame.top + box.clientHeight;
    box.scrollLeft += Math.min(0, mark.left - left) + Math.max(0, mark.right - right);
    box.scrollTop += Math.min(0, mark.top - top) + Math.max(0, mark.bottom - bottom);
  }

  /**
   * Makes all of the matrix fit its place. The axes grow with the cells, and so they are measured
   * with the largest cells: otherwise the size would never settle.
   */
  fit() {
    const { place, box, queries, keys } = this.parts;
    this.setCellSize(LARGEST);
    const width = place.clientWidth - queries.offsetWidth - 2;
    const height = Number.parseFloat(getComputedStyle(box).maxHeight) - keys.offsetHeight - 2;
    const cell = within(Math.min(width, height) / this.size, LARGEST);
    this.setCellSize(cell < LABELLED ? Math.max(2, cell) : Math.floor(cell));
  }

  setCellSize(pixels) {
    const { matrix } = this.parts;
    matrix.style.setProperty("--cell", `${pixels}px`);
    matrix.classList.toggle("unlabelled", pixels < LABELLED);
  }

  /** The query and key of the cell at a place of the page. */
  cellAt({ clientX, clientY }) {
    const { left, top, width, height } = this.parts.plot.getBoundingClientRect();
    const indexAt = (share) => within(Math.floor(share * this.size), this.size - 1);
    return { query: indexAt((clientY - top) / height), key: indexAt((clientX - left) / width) };
  }
}

/** Adds a letter for each row or column to an axis, and returns their elements. */
function createTicks(axis, labels) {
  const ticks = labels.map((label) => create("span", label.length > 1 ? "long" : "", label));
  axis.append(...ticks);
  return ticks;
}
