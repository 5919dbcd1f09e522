/** Opens the page: asks for the models, and for the key where the server wants one. */
async function openPlayground() {
  const key = recall("key", "");
  if (data.needsKey && !key) {
    askForKey("");
    return;
  }
  const source = new ServerSource(key);
  const context = { source, models: [], model: "", text: recall("text", "") };
  try {
    context.models = await source.models();
  } catch (error) {
    if (error.status !== 401) throw error;
    askForKey("That key is not the server's.");
    return;
  }
  const { models } = context;
  context.model = models.includes(recall("model", "")) ? recall("model") : models[0];
  await showFacts(context);
  const shell = startShell(context);
  const select = byId("model");
  fillModels(select, context);
  select.addEventListener("change", () => {
    context.model = select.value;
    remember("model", context.model);
    showFacts(context).then(shell.refresh); // views read as much as the model can see
  });
  addEventListener("hashchange", async () => {
    context.models = await source.models().catch(() => context.models); // one may have been trained meanwhile
    fillModels(select, context);
  });
  byId("model-label").hidden = false;
}

function fillModels(select, { models, model }) {
  select.replaceChildren(...models.map((name) => new Option(name, name)));
  select.value = model;
}

/** Says what the chosen model is, and keeps it in `context.facts`; null where it cannot be loaded. */
async function showFacts(context) {
  const { model } = context;
  byId("facts").textContent = `Loading ${model}…`;
  try {
    const facts = await context.source.facts(model);
    if (context.model !== model) return;
    context.facts = facts;
    byId("facts").textContent = describeFacts(facts);
    sayOnPage("");
  } catch (error) {
    if (context.model !== model) return;
    context.facts = null;
    byId("facts").textContent = "";
    sayOnPage(error.message, true);
  }
}

function describeFacts({ parameters, n_layer: layers, n_head: heads, block_size: window, vocab_size: size, token }) {
  const count = (number, name) => `${number.toLocaleString("en")} ${name}${number === 1 ? "" : "s"}`;
  return (
    `${count(parameters, "parameter")} in ${count(layers, "layer")} of ${count(heads, "head")}; ` +
    `it sees ${count(window, token)} at a time, and knows ${size.toLocaleString("en")} different ones.`
  );
}

function askForKey(reason) {
  byId("key-form").hidden = false;
  sayOnPage(reason, true);
  byId("key").focus();
}

function sayOnPage(message, isWrong = false) {
  byId("page-status").textContent = message;
  byId("page-status").classList.toggle("wrong", isWrong);
}

function start() {
  openPlayground().catch((error) => sayOnPage(`The playground could not be opened: ${error.message}`, true));
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  remember("key", byId("key").value);
  sayOnPage("");
  byId("key-form").hidden = true;
  start();
});
start();
