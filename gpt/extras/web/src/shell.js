import { create } from "./dom.js";

/**
 * Opens views by the address's hash in `root`, with links to them in `nav`. Returns `refresh`, which tells the open view
 * that the context has changed. Only the open view is in the document. Each view has
 * - `name`: of its address, `#name`; no element of the page has it as its id, or else the page would scroll there;
 * - `title`: in the navigation;
 * - `sentence`: what to look for in it, in two sentences; `more`, where there is any, says the rest, folded;
 * - `show(root, context)`: fills `root`, an element that only this view uses, when the view is first opened. `context`
 *   has `source`, which computes, `model`, the name of the chosen one, and `text`, the one written last. It may return
 *   a function, which is called when the view is opened again, and when another model is chosen while it is open.
 */
export function startShell(nav, root, views, context) {
  const opened = new Map();
  const { title } = document;
  const links = views.map(({ name, title }) => Object.assign(create("a", "", title), { href: `#${name}` }));
  nav.replaceChildren(...links);

  function open() {
    const view = views.find(({ name }) => `#${name}` === location.hash) ?? views[0];
    for (const link of links) link.removeAttribute("aria-current");
    const link = links[views.indexOf(view)];
    link.setAttribute("aria-current", "page");
    nav.scrollLeft = link.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2; // where it is narrower than its links
    document.body.dataset.view = view.name;
    document.title = `${view.title} · ${title}`;
    const known = opened.get(view);
    const place = known ?? { section: createSection(view), refresh: null };
    opened.set(view, place);
    if (!place.section.isConnected) root.replaceChildren(place.section); // else it would lose the focus
    if (known) place.refresh?.();
    else place.refresh = view.show(place.section.lastChild, context);
  }

  addEventListener("hashchange", open);
  open();
  return open;
}

function createSection({ name, title, sentence, more = "" }) {
  const guide = create("p", "guide", sentence);
  const rest = more ? [create("details", "more", create("summary", "", "More"), create("p", "guide", more))] : [];
  const parts = [create("h1", "", title), guide, ...rest, create("div", "view-body")];
  return create("section", `view view-${name}`, ...parts);
}
