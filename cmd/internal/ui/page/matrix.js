// Matrix: who can connect to whom, as a heat map that stays quick with ten thousand
// pods. Only the cells in sight are drawn, and only they are asked for.
import { h, ask, clear, verdict, because, link, path, plural, problem, shown } from "./dom.js";
import { combo } from "./combo.js";
import { Heat } from "./heat.js";
import { hasDraft, compile } from "./session.js";

const block = 16; // cells are asked for in blocks
const all = 90_000; // cells up to which the map is filled out of sight, too
const sizes = [4, 7, 11, 15, 20, 26, 38];
const order = new Intl.Collator("en", { numeric: true });

export default async function mount(el, params, app) {
  const get = (k) => params.get(k) || "";
  const port = combo({ kind: "port", value: get("port") || "80/TCP", placeholder: "80/TCP", label: "Port", onpick: () => again() });
  const after = h("button", { type: "button", "aria-pressed": "false" }, "After my change");
  const crumb = h("div", { class: "crumb small" }), canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map", "aria-label": "Who can connect to whom. Arrow keys move, Enter opens a cell, plus and minus change the size, 0 shows all." });
  const space = h("div", { class: "space" }), scroll = h("div", { class: "card scroll" }, canvas, space), live = h("div", { class: "live small dim num", role: "status" });
  const panel = h("aside", { class: "card pad panel", "aria-label": "The chosen cell" }), legend = h("div", { class: "legend" });
  const button = (text, label, fn) => h("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick: fn }, text);
  const zooms = h("div", { class: "zooms", role: "group", "aria-label": "Size of cells" }, button("−", "Smaller cells", () => step(-1)), button("+", "Larger cells", () => step(1)), button("Fit", "All on one screen", () => zoom(0)));
  el.append(
    h("div", { class: "head" }, h("div", { class: "grow" }, h("h1", {}, "Who can connect to whom"), h("p", {}, "Rows connect to columns. The fuller a square, the more of the pods may.")), h("label", { class: "field" }, "Port", port.el), after),
    h("div", { class: "row between" }, crumb, h("div", { class: "row" }, legend, zooms)),
    h("div", { class: "map" }, h("div", {}, scroll, live), panel));

  const heat = new Heat(scroll, canvas, space);
  let by = "", asked = new Set(), change = "", asking = new AbortController(), alive = true, running = false, opened = "";
  let wanted = []; // blocks in sight that are not known
  let rest = null; // blocks out of sight, made when all in sight are known

  const theme = () => { heat.recolor(); keys(); };
  const name = (i) => heat.groups[i].name;

  async function load() {
    asking.abort();
    const mine = (asking = new AbortController());
    after.hidden = !hasDraft();
    let made = "";
    if (!after.hidden && get("after")) {
      try {
        const c = await compile(mine.signal);
        if (!c.fit) throw new Error("The change has errors: correct them first.");
        made = c.change;
      } catch (err) { if (err.name !== "AbortError") clear(live, problem(err)); }
    }
    if (mine !== asking) return;
    let g;
    try {
      g = await ask("groups", { namespace: params.getAll("ns") }, mine.signal);
    } catch (err) { if (err.name !== "AbortError") { clear(panel); clear(live, problem(err)); } return; }
    if (mine !== asking || !alive) return;
    change = made;
    after.setAttribute("aria-pressed", String(!!change));
    by = g.by;
    asked = new Set(); wanted = []; rest = null; running = false;
    heat.set(g.groups.sort((a, b) => order.compare(a.name, b.name)));
    const n = g.groups.length;
    clear(crumb, params.getAll("ns").length ? [link("matrix", { port: port.value, after: get("after") }, "All namespaces"), " › ", params.getAll("ns").map((n, i) => [i ? " + " : "", h("b", {}, n)]), " by workload"] : h("span", {}, plural(g.groups.reduce((n, x) => n + x.pods, 0), "pod"), " in ", plural(n, by), by === "namespace" ? ": choose a cell to go into it" : ""));
    zooms.hidden = n <= 12;
    heat.zoom(get("zoom") === "fit" ? 0 : Number(get("zoom")) || (n <= 12 ? 38 : n <= 30 ? 26 : 20));
    if (!opened) hint();
    if (get("row") && get("col")) {
      const at = ["row", "col"].map((k) => heat.groups.findIndex((x) => x.name === get(k)));
      if (at[0] >= 0 && at[1] >= 0) { heat.at = at; heat.reveal(at); open(...at, true); }
    }
    keys();
    shown("matrix-shown");
  }

  const step = (by) => { const i = sizes.findIndex((s) => s >= heat.size - 0.5), next = sizes[Math.min(sizes.length - 1, Math.max(0, (i < 0 ? sizes.length : i) + by))]; zoom(next); };
  function zoom(size) {
    const { r1, r2, c1, c2 } = heat.sight();
    heat.zoom(size, heat.at || [(r1 + r2 - 1) / 2, (c1 + c2 - 1) / 2]);
    app.replace(address({ row: get("row"), col: get("col"), zoom: size ? String(size) : "fit" }));
    params = new URLSearchParams(location.search);
  }

  const hint = () => clear(panel, h("h2", {}, "Choose a cell"), h("p", { class: "dim small" }, "It shows what decides the connections from its row to its column, and leads to the whole way."));

  // A change of port or of what is compared is another address.
  const address = (more) => {
    const q = new URLSearchParams();
    for (const n of params.getAll("ns")) q.append("ns", n);
    const words = { port: port.value, after: get("after"), zoom: get("zoom"), row: "", col: "", ...more };
    for (const [k, v] of Object.entries(words)) if (v) q.append(k, v);
    return "/matrix?" + q;
  };
  const again = () => app.go(address({}));
  after.addEventListener("click", () => app.go(address({ after: change ? "" : "1" })));
  port.input.addEventListener("change", again);
  port.input.addEventListener("keydown", (e) => { if (e.key === "Enter") again(); });

  function keys() {
    if (!heat.tones) return;
    const one = (v, text) => { const k = h("canvas", { width: 36, height: 36, style: { width: "18px", height: "18px" }, "aria-hidden": "true" }), c = k.getContext("2d"); c.scale(2, 2); heat.square(c, 0, 0, 18, v); return h("span", {}, k, text); };
    clear(legend, one({ allowed: 1, total: 1 }, "all"), one({ allowed: 1, total: 3 }, "some"), one({ allowed: 0, total: 1 }, "nobody"), one({ allowed: 0, total: 0 }, "no pair"), change && [one({ allowed: 1, total: 1, opened: 1 }, "opened"), one({ allowed: 0, total: 1, closed: 1 }, "closed")]);
  }

  // ---- asking: blocks in sight first, then the others, one question at a time: the
  // answer takes a processor, and the page needs one, too
  const blocks = (r1, r2, c1, c2) => {
    const out = [];
    for (let i = Math.floor(r1 / block) * block; i < r2; i += block) for (let j = Math.floor(c1 / block) * block; j < c2; j += block) if (!asked.has(i + "," + j)) out.push([i, j]);
    return out;
  };
  heat.onwant = (...sight) => { wanted = blocks(...sight); work(); };
  heat.onfull = () => {
    performance.mark("matrix-filled");
    const n = heat.groups.length;
    if (!rest && n * n <= all) rest = blocks(0, n, 0, n);
    work();
  };
  function work() {
    if (running) return;
    let next = wanted.shift();
    while (!next && rest && rest.length) { const b = rest.shift(); if (!asked.has(b.join())) next = b; }
    if (!next) { if (rest && !rest.length) performance.mark("matrix-complete"); return; }
    const [i, j] = next, key = i + "," + j, mine = asking;
    if (asked.has(key)) { work(); return; }
    asked.add(key);
    running = true;
    const rows = heat.groups.slice(i, i + block), cols = heat.groups.slice(j, j + block);
    ask("reach", { port: port.value, row: rows.map((g) => g.name), col: cols.map((g) => g.name), change }, mine.signal).then((a) => {
      if (mine !== asking) return;
      heat.fill(i, j, a.rows);
      if (heat.at) live.textContent = says(...heat.at);
    }, (err) => {
      if (err.name === "AbortError" || mine !== asking) return;
      wanted = []; rest = [];
      clear(live, problem(err));
    }).finally(() => { if (mine === asking) { running = false; work(); } });
  }

  // ---- pointing and choosing
  const says = (i, j) => {
    const v = heat.cells[i][j], pair = `${name(i)} → ${name(j)}: `;
    if (!v) return pair + "being counted";
    if (!v.total) return pair + "one pod and itself";
    const share = v.allowed === v.total ? "allowed" : v.allowed === 0 ? "refused" : `${v.allowed.toLocaleString("en")} of ${v.total.toLocaleString("en")} pairs of pods allowed`;
    return pair + share + (v.opened ? `, ${v.opened.toLocaleString("en")} opened` : "") + (v.closed ? `, ${v.closed.toLocaleString("en")} closed` : "");
  };
  function move(p) {
    const at = heat.at;
    if (p === at || (p && at && p[0] === at[0] && p[1] === at[1])) return;
    heat.at = p;
    live.textContent = p ? says(...p) : "";
    heat.draw();
  }
  canvas.addEventListener("pointermove", (e) => move(heat.where(e)));
  canvas.addEventListener("pointerleave", () => move(null));
  canvas.addEventListener("click", (e) => { const p = heat.where(e); if (p) { move(p); open(...p); } });
  canvas.addEventListener("dblclick", (e) => { const p = heat.where(e); if (p && heat.size < 20) { move(p); zoom(20); } });
  canvas.addEventListener("focus", () => { if (!heat.at && heat.groups.length && canvas.matches(":focus-visible")) move([0, 0]); });
  canvas.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || !heat.groups.length) return;
    const way = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], Home: [0, -1e9], End: [0, 1e9], PageDown: [10, 0], PageUp: [-10, 0] }[e.key], n = heat.groups.length - 1;
    const other = { Enter: () => heat.at && open(...heat.at), "+": () => step(1), "-": () => step(-1), 0: () => zoom(0) }[e.key];
    if (!way && !other) return;
    e.preventDefault();
    if (other) { other(); return; }
    const p = heat.at || [0, 0];
    move([Math.min(n, Math.max(0, p[0] + way[0])), Math.min(n, Math.max(0, p[1] + way[1]))]);
    heat.reveal(heat.at);
  });
  scroll.addEventListener("scroll", () => heat.draw(), { passive: true });

  async function open(i, j, quiet) {
    const row = name(i), col = name(j), mine = (opened = row + "\n" + col);
    heat.picked = [i, j];
    heat.draw();
    if (!quiet) { app.replace(address({ row, col })); params = new URLSearchParams(location.search); }
    clear(panel, h("h2", {}, row, " → ", col), h("p", { class: "dim small" }, "Reading…"));
    let a;
    try {
      a = await ask("cell", { port: port.value, row, col, change });
    } catch (err) { if (opened === mine) clear(panel, problem(err)); return; }
    if (opened !== mine || !alive) return;
    clear(panel, h("h2", {}, row, " → ", col), h("p", { class: "dim small" }, `port ${port.value}`, change ? ", after your change" : ""),
      by === "namespace" && h("p", {}, h("a", { class: "button", href: "/matrix?" + new URLSearchParams([...new Set([row, col])].map((n) => ["ns", n]).concat([["port", port.value]], get("after") ? [["after", "1"]] : [])), "data-view": "" }, "Show by workload")),
      a.decisions.map((d) => h("div", { class: "decision" }, h("div", { class: "row" }, verdict(d.example.verdict), h("span", { class: "dim small num" }, plural(d.count, "pair"))),
        h("p", {}, decides(d.example)),
        h("p", {}, h("a", { href: path("why", { from: d.example.from, to: d.example.to, port: d.example.port, change }), "data-view": "" }, `Why? ${d.example.from} → ${d.example.to}`)))),
      !a.decisions.length && h("p", { class: "dim" }, "One pod and itself: always allowed."), a.total > a.decisions.length && h("p", { class: "dim small" }, `and ${a.total - a.decisions.length} more ways`));
  }
  function decides(f) {
    if (f.egress.verdict !== "Allow") return ["leaving: ", because(f.egress)];
    if (f.ingress.verdict !== "Allow") return ["entering: ", because(f.ingress)];
    return ["leaving: ", because(f.egress), "; entering: ", because(f.ingress)];
  }

  const resized = () => { if (get("zoom") === "fit") heat.zoom(0); theme(); };
  addEventListener("themechange", resized);
  app.onworld = load;
  theme();
  await load();
  return {
    leave() { alive = false; asking.abort(); removeEventListener("themechange", resized); },
    update(p) { params = p; opened = ""; port.value = get("port") || "80/TCP"; scroll.scrollTo(0, 0); load(); },
  };
}
