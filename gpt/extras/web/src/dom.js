/** An element with classes and children. */
export function create(tag, className = "", ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

/** A button that acts; `label` is read out in place of its text. */
export function createButton(className, text, act, label = "") {
  const button = create("button", className, text);
  button.type = "button";
  if (label) button.setAttribute("aria-label", label);
  button.addEventListener("click", act);
  return button;
}

/**
 * Fills an element from the HTML of a template, which is the page's own, and returns its parts: the elements that have a
 * `data-part` or an id, by that name, `run-name` as `runName`.
 */
export function fill(root, template) {
  root.replaceChildren(...new DOMParser().parseFromString(template, "text/html").body.childNodes);
  /** @type {any} */
  const parts = {};
  for (const element of root.querySelectorAll("[data-part], [id]")) {
    parts[camelCase(element.dataset.part ?? element.id)] = element;
  }
  return parts;
}

export function camelCase(name) {
  return name.replace(/[-_]([a-z])/g, (_, letter) => letter.toUpperCase());
}

/** Fills a select with names, and chooses one where it is among them. */
export function setOptions(select, names, chosen) {
  select.replaceChildren(...names.map((name) => new Option(name, name)));
  select.value = chosen;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
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

/** Whether a key sends a form from anywhere in it. */
export function isSubmit(event) {
  return event.key === "Enter" && (event.ctrlKey || event.metaKey);
}

/** What a key without others is in a table of keys. */
export function keyIn(table, event) {
  return event.ctrlKey || event.altKey || event.metaKey ? undefined : table[event.key];
}

/** A whole number from 0 to `most`. */
export function within(value, most) {
  return Math.min(most, Math.max(0, value));
}

/** What `remember` kept under a name while this tab is open. */
export function recall(name, fallback = undefined) {
  try {
    return JSON.parse(sessionStorage.getItem(`gpt.${name}`)) ?? fallback;
  } catch {
    return fallback; // no storage here, as for some files
  }
}

export function remember(name, value) {
  try {
    sessionStorage.setItem(`gpt.${name}`, JSON.stringify(value));
  } catch {
    // it is forgotten at a reload
  }
}
