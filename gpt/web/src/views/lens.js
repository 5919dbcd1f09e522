import { drawInTheme, drawLegend, paint } from "../colors.js";
import { create, fill } from "../dom.js";
import { decimals, drawBars, makeReadable, quoted } from "../tokens.js";
import template from "./lens.html";

/** The logit lens: a row for each of `rows`, a column for each of `labels`; `next` are the tokens that come. */
export function showLens(root, { labels, rows, top: candidates, next, next_probability: nextProbability }) {
  const parts = fill(root, template);
  const size = labels.length;
  const cells = rows.map((_, row) => labels.map((_, position) => createCell(row, position)));

  function createCell(row, position) {
    const [label, probability] = candidates[row][position][0];
    const came = label === next[position];
    const cell = create("td", came ? "cell came" : "cell", label);
    cell.setAttribute("role", "gridcell");
    cell.setAttribute("aria-label", `${label}, ${decimals(probability)}${came ? ", the actual next token" : ""}`);
    return cell;
  }

  function draw() {
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => [share, String(share)]);
    drawLegend(parts.legend, "probability of the top candidate", ticks);
    cells.forEach((line, row) => line.forEach((cell, position) => paint(cell, candidates[row][position][0][1])));
  }

  function showDetails(index) {
    const [row, position] = [Math.floor(index / size), index % size];
    const came = next[position];
    const entries = candidates[row][position];
    parts.detailsTitle.textContent = `${rows[row]}, after ${quoted(labels[position])} (${position})`;
    parts.readout.textContent =
      came === null
        ? "The text ends here, so there is no next token."
        : `The next token is ${quoted(came)}; here its probability is ${decimals(nextProbability[row][position])}.`;
    parts.topTitle.textContent = `The ${entries.length} most likely`;
    drawBars(parts.top, entries, (entry) => (entries[entry][0] === came ? "came" : ""));
    parts.rowByRow.hidden = came === null;
    if (came === null) return;
    parts.rowsTitle.textContent = `Probability of ${quoted(came)}, row by row`;
    const byRow = rows.map((name, entry) => [name, nextProbability[entry][position]]);
    drawBars(parts.rows, byRow, (entry) => (entry === row ? "chosen" : ""));
  }

  const heads = labels.map((label, position) => {
    const head = create("th", "", create("span", "position", position), label);
    return Object.assign(head, { scope: "col" });
  });
  const came = next.map((label) => create("td", "", label ?? ""));
  parts.lensTable.append(
    create("thead", "", createRow("text", heads)),
    create("tbody", "", ...rows.map((name, row) => createRow(name, cells[row]))),
    create("tfoot", "", createRow("actual next", came))
  );
  const choose = makeReadable(parts.lensTable, cells.flat(), size, showDetails);
  drawInTheme(root, draw);
  choose(size * (rows.length - 1));
}

/** A row of a table under a name. */
export function createRow(name, cells) {
  return create("tr", "", Object.assign(create("th", "", name), { scope: "row" }), ...cells);
}
