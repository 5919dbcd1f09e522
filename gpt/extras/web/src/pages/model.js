import { create } from "../dom.js";
import { Model } from "../engine/model.js";
import { LocalSource } from "../engine/source.js";
import { Tokenizer } from "../engine/tokenizer.js";
import { decodeBase64 } from "../engine/weights.js";
import { LEARNING } from "../playground/learning.js";
import { startShell } from "../shell.js";
import { READING_VIEWS } from "../views/reading.js";
import { startValues, WRITE, Writer } from "../views/write.js";

const MAX_TOKENS = 20000; // that one text may be asked to have
const data = JSON.parse(document.getElementById("data").textContent);
const model = new Model(data, decodeBase64(document.getElementById("weights").textContent));
const { labels, learning, facts } = data;
const source = new LocalSource(model, new Tokenizer(data.tokenizer), labels, learning, facts.marks);
const context = { source, model: "", text: facts.example, facts };

/** Shows the form of `Writer`, and lets it write. */
function showWriter(root) {
  const written = (text) => {
    context.text = text;
  };
  const start = {
    ...startValues(facts),
    ...data.start,
    most: MAX_TOKENS,
    filters: data.filters,
  };
  new Writer(root, start, context, { written }).open();
}

const nav = Object.assign(create("nav"), { id: "views", ariaLabel: "Views" });
const root = Object.assign(create("div"), { id: "view" });
document.querySelector("main").append(create("div", "shell", nav), root);
const views = [{ ...WRITE, show: showWriter }, ...READING_VIEWS];
if (learning) views.unshift(LEARNING);
startShell(nav, root, views, context);
