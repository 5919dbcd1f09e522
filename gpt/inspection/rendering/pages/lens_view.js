/** Fills the elements of lens.html in `root` from a view of the logit lens. */
function showLens(root, { labels, rows, top: candidates, next, next_probability: nextProbability }) {
  const find = (id) => root.querySelector(`#${id}`);
  const size = labels.length;
  const cells = [];
  let chosen = 0;

  function buildTable() {
    const table = find("lens-table");
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
    table.append(body, line("tfoot", "actual next", came));
  }

  function buildCell(row, position) {
    const [label, probability] = candidates[row][position][0];
    const came = label === next[position];
    const cell = create("td", came ? "cell came" : "cell", label);
    cell.setAttribute("role", "gridcell");
    cell.setAttribute("aria-label", `${label}, ${decimals(probability)}${came ? ", the actual next token" : ""}`);
    return cell;
  }

  function draw() {
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => [share, String(share)]);
    drawLegend("probability of the top candidate", ticks, find("legend"));
    cells.forEach((cell, index) => paint(cell, candidates[Math.floor(index / size)][index % size][0][1]));
  }

  function showDetails(index) {
    const row = Math.floor(index / size);
    const position = index % size;
    const came = next[position];
    const entries = candidates[row][position];
    find("details-title").textContent = `${rows[row]}, after ${quoted(labels[position])} (${position})`;
    find("readout").textContent =
      came === null
        ? "The text ends here, so there is no next token."
        : `The next token is ${quoted(came)}; here its probability is ${decimals(nextProbability[row][position])}.`;
    find("top-title").textContent = `The ${entries.length} most likely`;
    drawBars(find("top"), entries, (entry) => (entries[entry][0] === came ? "came" : ""));
    find("rows-title").textContent = came === null ? "" : `Probability of ${quoted(came)}, row by row`;
    const byRow = came === null ? [] : rows.map((name, entry) => [name, nextProbability[entry][position]]);
    drawBars(find("rows"), byRow, (entry) => (entry === row ? "chosen" : ""));
  }

  buildTable();
  const choose = makeChoosable(
    find("lens-table"),
    cells,
    size,
    (index) => {
      chosen = index;
      showDetails(index);
    },
    (index) => showDetails(index ?? chosen)
  );
  whenThemeChanges(root, draw);
  draw();
  choose(cells.length - size);
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
