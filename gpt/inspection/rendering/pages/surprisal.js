const { labels, bits, before, after } = data;
const tokens = writeText(byId("text"), labels);
let chosen = 0;

function draw() {
  drawLegend("bits", [0, 2, 4, 6, 8].map((tick) => [tick / MOST_BITS, tick === MOST_BITS ? `${tick}+` : String(tick)]));
  tokens.forEach((token, index) => {
    if (bits[index] !== null) paint(token, bits[index] / MOST_BITS);
  });
}

/** Only a list that the filters made shorter is known to be whole. */
function isNeverDrawn(index) {
  const isWhole = after[index].length < before[index].length;
  return isWhole && after[index].every(([label]) => label !== labels[index]);
}

function showDetails(index) {
  byId("details-title").textContent = `${quoted(labels[index])} (${index})`;
  byId("readout").textContent =
    bits[index] === null
      ? "The first token: nothing comes before it, so nothing was expected."
      : `${bits[index].toFixed(2)} bits; its probability was ${decimals(2 ** -bits[index])}.` +
        (isNeverDrawn(index) ? " Sampling with these settings never draws it." : "");
  for (const [id, entries] of [["before", before[index]], ["after", after[index]]]) {
    drawBars(byId(id), entries, (entry) => (entries[entry][0] === labels[index] ? "came" : ""));
  }
}

tokens.forEach((token, index) => {
  token.classList.toggle("unknown", bits[index] === null);
  const spoken = bits[index] === null ? "" : `, ${bits[index].toFixed(1)} bits`;
  token.setAttribute("aria-label", labels[index] + spoken);
});
byId("mean").textContent = data.mean_bits.toFixed(3);
byId("after-title").textContent = `After: ${data.settings}`;
const choose = makeChoosable(
  byId("text"),
  tokens,
  labels.length,
  (index) => {
    chosen = index;
    showDetails(index);
  },
  (index) => showDetails(index ?? chosen)
);
darkTheme.addEventListener("change", draw);
draw();
choose(Math.min(1, labels.length - 1));
