const MOST_TOKENS = 20000;
const MOST_ATTENTION = 96;

const model = new Model(data, decodeBase64(byId("weights").textContent));
const tokenizer = new Tokenizer(data.tokenizer);
const source = new LocalSource(model, tokenizer, data.labels);
let shown = ""; // the text whose attention is shown
let redrawAttention = () => {};

/** Shows attention over the end of a text, with the code of the page that explain.py writes. */
async function drawAttention(text) {
  shown = text;
  const { ids } = tokenizer.encode(text);
  const end = ids.slice(-Math.min(MOST_ATTENTION, model.config.block_size));
  const view = await source.attention({ text: end.map(tokenizer.stream()).join("") });
  if (text !== shown) return;
  byId("attention-section").hidden = false;
  byId("attention-extent").textContent =
    end.length < ids.length ? `Of the last ${end.length} characters, computed as if the text began there.` : "";
  fillFrom(byId("attention"), "attention");
  redrawAttention = showAttention({ ...view, layer: 0, head: 0 });
}

darkTheme.addEventListener("change", () => redrawAttention());
showWrite(byId("writing"), { ...data.start, most: MOST_TOKENS }, source, [{ name: () => null }], {
  written: drawAttention,
});
