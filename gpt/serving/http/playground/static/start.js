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
  const shell = startShell(context);
  const select = byId("model");
  select.replaceChildren(...models.map((name) => new Option(name, name)));
  select.value = context.model;
  select.addEventListener("change", () => {
    context.model = select.value;
    remember("model", context.model);
    shell.refresh();
  });
  byId("model-label").hidden = false;
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
