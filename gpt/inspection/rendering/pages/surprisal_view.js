/** Fills the elements of surprisal.html in `root` from a view of surprisal. */
function showSurprisal(root, { labels, bits, before, after, mean_bits: mean, settings }) {
  const find = (id) => root.querySelector(`#${id}`);
  const tokens = writeText(find("text"), labels);
  let chosen = 0;

  function draw() {
    const ticks = [0, 2, 4, 6, 8].map((tick) => [tick / MAX_BITS, tick === MAX_BITS ? `${tick}+` : String(tick)]);
    drawLegend("bits", ticks, find("legend"));
    tokens.forEach((token, index) => {
      if (bits[index] !== null) paint(token, bits[index] / MAX_BITS);
    });
  }

  /** Only a list that the filters made shorter is known to be whole. */
  function isNeverPicked(index) {
    const isWhole = after[index].length < before[index].length;
    return isWhole && after[index].every(([label]) => label !== labels[index]);
  }

  function showDetails(index) {
    find("details-title").textContent = `${quoted(labels[index])} (${index})`;
    find("readout").textContent =
      bits[index] === null
        ? "This is the first token: there is nothing to predict it from."
        : `${bits[index].toFixed(2)} bits; its probability was ${decimals(2 ** -bits[index])}.` +
          (isNeverPicked(index) ? " Sampling with these settings never picks it." : "");
    for (const [id, entries] of [["before", before[index]], ["after", after[index]]]) {
      drawBars(find(id), entries, (entry) => (entries[entry][0] === labels[index] ? "came" : ""));
    }
  }

  tokens.forEach((token, index) => {
    token.classList.toggle("unknown", bits[index] === null);
    const spoken = bits[index] === null ? "" : `, ${bits[index].toFixed(1)} bits`;
    token.setAttribute("aria-label", labels[index] + spoken);
  });
  find("mean").textContent = mean.toFixed(3);
  find("after-title").textContent = `With ${settings}`;
  const choose = makeChoosable(
    find("text"),
    tokens,
    labels.length,
    (index) => {
      chosen = index;
      showDetails(index);
    },
    (index) => showDetails(index ?? chosen)
  );
  whenThemeChanges(root, draw);
  draw();
  choose(Math.min(1, labels.length - 1));
}
