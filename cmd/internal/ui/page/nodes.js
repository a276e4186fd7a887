// Nodes: what each daemon enforces, and how.
import { h, ask, clear, plural, ago, problem } from "./dom.js";
import { Series, plot } from "./plot.js";

const every = 3000;
const span = (s) => (s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`);

// What the page has seen so far outlives the view.
const s = { allowed: new Series(), refused: new Series(), kernel: new Series(), lag: new Series() };
const seen = new Map(); // when each policy appeared, by its hash
let first = true;

export default async function mount(el, params, app) {
  const sum = h("p", { role: "status" }), plots = h("div", { class: "plots" }), list = h("div", { class: "nodes" }), say = h("div", {});
  el.append(h("div", { class: "head" }, h("div", { class: "grow" }, h("h1", {}, "Nodes"), sum)), say, plots, list);
  const drawn = [plot("First packets allowed", "/s", "--allow", s.allowed), plot("First packets refused", "/s", "--drop", s.refused, true), plot("Packets passed in the kernel", "/s", "--focus", s.kernel), plot("The node furthest behind", "s", "--warn", s.lag, true)];
  plots.append(...drawn.map((p) => p.el));
  plots.hidden = true;
  let before = null, timer, alive = true;
  for (const one of Object.values(s)) one.gap();
  const redraw = () => drawn.forEach((p) => p.draw());
  addEventListener("themechange", redraw);

  async function load() {
    let a;
    try {
      a = await ask("status");
    } catch (err) {
      clear(say, err.status === 409 ? h("div", { class: "card empty" }, h("p", {}, err.message), h("p", {}, "Start ", h("code", {}, "tierwall ui"), " with a kubeconfig, or with ", h("code", {}, "--local"), " on a node, or try ", h("code", {}, "tierwall demo --ui"), ".")) : problem(err));
      if (err.status === 409) return;
      next();
      return;
    }
    clear(say);
    const ready = a.nodes.filter((n) => n.status && n.status.ready), newest = newestOf(ready), late = ready.filter((n) => behind(n, newest) > 0).length;
    sum.textContent = `${ready.length} of ${plural(a.nodes.length, "node")} ${ready.length === 1 ? "enforces" : "enforce"} policy` + (late ? `, ${late} of them not the newest one` : ready.length > 1 ? ", all the same one" : "");
    measure(a, newest);
    // The ones to look at come first.
    const rank = (n) => (!n.status ? 0 : !n.status.ready ? 1 : behind(n, newest) > 0 ? 2 : 3);
    clear(list, [...a.nodes].sort((x, y) => rank(x) - rank(y)).map((n) => card(n, newest)));
    next();
  }
  // The newest policy is the one that appeared last while the page looked; of those that
  // were there from the start, that of most nodes. since is for how long, in seconds.
  const age = (t) => (t.policy.lastSuccess ? Math.max(0, (new Date(t.now) - new Date(t.policy.lastSuccess)) / 1000) : Infinity);
  function newestOf(ready) {
    const nodes = new Map(), now = performance.now();
    for (const { status: t } of ready) {
      if (t.source.snapshot) continue; // it is of the node's disk, and may be old
      const h = t.policy.hash, at = nodes.get(h) || { n: 0, age: 0 };
      nodes.set(h, { n: at.n + 1, age: Math.max(at.age, age(t)) });
      if (!seen.has(h)) seen.set(h, first ? 0 : now);
    }
    first = false;
    const best = [...nodes].sort(([a, x], [b, y]) => seen.get(b) - seen.get(a) || y.n - x.n)[0];
    return best && { hash: best[0], since: seen.get(best[0]) ? (now - seen.get(best[0])) / 1000 : best[1].age };
  }
  const behind = (n, newest) => (!newest || !n.status || !n.status.ready || n.status.policy.hash === newest.hash ? 0 : Math.max(1, Math.min(newest.since, age(n.status))));
  const next = () => { if (alive) timer = setTimeout(load, every); };

  // Totals of nodes that answered both times make the rates: a node that goes away, or a
  // daemon that starts again, is no change of traffic.
  function measure(a, newest) {
    const now = { at: performance.now(), by: new Map() };
    let lag = 0;
    for (const n of a.nodes) {
      if (!n.status) continue;
      const { traffic: t, started } = n.status;
      now.by.set(n.node + started, { allowed: t.passed, refused: t.dropped, kernel: t.kernel });
      lag = Math.max(lag, behind(n, newest));
    }
    if (before) {
      const sum = { allowed: 0, refused: 0, kernel: 0 };
      for (const [k, v] of now.by) { const old = before.by.get(k); if (old) for (const f in sum) sum[f] += Math.max(0, v[f] - old[f]); }
      for (const f in sum) s[f].add((1000 * sum[f]) / (now.at - before.at));
      s.lag.add(lag);
      plots.hidden = false;
      redraw();
    }
    before = now;
  }

  function card(n, newest) {
    const t = n.status, late = behind(n, newest);
    const title = h("div", { class: "row" }, h("h2", {}, n.node || "this node"), !t ? h("span", { class: "tag warn" }, "? no answer") : !t.ready ? h("span", { class: "tag drop" }, "✕ not ready") : late > 0 ? h("span", { class: "tag warn" }, `↺ ${span(late)} behind`) : h("span", { class: "tag allow" }, "✓ enforces"));
    if (!t) return h("section", { class: "card pad", "aria-label": n.node }, title, h("p", { class: "small" }, n.error), h("p", { class: "small dim" }, /^no daemon/.test(n.error) ? "No policy is enforced there. A taint or a node selector may keep the daemon off this node." : "What it enforces is not known."));
    const p = t.policy, d = t.dataplane, hints = [];
    if (!t.ready && t.notReady) hints.push(["", t.notReady]);
    if (late > 0) hints.push(["warning", "It enforces another policy than the newest.", `It took up its own ${span(age(t))} ago. A change on its way takes a moment; if this stays, look at the daemon's log.`]);
    for (const e of p.errors || []) hints.push(["", [e.object || e.file, e.path, e.message].filter(Boolean).join(": "), e.hint]);
    if (p.errorsTotal > (p.errors || []).length) hints.push(["", `and ${plural(p.errorsTotal - p.errors.length, "more error")}`]);
    if (t.source.problem) hints.push(["warning", t.source.problem]);
    if (t.source.snapshot) hints.push(["warning", "The API server has not been reached since the daemon started: the policy is the one of this node's disk."]);
    for (const b of d.probes || []) if (!b.running) hints.push(["note", `${b.backend} does not run: ${b.why || "unknown"}`]);
    for (const k of t.source.notUnderstood || []) if (k.matters) hints.push(["warning", k.message, k.hint]);
    if (t.traffic.overflow) hints.push(["warning", plural(t.traffic.overflow, "packet") + " dropped because a queue was full."]);
    if (t.audit && t.audit.lost) hints.push(["warning", plural(t.audit.lost, "audit record") + " lost; the log says when.", "tierwall audit shows where they are missing"]);
    const row = (k, ...v) => [h("dt", {}, k), h("dd", {}, ...v)], count = (n) => n.toLocaleString("en"), traffic = t.traffic, running = (d.probes || []).filter((b) => b.running && b.how);
    return h("section", { class: "card pad", "aria-label": n.node }, title,
      h("dl", {},
        row("Policy", h("code", { title: p.hash }, (p.hash || "none").slice(0, 12)), h("span", { class: "dim small" }, ` table ${p.generation}`, p.lastSuccess ? `, for ${span(age(t))}` : "")),
        row("Has", `${plural(p.objects, "object")}, ${plural(p.rules, "rule")}, ${plural(p.pods, "pod")}`, p.staged ? `, ${p.staged} staged` : ""),
        row("Backends", h("b", {}, d.backends || "none"), h("div", { class: "dim small" }, d.why, running.map((b) => [h("br"), `${b.backend}: ${b.how}`]))),
        d.kernel && row("Kernel", d.kernel),
        row("Fails", d.failMode),
        row("Connections", count(traffic.connections)),
        row("Packets", `${count(traffic.passed)} allowed, ${count(traffic.dropped)} refused`, h("div", { class: "dim small" }, `${count(traffic.kernel)} more passed in the kernel`)),
        row("Losses", !traffic.overflow && !(t.audit && t.audit.lost) ? "none" : `${plural(traffic.overflow, "packet")}, ${plural(t.audit ? t.audit.lost : 0, "record")}`),
        row("Source", t.source.kind, h("div", { class: "dim small" }, t.source.where)),
        row("Daemon", t.version, `, up ${ago(t.started)}`)),
      hints.map(([kind, text, hint]) => h("div", { class: "finding " + kind }, text, hint && h("div", { class: "dim" }, hint))));
  }

  await load();
  return { leave() { alive = false; clearTimeout(timer); removeEventListener("themechange", redraw); } };
}
