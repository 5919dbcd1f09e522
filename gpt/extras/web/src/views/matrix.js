import { create, keyIn, within } from "../dom.js";

const LARGEST = 28; // pixels of a cell
const LABELLED = 9; // pixels of a cell from which a letter fits it
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** The frame of a square matrix: its size, the letters at its edges, and the cell that is pointed at or chosen. */
export class Matrix {
  /** `point(cell)`, of a query and a key or null, follows the mouse; `choose(query, key)` a click, finger or key. */
  constructor(parts, labels, { point, choose }) {
    this.parts = parts;
    this.size = labels.length;
    this.point = point;
    this.choose = choose;
    this.cell = { query: 0, key: 0 };
    this.ticks = [parts.queries, parts.keys].map((axis) => {
      const ticks = labels.map((label) => create("span", label.length > 1 ? "long" : "", label));
      axis.append(...ticks);
      return ticks;
    });
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
      this.point(null); // the mouse may lie on another
      this.choose(...[this.cell.query, this.cell.key].map((at, axis) => within(at + step[axis], this.size - 1)));
    });
  }

  /** Marks a cell, and the letters of its row and its column. */
  mark(cell) {
    this.cell = cell;
    [cell.query, cell.key].forEach((place, axis) => {
      this.parts.matrix.style.setProperty(["--query", "--key"][axis], place);
      this.ticks[axis].forEach((tick, index) => tick.classList.toggle("on", index === place));
    });
  }

  /** Scrolls the matrix, and never the page, until the marked cell is in sight. */
  reveal() {
    const { plot, box, queries, keys } = this.parts;
    const mark = plot.querySelector(".cell-mark").getBoundingClientRect();
    const frame = box.getBoundingClientRect();
    const [left, top] = [frame.left + queries.offsetWidth, frame.top + keys.offsetHeight];
    const [right, bottom] = [frame.left + box.clientWidth, frame.top + box.clientHeight];
    box.scrollLeft += Math.min(0, mark.left - left) + Math.max(0, mark.right - right);
    box.scrollTop += Math.min(0, mark.top - top) + Math.max(0, mark.bottom - bottom);
  }

  /**
   * Makes all of the matrix fit its place. The axes are measured at their widest: they grow with the cells, and would
   * otherwise never settle.
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

  cellAt(event) {
    const { left, top, width, height } = this.parts.plot.getBoundingClientRect();
    const along = (offset, length) => within(Math.floor((offset / length) * this.size), this.size - 1);
    return { query: along(event.clientY - top, height), key: along(event.clientX - left, width) };
  }
}
