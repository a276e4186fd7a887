// The frame around the views: navigation, what is being looked at, and its news.
import { h, ask, clear, plural, ago, problem, debounce } from "./dom.js";
import order from "./order.js";

const views = {
  order: { title: "Order", load: async () => order },
  why: { title: "Why", load: async () => (await import("./why.js")).default },
  matrix: { title: "Matrix", load: async () => (await import("./matrix.js")).default },
  stream: { title: "Stream", load: async () => (await import("./stream.js")).default },
  nodes: { title: "Nodes", load: async () => (await import("./nodes.js")).default },
  change: { title: "Change", load: async () => (await import("./change.js")).default },
};

const nav = document.getElementById("nav"), main = document.getElementById("view"), source = document.getElementById("source"), banner = document.getElementById("banner");
const app = { world: null, go, replace, onworld: null };
let current = null, turn = 0;

nav.append(...Object.entries(views).map(([name, v]) => h("a", { href: "/" + name, "data-view": "", id: "nav-" + name }, v.title)));

const nameOf = () => location.pathname.slice(1) || "order";

// show mounts the view of the address. A view that is there already gets the new
// parameters; views end their requests and streams when they are left.
async function show(focus) {
  const name = nameOf(), mine = ++turn, params = new URLSearchParams(location.search);
  if (!views[name]) { location.pathname = "/"; return; }
  for (const a of nav.children) a.id === "nav-" + name ? a.setAttribute("aria-current", "page") : a.removeAttribute("aria-current");
  document.title = views[name].title + " · Tierwall";
  if (current && current.name === name && current.view.update) { current.view.update(params); return; }
  const mount = await views[name].load();
  if (mine !== turn) return;
  current && current.view.leave && current.view.leave();
  current = null;
  app.onworld = null;
  const el = h("div", {});
  clear(main, el);
  try {
    current = { name, view: (await mount(el, params, app)) || {} };
  } catch (err) {
    el.append(problem(err));
  }
  if (!focus) return;
  if (!el.contains(document.activeElement)) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function go(url) { history.pushState(null, "", url); show(true); }
function replace(url) { history.replaceState(null, "", url); }

document.addEventListener("click", (e) => {
  const a = e.target.closest && e.target.closest("a[data-view]");
  if (!a || e.metaKey || e.ctrlKey || e.shiftKey || e.button) return;
  e.preventDefault();
  go(a.getAttribute("href"));
});
addEventListener("popstate", () => show(false));

// The theme is the system's until somebody chooses.
const dark = matchMedia("(prefers-color-scheme: dark)");
const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
const paint = () => {
  const root = document.documentElement.classList, theme = stored();
  root.toggle("dark", theme === "dark");
  root.toggle("light", theme === "light");
  dispatchEvent(new Event("themechange"));
};
paint();
dark.addEventListener("change", paint);
document.getElementById("theme").addEventListener("click", () => {
  const now = stored() || (dark.matches ? "dark" : "light");
  try { localStorage.setItem("theme", now === "dark" ? "light" : "dark"); } catch { return; }
  paint();
});
addEventListener("resize", debounce(() => dispatchEvent(new Event("themechange")), 150));

// look asks whether the source has changed, and tells the view.
async function look(params) {
  let w;
  try {
    w = await ask("world", params);
  } catch (err) {
    clear(banner, h("div", { class: "note error", role: "alert" }, h("b", {}, "tierwall does not answer. "), "It may have been stopped: start it again and open the URL it prints. (" + err.message + ")"));
    return;
  }
  const changed = app.world && app.world.reading !== w.reading;
  const before = JSON.stringify(app.world);
  app.world = w;
  if (JSON.stringify(w) !== before) tell(w);
  if (changed && app.onworld) app.onworld(w);
}

function tell(w) {
  clear(source, h("b", {}, w.where), h("br"), `${plural(w.pods, "pod")}, ${plural(w.policies, "policy")}`, w.staged ? `, ${w.staged} staged` : "",
    w.rereads && [`, read ${ago(w.read)} ago `, h("button", { class: "link", type: "button", onclick: () => look({ read: "again" }) }, "read again")]);
  const notes = [];
  if (w.problem) notes.push(h("div", { class: "note error" }, h("b", {}, "The source cannot be read now; what is shown is older. "), w.problem));
  if (!w.answers) notes.push(h("div", { class: "note error" }, h("b", {}, plural(w.errors, "error") + " in the policies. "), "Of manifests all or nothing is in force: nothing can be asked until they are corrected. ", h("a", { href: "/order", "data-view": "" }, "Show them")));
  if (w.incomplete && w.incomplete.length) {
    notes.push(h("details", { class: "note warn" }, h("summary", {}, h("b", {}, "Incomplete: "), plural(w.incomplete.length, "resource") + " could not be read with your permissions"),
      h("ul", {}, w.incomplete.map((g) => h("li", {}, h("code", {}, g.resource), g.onlyNamespace ? ` (only namespace ${g.onlyNamespace})` : "", ": ", g.means, g.forbidden ? " (forbidden)" : ` (${g.error})`)))));
  }
  clear(banner, notes);
}

// The view does not wait for the frame's own question.
const first = look();
app.ready = first;
show(false);
setInterval(() => { if (!document.hidden) look(); }, 3000);
