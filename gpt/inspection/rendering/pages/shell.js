/**
 * The views of a page that has several, in the order of its navigation. Each is an object of
 * - `name`: of its address, `#name`; no element of the page has it as its id, or else the page would scroll there;
 * - `title`: in the navigation; in lower case, with dashes, it is an address too;
 * - `sentence`: what to look for in it;
 * - `show(root, context)`: fills `root`, an element that only this view uses, when the view is first opened. `context`
 *   has `source`, which computes, `models`, the names of all, `model`, that of the chosen one, and `text`, the one
 *   written last. It may return a function, which is called when the view is opened again, and when another model is
 *   chosen while it is open.
 *
 * Only the open view is in the document.
 */
const views = [];

/** Opens views by the address's hash. Returns `refresh`, which tells the open view that the context has changed. */
function startShell(context) {
  const opened = new Map();
  const { title } = document;
  const links = views.map(({ name, title }) => {
    const link = create("a", "", title);
    link.href = `#${name}`;
    return link;
  });
  byId("views").replaceChildren(...links);

  function open() {
    const asked = location.hash.slice(1).toLowerCase();
    const addresses = views.map(({ name, title }) => [name, title.toLowerCase().replaceAll(" ", "-")]);
    const index = Math.max(0, addresses.findIndex((names) => names.includes(asked)));
    const view = views[index];
    if (!view) return;
    links.forEach((link, place) => {
      if (place === index) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    document.body.dataset.view = view.name;
    document.title = `${view.title} · ${title}`;
    const isNew = !opened.has(view.name);
    if (isNew) opened.set(view.name, { section: buildSection(view) });
    const place = opened.get(view.name);
    if (!place.section.isConnected) byId("view").replaceChildren(place.section); // else it would lose the focus
    if (isNew) place.refresh = view.show(place.section.lastChild, context);
    else place.refresh?.();
  }

  addEventListener("hashchange", open);
  open();
  return { refresh: open };
}

function buildSection({ name, title, sentence }) {
  const section = create("section", `view view-${name}`);
  section.append(create("h1", "", title), create("p", "guide", sentence), create("div", "view-body"));
  return section;
}

/** What `remember` kept under a name while this tab is open. */
function recall(name, fallback) {
  try {
    return JSON.parse(sessionStorage.getItem(`gpt.${name}`)) ?? fallback;
  } catch {
    return fallback; // no storage here, as for some files
  }
}

function remember(name, value) {
  try {
    sessionStorage.setItem(`gpt.${name}`, JSON.stringify(value));
  } catch {
    // it is forgotten at a reload
  }
}
