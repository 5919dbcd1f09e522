/** How the view is named, and what to look for in it. */
const WRITE_VIEW = {
  name: "write",
  title: "Write",
  sentence:
    "The stronger a character's color, the less likely it was. Look for the first letters of words, where the model " +
    "has many choices, and for the letters after them, which are almost certain. Point at a character to see what " +
    "else was possible there.",
};
/** The sampling filters of a page without a server, each with the JSON schema of its value; the default keeps all. */
const PAGE_FILTERS = {
  top_k: {
    type: "integer",
    default: 0,
    minimum: 0,
    description: "Sample from the k most likely characters only; 0: from all.",
  },
  top_p: {
    type: "number",
    default: 1,
    exclusiveMinimum: 0,
    maximum: 1,
    description: "Sample from the most likely characters only that together have this probability; 1: from all.",
  },
};

/**
 * Fills `root` with a form, and with a text for each of `models`: `name()` is that of the model, and `heading`, where
 * there is one, an element to put above. `start` has the values of the form by its fields, and `most`, the greatest count.
 * It may have `filters`, as in `PAGE_FILTERS`: each is a field of the form, such as top-k, and of a request, such as topK.
 *
 * `source.write({ model, prompt, count, temperature, topK, topP, seed, known, signal }, add)` calls `add(tokens)` with
 * tokens as `showPassage` takes them: those of the prompt but for the first `known`, then `count` that are sampled. The
 * prompt is a text, or the ids of one. `source.pace`, where it is there, says what computes.
 *
 * Returns `fill(values)`, which writes into the form. `changed(values)` follows the form, `written(text)` each text.
 */
function showWrite(root, start, source, models, { changed = () => {}, written = () => {} } = {}) {
  fillFrom(root, "write");
  const { filters = PAGE_FILTERS } = start;
  const fields = ["prompt", "count", "temperature", ...Object.keys(filters).map(fieldOf), "seed"];
  const form = root.querySelector("form");
  const field = (id) => root.querySelector(`#${id}`);
  field("seed").parentElement.before(...Object.entries(filters).map(buildControl));
  const panes = models.map(buildPane);
  root.querySelector(".panes").append(...panes.map(({ element }) => element));

  function buildPane({ name, heading = "" }) {
    const pane = { model: name, element: create("div", "pane"), running: null };
    const status = create("output", "status");
    const body = create("div", "");
    pane.element.append(heading, status, body);
    pane.say = (message, isWrong = false) => {
      status.textContent = message;
      status.classList.toggle("wrong", isWrong);
    };
    pane.passage = showPassage(body, (index, id) => branch(pane, index, id));
    return pane;
  }

  /** The settings of the form; null, with the fault shown, where one is wrong. */
  function readForm() {
    if (!form.reportValidity()) return null;
    return Object.fromEntries(fields.slice(1).map((id) => [camelCase(id), Number(field(id).value)]));
  }

  function startAll() {
    stop();
    const settings = readForm();
    if (!settings) return;
    for (const pane of panes) {
      pane.settings = settings;
      pane.passage.settings = describeSettings(settings, filters);
      pane.passage.truncate(0);
      run(pane, field("prompt").value, settings.count, 0);
    }
  }

  /** Replaces a token, and continues from there; the random numbers of the seed begin anew. */
  function branch(pane, index, id) {
    pane.running?.abort();
    const { tokens } = pane.passage;
    const count = pane.settings.count - tokens.slice(0, index + 1).filter(({ isGiven }) => !isGiven).length;
    pane.passage.truncate(index);
    run(pane, [...tokens.map((token) => token.id), id], Math.max(0, count), index);
  }

  /** Lets a text grow, and says how that went. */
  async function run(pane, prompt, count, known) {
    const control = new AbortController();
    pane.running = control;
    showRunning();
    pane.say("Writing…");
    const began = performance.now();
    let added = 0;
    const add = (tokens) => {
      if (control.signal.aborted) return;
      const isPicked = Array.isArray(prompt) && pane.passage.tokens.length === known;
      if (isPicked) Object.assign(tokens[0], { isGiven: false, isPicked: true });
      added += tokens.filter(({ isGiven, isPicked }) => !isGiven && !isPicked).length;
      pane.passage.add(tokens);
      if (panes.length === 2) markParting(panes.map(({ passage }) => passage));
      if (isPicked) pane.passage.focus(known);
    };
    let fault = null;
    try {
      const request = { ...pane.settings, model: pane.model(), prompt, count, known, signal: control.signal };
      await Promise.race([source.write(request, add), untilAborted(control.signal)]);
    } catch (error) {
      if (error.name !== "AbortError") fault = error.message;
    }
    if (pane.running !== control) return; // another run has taken its place
    pane.running = null;
    showRunning();
    pane.say(fault ?? describeRun(added, pane.settings.seed, (performance.now() - began) / 1000), fault !== null);
    pane.passage.settle();
    written(pane.passage.tokens.map(({ text }) => text).join(""));
  }

  function describeRun(count, seed, seconds) {
    const pace = seconds > 0 ? `, ${Math.round(count / seconds)} per second${source.pace ?? ""}` : "";
    return `${count} character${count === 1 ? "" : "s"} written with seed ${seed}${pace}.`;
  }

  function showRunning() {
    field("stop").disabled = panes.every(({ running }) => !running);
  }

  function stop() {
    for (const { running } of panes) running?.abort();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    startAll();
  });
  form.addEventListener("input", () => changed(Object.fromEntries(fields.map((id) => [id, field(id).value]))));
  field("stop").addEventListener("click", stop);
  field("another").addEventListener("click", () => {
    field("seed").value = (Number(field("seed").value) + 1) % 2 ** 32;
    form.dispatchEvent(new Event("input"));
    startAll();
  });
  document.addEventListener("keydown", (event) => {
    if (!root.isConnected) return;
    if (event.key === "Escape") stop();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault(); // a field would submit the form a second time
      form.requestSubmit();
    }
  });

  function fill(values) {
    for (const id of fields) field(id).value = values[id];
  }

  fill(start);
  field("count").max = start.most;
  return { fill };
}

/** Marks where two texts part, whatever tokens they are made of. */
function markParting(passages) {
  const [first, second] = passages.map(({ tokens }) => tokens.map(({ text }) => text).join(""));
  const both = Math.min(first.length, second.length);
  let place = 0;
  while (place < both && first[place] === second[place]) place++;
  for (const { tokens, mark } of passages) mark(place < both ? tokenAt(tokens, place) : null);
}

/** The index of the token that has the character at a place of the text. */
function tokenAt(tokens, place) {
  let end = 0;
  return tokens.findIndex(({ text }) => (end += text.length) > place);
}

/** Throws once a signal is aborted, whatever else still has to notice it. */
function untilAborted(signal) {
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}

/** The field of a filter in the form. */
function fieldOf(filter) {
  return filter.replaceAll("_", "-");
}

function camelCase(field) {
  return field.replace(/-([a-z])/g, (_, letter) => letter.toUpperCase());
}

/** The label and field of a filter. */
function buildControl([name, { type, description, minimum, exclusiveMinimum, maximum }]) {
  const field = fieldOf(name);
  const label = create("label", "", `${field[0].toUpperCase()}${field.slice(1)} `);
  const input = Object.assign(document.createElement("input"), { type: "number", id: field, required: true });
  input.step = type === "integer" ? 1 : "any";
  input.min = minimum ?? (exclusiveMinimum === undefined ? "" : exclusiveMinimum + 1e-6);
  input.max = maximum ?? "";
  label.title = description ?? "";
  label.append(input);
  return label;
}

function describeSettings({ temperature, ...settings }, filters) {
  const chosen = Object.entries(filters)
    .map(([name, schema]) => [fieldOf(name), settings[camelCase(fieldOf(name))], schema.default])
    .filter(([, value, off]) => value !== off);
  return [`temperature ${temperature}`, ...chosen.map(([field, value]) => `${field} ${value}`)].join(", ");
}
