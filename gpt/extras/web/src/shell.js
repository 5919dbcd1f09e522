import { create } from "./dom.js";

/**
 * Shows in `root` the view that the hash of the page's address names, and links to all views in
 * `nav`. Only the open view is in the document. Returns `refresh`, which tells the open view that
 * the context has changed. Each view has
 * - `name`: its address is `#name`, perhaps with `?` and values; no element of the page may have this id, since the page would
 *   scroll there;
 * - `title`: its name in the navigation;
 * - `sentence`: what to look for in it, in two sentences, where there is one; `more`, where there is
 *   any, says the rest, folded;
 * - `show(root, context)`: fills `root`, an element that only this view uses, when the view is
 *   first opened. `context` has `source`, which computes, `model`, the name of the chosen model,
 *   and `text`, which was written last. `show` may return a function, which is called when the view
 *   is opened again, and when another model is chosen while it is open.
 */
export function startShell(nav, root, views, context) {
  const opened = new Map();
  const { title } = document;
  const links = views.map(({ name, title }) =>
    Object.assign(create("a", "", title), { href: `#${name}` })
  );
  nav.replaceChildren(...links);

  function open() {
    const [address] = location.hash.split("?"); // what follows are values for the view
    const view = views.find(({ name }) => `#${name}` === address) ?? views[0];
    markLink(links[views.indexOf(view)]);
    document.body.dataset.view = view.name;
    document.title = `${view.title} · ${title}`;
    if (opened.has(view)) {
      const { section, refresh } = opened.get(view);
      // a section that is shown already keeps the focus
      if (!section.isConnected) root.replaceChildren(section);
      refresh?.();
    } else {
      const section = createSection(view);
      root.replaceChildren(section); // before `show`, which may measure what it draws
      const refresh = view.show(section.lastChild, context);
      opened.set(view, { section, refresh });
    }
  }

  /**
   * Marks the link of the open view, and scrolls it to the middle where the navigation is narrower
   * than its links.
   */
  function markLink(link) {
    for (const other of links) other.removeAttribute("aria-current");
    link.setAttribute("aria-current", "page");
    nav.scrollLeft = link.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2;
  }

  addEventListener("hashchange", open);
  open();
  return open;
}

function createSection({ name, title, sentence = "", more = "" }) {
  const section = create("section", `view view-${name}`, create("h1", "", title));
  if (sentence) section.append(create("p", "guide", sentence));
  if (more) {
    section.append(
      create("details", "more", create("summary", "", "More"), create("p", "guide", more))
    );
  }
  section.append(create("div", "view-body"));
  return section;
}
