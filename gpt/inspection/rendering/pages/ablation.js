const CONTINUED = 48; // tokens that the model writes after the text

/**
 * Fills the elements of ablation.html in `root`: heads can be ablated, and what that does to the model's surprise at the
 * text and to what it writes after it is shown beside what it does with all heads.
 *
 * `view` is that of attention, with the `text` and `model` to ask `source` about. `changed(view)` follows with the
 * attention of the model that is left, and `marked(heads)` with the ablated heads, as pairs of a layer and a head.
 * Returns `toggle(layer, head)` and `draw()`.
 */
function showAblation(root, view, source, { marked, changed }) {
  const find = (name) => root.querySelector(`.${name}`);
  const { model, text, labels } = view;
  let heads = [];
  let running = null;
  let whole = null; // of the model with all its heads
  let left = null; // of what is left of it

  function toggle(layer, head) {
    const others = heads.filter(([one, other]) => one !== layer || other !== head);
    choose(others.length < heads.length ? others : [...heads, [layer, head]]);
  }

  function choose(chosen) {
    heads = chosen;
    marked(heads);
    find("none").hidden = heads.length > 0;
    find("clear").hidden = heads.length === 0;
    find("ablated").replaceChildren(...heads.map(buildChip));
    compute();
  }

  function buildChip([layer, head]) {
    const button = create("button", "chip", `layer ${layer}, head ${head} ×`);
    button.type = "button";
    button.setAttribute("aria-label", `restore layer ${layer}, head ${head}`);
    button.addEventListener("click", () => toggle(layer, head));
    return button;
  }

  async function compute() {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    say("Computing…");
    try {
      whole ??= await ask([], signal);
      left = heads.length ? await ask(heads, signal) : null;
      const attention = await source.attention({ model, text, ablate: heads, signal });
      if (signal.aborted) return;
      say("");
      changed(attention);
      draw();
    } catch (error) {
      if (!signal.aborted) say(error.message, true);
    }
  }

  /** The model's surprise at the text, and what it writes after it. */
  async function ask(ablate, signal) {
    const surprisal = labels.length > 1 ? await source.surprisal({ model, text, ablate, signal }) : null;
    const continuation = await source.continuation({ model, text, ablate, count: CONTINUED, signal });
    return { bits: surprisal?.bits ?? [null], mean: surprisal?.mean_bits ?? null, written: continuation.labels };
  }

  function say(message, isWrong = false) {
    find("status").textContent = message;
    find("status").classList.toggle("wrong", isWrong);
  }

  function draw() {
    find("effects").hidden = left === null;
    if (left === null) return;
    const difference = left.mean - whole.mean;
    find("effect").textContent =
      left.mean === null
        ? ""
        : `${left.mean.toFixed(3)} bits per token without ${heads.length === 1 ? "it" : "them"}, ` +
          `${whole.mean.toFixed(3)} with all heads (${difference < 0 ? "−" : "+"}${Math.abs(difference).toFixed(3)}).`;
    const parting = left.written.findIndex((label, index) => label !== whole.written[index]);
    for (const [name, { bits, written }] of [["with-all", whole], ["without", left]]) {
      const box = find(name);
      box.replaceChildren();
      const tokens = writeText(box, [...labels, ...written]);
      tokens.forEach((token, index) => {
        token.removeAttribute("role");
        if (index >= labels.length) token.classList.add("continued");
        else if (bits[index] !== null) paint(token, bits[index] / MAX_BITS);
      });
      if (parting >= 0) tokens[labels.length + parting].classList.add("parting");
    }
    const ticks = [0, 2, 4, 6, 8].map((tick) => [tick / MAX_BITS, tick === MAX_BITS ? `${tick}+` : String(tick)]);
    drawLegend("bits of surprise", ticks, find("bits-legend"));
  }

  fillFrom(root, "ablation");
  find("clear").addEventListener("click", () => choose([]));
  return { toggle, draw };
}
