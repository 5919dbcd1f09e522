import { drawInTheme, drawLegend, paint } from "../colors.js";
import { create, fill } from "../dom.js";
import {
  drawBars,
  makeChoosable,
  nameOf,
  percent,
  quoted,
  surprise,
  unitOf,
  writeText,
} from "../tokens.js";
import template from "./lens.html";

/**
 * Shows the logit lens: a row for each of `rows`, a column for each of `labels`; `next` has the
 * token that comes after each. It opens at the end of the text.
 */
export function showLens(root, view) {
  const { labels, rows, top: candidates, next, next_probability: nextProbability } = view;
  const parts = fill(root, template);
  const size = labels.length;
  const unit = unitOf(view);
  const tokens = writeText(parts.text, labels, null);
  const cells = rows.map((_, row) => labels.map((_, position) => createCell(row, position)));

  function createCell(row, position) {
    const [label, probability] = candidates[row][position][0];
    const came = label === next[position];
    const cell = create("td", came ? "cell came" : "cell", label);
    cell.setAttribute("role", "gridcell");
    cell.setAttribute(
      "aria-label",
      `${label}, ${percent(probability)}${came ? `, the ${unit} that came` : ""}`
    );
    return cell;
  }

  function draw() {
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => [share, `${100 * share}%`]);
    drawLegend(parts.legend, "probability of the most likely", ticks);
    cells.forEach((line, row) =>
      line.forEach((cell, position) => paint(cell, candidates[row][position][0][1]))
    );
  }

  /**
   * Shows the candidates of a cell, by its index among all, and the probability of the next token
   * in each row.
   */
  function showDetails(index) {
    const row = Math.floor(index / size);
    const position = index % size;
    const came = next[position];
    const entries = candidates[row][position];
    tokens.forEach((token, place) => token.classList.toggle("looking", place === position));
    parts.detailsTitle.textContent = `${rows[row]}, after ${nameOf(labels, position)}`;
    parts.topTitle.textContent = `The ${entries.length} most likely`;
    drawBars(parts.top, entries, (entry) => (entries[entry][0] === came ? "came" : ""));
    parts.rowByRow.hidden = came === null;
    if (came === null) {
      parts.readout.textContent = `The text ends here, so there is no next ${unit}.`;
      return;
    }
    const surprised = surprise(nextProbability[row][position]);
    parts.readout.textContent = `The next ${unit} is ${quoted(came)}: ${surprised}, in this row.`;
    parts.rowsTitle.textContent = `Probability of ${quoted(came)}, row by row`;
    const byRow = rows.map((name, entry) => [name, nextProbability[entry][position]]);
    drawBars(parts.rows, byRow, (entry) => (entry === row ? "chosen" : ""));
  }

  /**
   * Chooses a cell of the last row, and scrolls the table, never the page, until its column stands
   * in the middle.
   */
  function choosePrediction(position) {
    pickCell((rows.length - 1) * size + position);
    const cell = cells.at(-1)[position];
    parts.lensBox.scrollLeft = cell.offsetLeft - (parts.lensBox.clientWidth - cell.offsetWidth) / 2;
  }

  const heads = labels.map((label, position) => {
    const head = create("th", "", create("span", "position", position), label);
    return Object.assign(head, { scope: "col" });
  });
  const came = next.map((label) => create("td", "", label ?? ""));
  parts.lensTable.append(
    create("thead", "", createRow("text", heads)),
    create("tbody", "", ...rows.map((name, row) => createRow(name, cells[row]))),
    create("tfoot", "", createRow("came next", came))
  );
  let chosen = 0;
  const choose = (index) => {
    chosen = index;
    showDetails(index);
  };
  const showPointed = (index) => showDetails(index ?? chosen);
  const pickCell = makeChoosable(parts.lensTable, cells.flat(), size, choose, showPointed);
  parts.text.addEventListener("click", ({ target }) => {
    if (tokens.includes(target)) choosePrediction(tokens.indexOf(target));
  });
  drawInTheme(root, draw);
  choosePrediction(Math.max(0, size - 2)); // the last token that another one comes after
}

/** A row of a table under a name. */
function createRow(name, cells) {
  return create("tr", "", Object.assign(create("th", "", name), { scope: "row" }), ...cells);
}
