// Matrix: who can connect to whom, as a heat map that stays quick with ten thousand
// pods. Only the cells in sight are drawn, and only they are asked for.
import { h, ask, clear, css, verdict, because, link, path, plural, problem } from "./dom.js";
import { combo } from "./combo.js";
import { hasDraft, compile } from "./session.js";

const left = 190, top = 120, block = 8; // block: cells are asked for in blocks

export default async function mount(el, params, app) {
  const get = (k) => params.get(k) || "";
  const port = combo({ kind: "port", value: get("port") || "80/TCP", placeholder: "80/TCP", label: "Port", onpick: () => again() });
  const after = h("button", { type: "button", "aria-pressed": "false" }, "After my change");
  const crumb = h("div", { class: "crumb small" }), canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map", "aria-label": "Who can connect to whom. Arrow keys move, Enter opens a cell." });
  const space = h("div", { class: "space" }), scroll = h("div", { class: "card scroll" }, canvas, space), live = h("div", { class: "small dim num", role: "status", style: { padding: "6px 2px", "min-height": "2em" } });
  const panel = h("aside", { class: "card pad panel", "aria-label": "The chosen cell" }), legend = h("div", { class: "legend" });
  el.append(
    h("div", { class: "head" }, h("div", { class: "grow" }, h("h1", {}, "Who can connect to whom"), h("p", {}, "Rows connect to columns. The fuller a square, the more of the pods may.")), h("label", { class: "field" }, "Port", port.el), after),
    h("div", { class: "row", style: { "margin-bottom": "8px", "justify-content": "space-between" } }, crumb, legend),
    h("div", { class: "map" }, h("div", {}, scroll, live), panel));

  let groups = [], by = "", cells = [], asked = new Set(), size = 22, at = null, picked = null, change = "", asking = new AbortController(), alive = true, drawing = false, colors = {}, running = 0;
  const ask8 = []; // blocks to ask for

  const theme = () => { colors = Object.fromEntries(["--ink", "--dim", "--line", "--card", "--soft", "--allow", "--drop", "--focus", "--warn", "--allow-bg", "--drop-bg"].map((n) => [n, css(n)])); keys(); draw(); };
  const name = (i) => groups[i].name;

  async function load() {
    asking.abort();
    asking = new AbortController();
    cells = []; asked = new Set(); ask8.length = 0; running = 0; at = null;
    after.hidden = !hasDraft();
    if (!after.hidden && get("after")) {
      try {
        const c = await compile(asking.signal);
        change = c.fit ? c.change : "";
        if (!c.fit) throw new Error("The change has errors: correct them first.");
      } catch (err) { if (err.name !== "AbortError") clear(live, problem(err)); change = ""; }
    } else change = "";
    after.setAttribute("aria-pressed", String(!!change));
    let g;
    try {
      g = await ask("groups", { namespace: params.getAll("ns") }, asking.signal);
    } catch (err) { if (err.name !== "AbortError") { clear(panel); clear(live, problem(err)); } return; }
    groups = g.groups; by = g.by;
    size = groups.length <= 12 ? 38 : groups.length <= 30 ? 26 : 20;
    cells = groups.map(() => []);
    scroll.style.height = top + groups.length * size + 18 + "px";
    space.style.width = left + groups.length * size + "px";
    space.style.height = top + groups.length * size + "px";
    clear(crumb, params.getAll("ns").length ? [link("matrix", { port: port.value, after: get("after") }, "All namespaces"), " › ", params.getAll("ns").map((n, i) => [i ? " + " : "", h("b", {}, n)]), " by workload"] : h("span", {}, plural(groups.reduce((n, x) => n + x.pods, 0), "pod"), " in ", plural(groups.length, by), by === "namespace" ? ": choose a cell to go into it" : ""));
    if (!picked) hint();
    if (get("row") && get("col")) { const r = groups.findIndex((x) => x.name === get("row")), c = groups.findIndex((x) => x.name === get("col")); if (r >= 0 && c >= 0) { at = [r, c]; open(r, c, true); } }
    keys();
    draw();
    performance.mark("matrix-shown");
  }

  const hint = () => clear(panel, h("h2", {}, "Choose a cell"), h("p", { class: "dim small" }, "It shows what decides the connections from its row to its column, and leads to the whole way."));

  // A change of port or of what is compared is another address.
  const address = (more) => {
    const q = new URLSearchParams();
    for (const n of params.getAll("ns")) q.append("ns", n);
    const all = { port: port.value, after: get("after"), row: "", col: "", ...more };
    for (const [k, v] of Object.entries(all)) if (v) q.append(k, v);
    return "/matrix?" + q;
  };
  const again = () => app.go(address({}));
  after.addEventListener("click", () => app.go(address({ after: change ? "" : "1" })));
  port.input.addEventListener("change", again);
  port.input.addEventListener("keydown", (e) => { if (e.key === "Enter") again(); });

  // ---- drawing
  function draw() { if (!drawing) { drawing = true; requestAnimationFrame(paint); } }

  function paint() {
    drawing = false;
    if (!alive) return;
    const r = devicePixelRatio || 1, w = scroll.clientWidth, ht = scroll.clientHeight;
    if (canvas.width !== Math.round(w * r) || canvas.height !== Math.round(ht * r)) { canvas.width = Math.round(w * r); canvas.height = Math.round(ht * r); canvas.style.width = w + "px"; canvas.style.height = ht + "px"; }
    const c = canvas.getContext("2d");
    c.setTransform(r, 0, 0, r, 0, 0);
    c.fillStyle = colors["--card"]; c.fillRect(0, 0, w, ht);
    const x0 = scroll.scrollLeft, y0 = scroll.scrollTop, n = groups.length;
    const c1 = Math.floor(x0 / size), c2 = Math.min(n, Math.ceil((x0 + w - left) / size)), r1 = Math.floor(y0 / size), r2 = Math.min(n, Math.ceil((y0 + ht - top) / size));
    c.save(); c.beginPath(); c.rect(left, top, w, ht); c.clip();
    let waiting = false;
    for (let i = r1; i < r2; i++) for (let j = c1; j < c2; j++) {
      const x = left + j * size - x0, y = top + i * size - y0, v = cells[i][j];
      if (v) square(c, x, y, size, v); else { waiting = true; c.fillStyle = colors["--soft"]; c.fillRect(x + 1, y + 1, size - 2, size - 2); }
    }
    if (at) { c.strokeStyle = colors["--focus"]; c.lineWidth = 2; c.strokeRect(left + at[1] * size - x0 + 1, top + at[0] * size - y0 + 1, size - 2, size - 2); }
    c.restore();
    c.font = "12px system-ui, sans-serif"; c.textBaseline = "middle";
    c.save(); c.beginPath(); c.rect(0, top, left, ht); c.clip();
    for (let i = r1; i < r2; i++) { c.fillStyle = at && at[0] === i ? colors["--ink"] : colors["--dim"]; c.textAlign = "right"; c.fillText(fit(c, name(i), left - 14), left - 8, top + i * size - y0 + size / 2); }
    c.restore();
    c.save(); c.beginPath(); c.rect(left, 0, w, top); c.clip(); c.textAlign = "left";
    for (let j = c1; j < c2; j++) { c.save(); c.translate(left + j * size - x0 + size / 2, top - 8); c.rotate(-Math.PI / 3.2); c.fillStyle = at && at[1] === j ? colors["--ink"] : colors["--dim"]; c.fillText(fit(c, name(j), 128), 0, 0); c.restore(); }
    c.restore();
    if (waiting) want(r1, r2, c1, c2);
    else if (n) performance.mark("matrix-filled");
  }

  // A square says by its size what share is allowed; nothing allowed is a small cross.
  function square(c, x, y, s, v) {
    const share = v.total ? v.allowed / v.total : 0, m = s / 2;
    if (!v.total) { c.fillStyle = colors["--line"]; c.fillRect(x + m - 3, y + m - 0.5, 6, 1); return; }
    if (v.opened || v.closed) { c.fillStyle = v.opened ? colors["--allow-bg"] : colors["--drop-bg"]; c.fillRect(x, y, s, s); }
    if (share === 0) {
      c.strokeStyle = colors["--drop"]; c.lineWidth = 1.4; const a = Math.min(3.5, s / 6);
      c.beginPath(); c.moveTo(x + m - a, y + m - a); c.lineTo(x + m + a, y + m + a); c.moveTo(x + m + a, y + m - a); c.lineTo(x + m - a, y + m + a); c.stroke();
    } else {
      const e = Math.max(5, (s - 4) * Math.sqrt(share));
      c.fillStyle = colors["--allow"];
      c.fillRect(x + m - e / 2, y + m - e / 2, e, e);
      if (share < 1) { c.strokeStyle = colors["--line"]; c.lineWidth = 1; c.strokeRect(x + 2.5, y + 2.5, s - 5, s - 5); }
    }
    if (v.opened || v.closed) {
      c.strokeStyle = c.fillStyle = colors["--ink"]; c.lineWidth = 1.5; c.setLineDash(v.closed && !v.opened ? [3, 2] : []); c.strokeRect(x + 1, y + 1, s - 2, s - 2); c.setLineDash([]);
    }
  }
  const memo = new Map();
  function fit(c, text, w) {
    const key = text + "\n" + w;
    if (!memo.has(key)) { let t = text; while (t.length > 4 && c.measureText(t).width > w) t = t.slice(0, -2).replace(/…?$/, "…"); memo.set(key, t); }
    return memo.get(key);
  }

  function keys() {
    const one = (v, text) => { const k = h("canvas", { width: 36, height: 36, style: { width: "18px", height: "18px" }, "aria-hidden": "true" }), c = k.getContext("2d"); c.scale(2, 2); square(c, 0, 0, 18, v); return h("span", {}, k, text); };
    clear(legend, one({ allowed: 1, total: 1 }, "all"), one({ allowed: 1, total: 3 }, "some"), one({ allowed: 0, total: 1 }, "nobody"), one({ allowed: 0, total: 0 }, "no pair"), change && [one({ allowed: 1, total: 1, opened: 1 }, "opened"), one({ allowed: 0, total: 1, closed: 1 }, "closed")]);
  }

  // ---- asking: blocks in sight first, one question at a time: the answer takes a processor, and the page needs one, too
  function want(r1, r2, c1, c2) {
    ask8.length = 0;
    for (let i = Math.floor(r1 / block) * block; i < r2; i += block) for (let j = Math.floor(c1 / block) * block; j < c2; j += block) if (!asked.has(i + "," + j)) ask8.push([i, j]);
    work();
  }
  function work() {
    while (running < 1 && ask8.length) {
      const [i, j] = ask8.shift(), key = i + "," + j, signal = asking.signal;
      if (asked.has(key)) continue;
      asked.add(key);
      running++;
      const rows = groups.slice(i, i + block), cols = groups.slice(j, j + block);
      ask("reach", { port: port.value, row: rows.map((g) => g.name), col: cols.map((g) => g.name), change }, signal).then((a) => {
        a.rows.forEach((row, di) => row.forEach((v, dj) => { cells[i + di][j + dj] = v; }));
        draw();
      }, (err) => { if (err.name !== "AbortError") { asked.delete(key); ask8.length = 0; clear(live, problem(err)); } }).finally(() => { if (signal === asking.signal) { running--; work(); } });
    }
  }

  // ---- pointing and choosing
  const where = (e) => {
    const b = canvas.getBoundingClientRect(), j = Math.floor((e.clientX - b.left - left + scroll.scrollLeft) / size), i = Math.floor((e.clientY - b.top - top + scroll.scrollTop) / size);
    return i >= 0 && j >= 0 && i < groups.length && j < groups.length && e.clientX - b.left > left && e.clientY - b.top > top ? [i, j] : null;
  };
  const says = (i, j) => {
    const v = cells[i][j], pair = `${name(i)} → ${name(j)}: `;
    if (!v) return pair + "being counted";
    if (!v.total) return pair + "one pod and itself";
    const all = v.allowed === v.total ? "allowed" : v.allowed === 0 ? "refused" : `${v.allowed.toLocaleString("en")} of ${v.total.toLocaleString("en")} pairs of pods allowed`;
    return pair + all + (v.opened ? `, ${v.opened} opened` : "") + (v.closed ? `, ${v.closed} closed` : "");
  };
  function move(p) { if (p && at && p[0] === at[0] && p[1] === at[1]) return; at = p; live.textContent = p ? says(...p) : ""; draw(); }
  canvas.addEventListener("pointermove", (e) => move(where(e)));
  canvas.addEventListener("click", (e) => { const p = where(e); if (p) { move(p); open(...p); } });
  canvas.addEventListener("focus", () => { if (!at && groups.length) move([0, 0]); });
  canvas.addEventListener("keydown", (e) => {
    const step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[e.key];
    if (e.key === "Enter" && at) { e.preventDefault(); open(...at); return; }
    if (!step || !groups.length) return;
    e.preventDefault();
    const p = at || [0, 0], n = groups.length - 1;
    move([Math.min(n, Math.max(0, p[0] + step[0])), Math.min(n, Math.max(0, p[1] + step[1]))]);
    const x = at[1] * size, y = at[0] * size;
    if (x < scroll.scrollLeft) scroll.scrollLeft = x; else if (x + size + left > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = x + size + left - scroll.clientWidth;
    if (y < scroll.scrollTop) scroll.scrollTop = y; else if (y + size + top > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = y + size + top - scroll.clientHeight;
  });
  scroll.addEventListener("scroll", draw, { passive: true });

  async function open(i, j, quiet) {
    const row = name(i), col = name(j), mine = (picked = row + "\n" + col);
    if (!quiet) { app.replace(address({ row, col })); params = new URLSearchParams(location.search); }
    clear(panel, h("h2", {}, row, " → ", col), h("p", { class: "dim small" }, "Reading…"));
    let a;
    try {
      a = await ask("cell", { port: port.value, row, col, change });
    } catch (err) { if (picked === mine) clear(panel, problem(err)); return; }
    if (picked !== mine || !alive) return;
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

  addEventListener("themechange", theme);
  app.onworld = load;
  theme();
  await load();
  return {
    leave() { alive = false; asking.abort(); removeEventListener("themechange", theme); },
    update(p) { params = p; picked = null; port.value = get("port") || "80/TCP"; scroll.scrollTo(0, 0); load(); },
  };
}
