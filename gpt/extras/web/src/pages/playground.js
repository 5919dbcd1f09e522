import { fill, recall, remember, say, setOptions } from "../dom.js";
import { linkedValues } from "../link.js";
import { NO_MARKS } from "../marks.js";
import header from "../playground/header.html";
import main from "../playground/main.html";
import { ServerSource } from "../playground/server.js";
import { startShell } from "../shell.js";
import { many } from "../tokens.js";
import { READING_VIEWS } from "../views/reading.js";
import { START, showStart } from "../views/start.js";
import { startValues, WRITE, Writer } from "../views/write.js";

const data = JSON.parse(document.getElementById("data").textContent);
const head = document.querySelector("header");
const parts = { ...fill(head, header), ...fill(document.querySelector("main"), main) };
head.className = "shell";

/** Shows the form of `Writer` with what was in it last, and lets it write. */
function showWriter(root, context) {
  // the form of another kind of model has other values: a question, or a number of items
  const storedName = () => {
    const { kind } = (context.facts ?? unknownFacts()).marks;
    return kind === "text" ? "write" : `write.${kind}`;
  };
  const readValues = () => ({
    ...startValues(context.facts ?? unknownFacts()),
    ...recall(storedName(), {}),
    ...linkedValues(),
  });
  const start = { ...readValues(), most: data.mostTokens, filters: data.filters };
  const changed = (values) => remember(storedName(), values);
  const written = (text) => keepText(context, text);
  const writer = new Writer(root, start, context, { changed, written });
  let address = location.hash;
  const follow = () => {
    writer.fill(readValues());
    if (context.facts) writer.open();
    const isLinked = address !== location.hash && location.hash.includes("?");
    address = location.hash;
    if (isLinked) writer.start();
  };
  follow();
  return follow;
}

/** Keeps a text that the reader has asked for, so that the other views read it. */
function keepText(context, text) {
  context.text = text;
  remember("text", text);
  readFacts(context); // again, since a model that is being trained may have changed
}

/**
 * What stands for the facts of a model that cannot be loaded: filters that are off, and no text.
 */
function unknownFacts() {
  const sample = { temperature: 0.8 };
  for (const [name, schema] of Object.entries(data.filters)) sample[name] = schema.default;
  return { example: "", about: {}, token: "character", marks: NO_MARKS, sample };
}

/**
 * Opens the page: asks the server for its models, and the reader for the API key if the server
 * needs one.
 */
async function openPlayground() {
  const key = recall("key", "");
  if (data.needsKey && !key) {
    askForKey("");
    return;
  }
  const source = new ServerSource(key);
  const context = { source, model: "", text: recall("text", ""), facts: null };
  let models = [];
  try {
    models = await source.models();
  } catch (error) {
    if (error.status !== 401) throw error;
    askForKey("That key is not the server's.");
    return;
  }
  const lastChosen = linkedValues().model ?? recall("model");
  context.model = models.includes(lastChosen) ? lastChosen : models[0];
  await showFacts(context);
  setOptions(parts.model, models, context.model);
  parts.modelLabel.hidden = false;
  let refresh = () => {};
  parts.model.addEventListener("change", () => {
    context.model = parts.model.value;
    remember("model", context.model);
    // only then, since the views read as much as the model can see
    showFacts(context).then(() => refresh());
  });
  const options = {
    seed: startValues(context.facts ?? unknownFacts()).seed,
    written: (text) => keepText(context, text),
  };
  const start = { ...START, show: (root, context) => showStart(root, context, options) };
  const views = [start, { ...WRITE, show: showWriter }, ...READING_VIEWS];
  refresh = startShell(parts.views, parts.view, views, context);
  addEventListener("hashchange", async () => {
    models = await source.models().catch(() => models); // there may be new ones
    setOptions(parts.model, models, context.model);
  });
}

/** Says that the chosen model is being loaded, and then what it is. */
async function showFacts(context) {
  // in a line that is there, so that nothing moves
  const line = context.facts ? parts.facts : parts.pageStatus;
  say(line, `Loading ${context.model}…`);
  await readFacts(context);
}

/**
 * Says what the chosen model is, and stores it as `context.facts`: null where it cannot be loaded.
 * The text is the model's example unless the reader has written one.
 */
async function readFacts(context) {
  const { model } = context;
  const answer = await context.source.facts(model).catch((error) => ({ error }));
  if (context.model !== model) return; // the reader has chosen another one
  const isOwnText = context.text && context.text !== context.facts?.example;
  if (!isOwnText) context.text = answer.example ?? "";
  if (answer.error) {
    context.facts = null;
    parts.facts.textContent = "";
    say(parts.pageStatus, answer.error.message, true);
  } else {
    context.facts = answer;
    parts.facts.textContent = describeFacts(answer);
    say(parts.pageStatus, "");
  }
}

function describeFacts(facts) {
  const {
    parameters,
    n_layer: layers,
    n_head: heads,
    block_size: window,
    vocab_size: vocabulary,
  } = facts;
  const size = `${many(parameters, "parameter")} in ${many(layers, "layer")} of ${many(heads, "head")}`;
  const sight = `sees ${many(window, facts.token)}, vocabulary of ${vocabulary.toLocaleString("en")}`;
  return `${size}; ${sight}`;
}

function askForKey(reason) {
  parts.keyForm.hidden = false;
  say(parts.pageStatus, reason, true);
  parts.key.focus();
}

function start() {
  openPlayground().catch((error) => {
    say(parts.pageStatus, `The playground could not be opened: ${error.message}`, true);
  });
}

parts.keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  remember("key", parts.key.value);
  say(parts.pageStatus, "");
  parts.keyForm.hidden = true;
  start();
});
start();
