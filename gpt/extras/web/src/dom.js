/** Creates an element with classes and children. */
export function create(tag, className = "", ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

/**
 * Creates a button that calls `act`; screen readers read `label`, where there is one, in place of
 * the text.
 */
export function createButton(className, text, act, label = "") {
  const button = create("button", className, text);
  button.type = "button";
  if (label) button.setAttribute("aria-label", label);
  button.addEventListener("click", act);
  return button;
}

/**
 * Fills an element from the HTML of a template, and returns its parts: the elements that have a
 * `data-part` or an id, by that name in camel case. Only templates of the page itself may be given,
 * since nothing in them is escaped.
 */
export function fill(root, template) {
  const { body } = new DOMParser().parseFromString(template, "text/html");
  root.replaceChildren(...body.childNodes);
  /** @type {any} */
  const parts = {};
  for (const element of root.querySelectorAll("[data-part], [id]")) {
    parts[camelCase(element.dataset.part ?? element.id)] = element;
  }
  return parts;
}

/** A name such as `run-name` or `run_name` as `runName`. */
export function camelCase(name) {
  return name.replace(/[-_]([a-z])/g, (_, letter) => letter.toUpperCase());
}

/**
 * Fills a select with names, and chooses one of them, or the first where `chosen` is not among
 * them.
 */
export function setOptions(select, names, chosen) {
  select.replaceChildren(...names.map((name) => new Option(name, name)));
  select.value = chosen;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
}

/** Whether the reader has asked for less motion. */
export function prefersStill() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** Writes a line of status. */
export function say(status, message, isWrong = false) {
  status.textContent = message;
  status.classList.toggle("wrong", isWrong);
}

/** Puts a text on the clipboard; returns whether the browser allows that here. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Whether a key, pressed anywhere in a form, submits it. */
export function isSubmit(event) {
  return event.key === "Enter" && (event.ctrlKey || event.metaKey);
}

/**
 * The entry of a key in a table of keys; undefined with a modifier, since such keys are the
 * browser's.
 */
export function keyIn(table, event) {
  const hasModifier = event.ctrlKey || event.altKey || event.metaKey;
  return hasModifier ? undefined : table[event.key];
}

/** The number from 0 to `most` that is nearest to a value. */
export function within(value, most) {
  return Math.min(most, Math.max(0, value));
}

/** The value that `remember` has stored under a name since this tab was opened. */
export function recall(name, fallback = undefined) {
  try {
    return JSON.parse(sessionStorage.getItem(`gpt.${name}`)) ?? fallback;
  } catch {
    return fallback; // browsers refuse storage to some pages, such as files
  }
}

/** Stores a value under a name while this tab is open. */
export function remember(name, value) {
  try {
    sessionStorage.setItem(`gpt.${name}`, JSON.stringify(value));
  } catch {
    // without storage the value is forgotten at a reload
  }
}
