import { fill, recall, remember, say, setOptions } from "../dom.js";
import header from "../playground/header.html";
import { LEARNING } from "../playground/learning.js";
import main from "../playground/main.html";
import { ServerSource } from "../playground/server.js";
import { startShell } from "../shell.js";
import { many } from "../tokens.js";
import { READING_VIEWS } from "../views/reading.js";
import { startValues, WRITE, Writer } from "../views/write.js";

const data = JSON.parse(document.getElementById("data").textContent);
const head = document.querySelector("header");
const parts = { ...fill(head, header), ...fill(document.querySelector("main"), main) };
head.className = "shell";

/** Shows the form of `Writer` with what was in it last, and lets it write. */
function showWriter(root, context) {
  const off = Object.entries(data.filters).map(([name, { default: value }]) => [name, value]);
  const unknown = { example: "", token: "character", sample: { temperature: 0.8, ...Object.fromEntries(off) } };
  const read = () => ({ ...startValues(context.facts ?? unknown), ...recall("write", {}) });
  const start = { ...read(), most: data.mostTokens, filters: data.filters };
  const changed = (values) => remember("write", values);
  const written = (text) => {
    context.text = text;
    remember("text", text);
    readFacts(context); // a model that is trained meanwhile has changed by now
  };
  const writer = new Writer(root, start, context, { changed, written });
  const follow = () => {
    writer.fill(read());
    if (context.facts) writer.open();
  };
  follow();
  return follow;
}

/** Opens the page: asks for the models, and for the key where the server wants one. */
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
  context.model = models.includes(recall("model")) ? recall("model") : models[0];
  await showFacts(context);
  setOptions(parts.model, models, context.model);
  parts.modelLabel.hidden = false;
  let refresh = () => {};
  parts.model.addEventListener("change", () => {
    context.model = parts.model.value;
    remember("model", context.model);
    showFacts(context).then(() => refresh()); // views read as much as the model can see
  });
  const views = [{ ...WRITE, show: showWriter }, ...READING_VIEWS, LEARNING];
  refresh = startShell(parts.views, parts.view, views, context);
  addEventListener("hashchange", async () => {
    models = await source.models().catch(() => models); // one may have been trained meanwhile
    setOptions(parts.model, models, context.model);
  });
}

/** Says that the chosen model is loaded, and then what it is. */
async function showFacts(context) {
  say(context.facts ? parts.facts : parts.pageStatus, `Loading ${context.model}…`); // what is shown already does not move
  await readFacts(context);
}

/**
 * Says what the chosen model is, and keeps it in `context.facts`; null where it cannot be loaded. The text is the
 * model's example unless the reader has written one.
 */
async function readFacts(context) {
  const { model } = context;
  const answer = await context.source.facts(model).catch((error) => ({ error }));
  if (context.model !== model) return;
  if (!context.text || context.text === context.facts?.example) context.text = answer.example ?? "";
  context.facts = answer.error ? null : answer;
  parts.facts.textContent = answer.error ? "" : describeFacts(answer);
  say(parts.pageStatus, answer.error?.message ?? "", Boolean(answer.error));
}

function describeFacts(facts) {
  const size = `${many(facts.parameters, "parameter")} in ${many(facts.n_layer, "layer")} of ${many(facts.n_head, "head")}`;
  const sight = `sees ${many(facts.block_size, facts.token)}, vocabulary of ${facts.vocab_size.toLocaleString("en")}`;
  return `step ${facts.step.toLocaleString("en")}: ${size}; ${sight}`;
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
