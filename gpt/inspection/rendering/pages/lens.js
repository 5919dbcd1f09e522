const { labels, rows, top: candidates, next, next_probability: nextProbability } = data;
const size = labels.length;
const cells = [];
let chosen = 0;

function buildTable() {
  const table = byId("lens");
  table.setAttribute("role", "grid");
  table.append(line("thead", "text", labels.map((label, position) => {
    const cell = create("th", "", label);
    cell.scope = "col";
    cell.prepend(create("span", "position", position));
    return cell;
  })));
  const body = document.createElement("tbody");
  rows.forEach((name, row) => {
    const entries = labels.map((label, position) => buildCell(row, position));
    cells.push(...entries);
    body.append(buildRow(name, entries));
  });
  const came = next.map((label) => create("td", "", label ?? ""));
  table.append(body, line("tfoot", "came next", came));
}

function line(tag, name, entries) {
  const group = document.createElement(tag);
  group.append(buildRow(name, entries));
  return group;
}

function buildRow(name, entries) {
  const row = document.createElement("tr");
  const heading = create("th", "", name);
  heading.scope = "row";
  row.append(heading, ...entries);
  return row;
}

function buildCell(row, position) {
  const [label, probability] = candidates[row][position][0];
  const came = label === next[position];
  const cell = create("td", came ? "cell came" : "cell", label);
  cell.setAttribute("role", "gridcell");
  cell.setAttribute("aria-label", `${label}, ${decimals(probability)}${came ? ", the token that came" : ""}`);
  return cell;
}

function draw() {
  drawLegend("probability of the top candidate", [0, 0.25, 0.5, 0.75, 1].map((share) => [share, String(share)]));
  cells.forEach((cell, index) => paint(cell, candidates[Math.floor(index / size)][index % size][0][1]));
}

function showDetails(index) {
  const row = Math.floor(index / size);
  const position = index % size;
  const came = next[position];
  const entries = candidates[row][position];
  byId("details-title").textContent = `${rows[row]}, after ${quoted(labels[position])} (${position})`;
  byId("readout").textContent =
    came === null
      ? "The text ends here: nothing came next."
      : `${quoted(came)} came next; here its probability is ${decimals(nextProbability[row][position])}.`;
  byId("top-title").textContent = `The ${entries.length} most likely`;
  drawBars(byId("top"), entries, (entry) => (entries[entry][0] === came ? "came" : ""));
  byId("rows-title").textContent = came === null ? "" : `Probability of ${quoted(came)}, row by row`;
  const byRow = came === null ? [] : rows.map((name, entry) => [name, nextProbability[entry][position]]);
  drawBars(byId("rows"), byRow, (entry) => (entry === row ? "chosen" : ""));
}

buildTable();
const choose = makeChoosable(
  byId("lens"),
  cells,
  size,
  (index) => {
    chosen = index;
    showDetails(index);
  },
  (index) => showDetails(index ?? chosen)
);
darkTheme.addEventListener("change", draw);
draw();
choose(cells.length - size);
