const FRAME_MILLISECONDS = 12;
const MOST_PER_FRAME = 64;
const MOST_ATTENTION = 96;

const model = new Model(data, decodeBase64(byId("weights").textContent));
const tokenizer = new Tokenizer(data.tokenizer);
const source = new LocalSource(model, tokenizer, data.labels);
const written = byId("written");
const items = []; // the elements of the text's tokens
let text = new Text(model);
let run = null; // the writing that is in progress: its random numbers, and how many are taken
let settings = null; // of the last run
let prompt = []; // ids at the start of the text, which are not sampled
let chosen = 0;
let showText = null;
let redrawAttention = () => {};

const pick = makeChoosable(
  written,
  items,
  Infinity,
  (index) => {
    chosen = index;
    showChoice(index);
  },
  (index) => items.length && showChoice(index ?? chosen)
);

/** The settings of the form; null, with the fault shown, where one is wrong. */
function readForm() {
  if (!byId("form").reportValidity()) return null;
  const number = (id) => Number(byId(id).value);
  return { count: number("count"), temperature: number("temperature"), topK: number("top-k"), seed: number("seed") };
}

function say(message, isWrong = false) {
  byId("status").textContent = message;
  byId("status").classList.toggle("wrong", isWrong);
}

/** Writes from the prompt. */
function start() {
  const values = readForm();
  if (!values) return;
  const { ids, unknown } = tokenizer.encode(byId("prompt").value);
  if (unknown.length) {
    say(`The model does not know ${unknown.slice(0, 10).map(quoted).join(", ")}; remove it from the prompt.`, true);
    return;
  }
  if (!ids.length) ids.push(tokenizer.first);
  text = new Text(model);
  prompt = ids;
  settings = values;
  rebuild();
  begin(0);
}

/** Replaces a token, and continues from there. */
function branch(index, id) {
  const logits = text.logits[index];
  stop();
  text.truncate(index);
  text.append(id, logits);
  prompt = prompt.slice(0, index);
  rebuild();
  begin(index + 1 - prompt.length);
  pick(index);
  items[index].focus({ preventScroll: true });
}

/** Starts to write; the first `done` random numbers of the seed are skipped. */
function begin(done) {
  const generator = new Twister(settings.seed);
  for (let index = 0; index < done; index++) generator.uniform();
  run = { generator, done, from: done, began: performance.now() };
  byId("stop").disabled = false;
  byId("attention-section").hidden = true;
  say("Writing…");
  requestAnimationFrame(writeFrame);
}

/** Samples for part of a frame, so that the page stays responsive. */
function writeFrame() {
  if (!run) return;
  const until = performance.now() + FRAME_MILLISECONDS;
  const isAtEnd = written.scrollTop + written.clientHeight >= written.scrollHeight - 8;
  for (let count = 0; count < MOST_PER_FRAME && run.done < settings.count && performance.now() < until; count++) {
    if (text.ids.length < prompt.length) {
      text.append(prompt[text.ids.length]);
    } else {
      text.sample(settings, run.generator.uniform());
      run.done++;
    }
    appendItem(text.ids.length - 1);
  }
  if (isAtEnd) written.scrollTop = written.scrollHeight;
  if (run.done < settings.count) requestAnimationFrame(writeFrame);
  else stop();
}

function stop() {
  if (!run) return;
  const seconds = (performance.now() - run.began) / 1000;
  const count = run.done - run.from;
  run = null;
  byId("stop").disabled = true;
  const pace = seconds > 0 ? `, ${Math.round(count / seconds)} per second by ${model.arena.kind}` : "";
  say(`${count} character${count === 1 ? "" : "s"} written with seed ${settings.seed}${pace}.`);
  if (!items.some((item) => item.tabIndex === 0)) pick(Math.min(prompt.length, items.length - 1));
  drawAttention();
}

/** Writes the elements of the text anew. */
function rebuild() {
  written.replaceChildren();
  items.length = 0;
  showText = tokenizer.stream();
  for (let index = 0; index < text.ids.length; index++) appendItem(index);
}

function appendItem(index) {
  const label = data.labels[text.ids[index]];
  const characters = showText(text.ids[index]);
  const shown = characters === "\n" ? "⏎" : characters || "·";
  const item = create("span", index < prompt.length ? "token given" : "token", shown);
  item.setAttribute("role", "button");
  item.tabIndex = -1;
  item.dataset.index = index;
  tint(item, index);
  const probability = probabilityOf(index);
  item.setAttribute("aria-label", probability === null ? label : `${label}, probability ${decimals(probability)}`);
  items.push(item);
  written.append(item);
  if (characters === "\n") written.append("\n");
}

/** What the model itself gave a token; null for the first. */
function probabilityOf(index) {
  return text.logits[index] && probabilitiesOf(text.logits[index])[text.ids[index]];
}

function tint(item, index) {
  const probability = probabilityOf(index);
  item.classList.toggle("unknown", probability === null);
  if (probability !== null) paint(item, -Math.log2(probability) / MOST_BITS);
}

function showChoice(index) {
  const id = text.ids[index];
  const probability = probabilityOf(index);
  byId("choice-title").textContent = `${quoted(data.labels[id])} (${index})`;
  byId("choice").textContent =
    probability === null
      ? "The first character: nothing comes before it, so nothing was expected."
      : `Its probability was ${decimals(probability)}${index < prompt.length ? "; it is part of the prompt" : ""}.`;
  const { temperature, topK } = settings;
  byId("sampled-title").textContent = `With temperature ${temperature}${topK ? `, top-k ${topK}` : ""}`;
  for (const [list, filters] of [["own", {}], ["sampled", settings]]) {
    const probabilities = text.logits[index] ? probabilitiesOf(text.logits[index], filters) : [];
    const ids = byProbability(probabilities).slice(0, ALTERNATIVES);
    drawChoices(byId(list), index, ids.map((id) => [id, probabilities[id]]).filter(([, share]) => share > 0));
  }
}

/** Bars whose names are buttons that branch. */
function drawChoices(list, index, entries) {
  drawBars(list, entries.map(([id, share]) => [data.labels[id], share]), (entry) =>
    entries[entry][0] === text.ids[index] ? "came" : ""
  );
  entries.forEach(([id], entry) => {
    const button = create("button", "", data.labels[id]);
    button.type = "button";
    button.setAttribute("aria-label", `continue with ${data.labels[id]}`);
    button.addEventListener("click", () => branch(index, id));
    list.children[entry].firstChild.replaceChildren(button);
  });
}

/** Shows attention over the end of the text, with the code of the page that explain.py writes. */
async function drawAttention() {
  const shown = text;
  const ids = text.ids.slice(-Math.min(MOST_ATTENTION, model.config.block_size));
  const show = tokenizer.stream();
  const view = await source.attention({ text: ids.map(show).join("") });
  if (run || text !== shown) return;
  byId("attention-section").hidden = false;
  byId("attention-extent").textContent =
    ids.length < text.ids.length ? `Of the last ${ids.length} characters, computed as if the text began there.` : "";
  byId("attention").replaceChildren(byId("attention-template").content.cloneNode(true));
  redrawAttention = showAttention({ ...view, layer: 0, head: 0 });
}

function drawColours() {
  const ticks = [[0, "1"], [0.25, "0.25"], [0.5, "0.06"], [0.75, "0.016"], [1, "0.004"]];
  drawLegend("probability", ticks, byId("probability-legend"));
  items.forEach(tint);
  redrawAttention();
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  stop();
  start();
});
byId("stop").addEventListener("click", stop);
byId("another").addEventListener("click", () => {
  byId("seed").value = (Number(byId("seed").value) + 1) % 2 ** 32;
  stop();
  start();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault(); // a field would submit the form a second time
    byId("form").requestSubmit();
  }
});
darkTheme.addEventListener("change", drawColours);

for (const [id, value] of [
  ["prompt", data.start.prompt],
  ["count", data.start.max_new_tokens],
  ["temperature", data.start.temperature],
  ["top-k", data.start.top_k],
  ["seed", data.start.seed],
]) {
  byId(id).value = value;
}
drawColours();
say(`Ready. ${model.arena.kind} computes.`);
