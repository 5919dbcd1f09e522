import { create, recall, remember } from "../dom.js";
import { Model } from "../engine/model.js";
import { LocalSource } from "../engine/source.js";
import { Tokenizer } from "../engine/tokenizer.js";
import { decodeBase64 } from "../engine/weights.js";
import { linkedValues } from "../link.js";
import { startShell } from "../shell.js";
import { READING_VIEWS } from "../views/reading.js";
import { START, showStart } from "../views/start.js";
import { startValues, WRITE, Writer } from "../views/write.js";

const MAX_TOKENS = 20000; // that one text may be asked to have
const data = JSON.parse(document.getElementById("data").textContent);
const model = new Model(data, decodeBase64(document.getElementById("weights").textContent));
const { labels, learning, facts } = data;
const source = new LocalSource(model, new Tokenizer(data.tokenizer), labels, learning, facts.marks);
const context = { source, model: "", text: facts.example, facts };

const stored = `write.${document.title}`; // pages from one folder may share a storage

function written(text) {
  context.text = text;
}

/** Shows the form of `Writer` with what was in it last, and lets it write. */
function showWriter(root) {
  const fixed = { most: MAX_TOKENS, filters: data.filters };
  const values = { ...startValues(facts), ...data.start, ...recall(stored), ...linkedValues() };
  const changed = (values) => remember(stored, values);
  const writer = new Writer(root, { ...values, ...fixed }, context, { changed, written });
  writer.open();
  let address = location.hash;
  return () => {
    if (location.hash === address) return;
    address = location.hash;
    const linked = linkedValues();
    if (!Object.keys(linked).length) return;
    writer.fill({ ...writer.values(), ...linked });
    writer.start();
  };
}

const nav = Object.assign(create("nav"), { id: "views", ariaLabel: "Views" });
const root = Object.assign(create("div"), { id: "view" });
document.querySelector("main").append(create("div", "shell", nav), root);
const start = {
  ...START,
  show: (root, context) => showStart(root, context, { seed: data.start.seed, written }),
};
startShell(nav, root, [start, { ...WRITE, show: showWriter }, ...READING_VIEWS], context);
