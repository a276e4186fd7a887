// Nodes: what each daemon enforces, and how.
import { h, ask, clear, plural, ago, problem } from "./dom.js";
import { Series, plot } from "./plot.js";

const every = 3000;

export default async function mount(el, params, app) {
  const sum = h("p", { role: "status" }), plots = h("div", { class: "plots" }), list = h("div", { class: "nodes" }), say = h("div", {});
  el.append(h("div", { class: "head" }, h("div", { class: "grow" }, h("h1", {}, "Nodes"), sum)), say, plots, list);
  const s = { first: new Series(), kernel: new Series(), dropped: new Series(), lag: new Series() };
  const drawn = [plot("First packets judged in userspace", "/s", "--focus", s.first), plot("Packets passed in the kernel", "/s", "--allow", s.kernel), plot("Packets refused", "/s", "--drop", s.dropped, true), plot("Slowest node, since its last change of policy was looked at", "ms behind", "--warn", s.lag)];
  plots.append(...drawn.map((p) => p.el));
  plots.hidden = true;
  let before = null, timer, alive = true;
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
    const ready = a.nodes.filter((n) => n.status && n.status.ready), count = {};
    for (const n of ready) count[n.status.policy.hash] = (count[n.status.policy.hash] || 0) + 1;
    const hashes = Object.keys(count).sort((x, y) => count[y] - count[x]);
    sum.textContent = `${ready.length} of ${plural(a.nodes.length, "node")} enforce policy` + (hashes.length > 1 ? `, ${hashes.length} different ones: a change on its way, or a node that is behind` : hashes.length ? ", all the same" : "");
    measure(a);
    clear(list, a.nodes.map((n) => card(n, hashes)));
    next();
  }
  const next = () => { if (alive) timer = setTimeout(load, every); };

  function measure(a) {
    const now = { at: performance.now(), first: 0, kernel: 0, dropped: 0 };
    let lag = 0;
    for (const { status: t } of a.nodes) {
      if (!t) continue;
      now.first += t.traffic.userspace; now.kernel += t.traffic.kernel; now.dropped += t.traffic.dropped;
      if (t.policy.lastAttempt && t.policy.lastSuccess) lag = Math.max(lag, new Date(t.policy.lastAttempt) - new Date(t.policy.lastSuccess));
    }
    if (before) {
      const sec = (now.at - before.at) / 1000;
      for (const k of ["first", "kernel", "dropped"]) s[k].add(Math.max(0, (now[k] - before[k]) / sec));
      s.lag.add(Math.max(0, lag));
      plots.hidden = false;
      redraw();
    }
    before = now;
  }

  function card(n, hashes) {
    const t = n.status;
    const title = h("div", { class: "row" }, h("h2", {}, n.node || "this node"), t ? (t.ready ? h("span", { class: "tag allow" }, "✓ enforces") : h("span", { class: "tag drop" }, "✕ not ready")) : h("span", { class: "tag warn" }, "? no answer"));
    if (!t) return h("section", { class: "card pad", "aria-label": n.node }, title, h("p", { class: "small" }, n.error));
    const rank = hashes.indexOf(t.policy.hash), hints = [];
    if (!t.ready && t.notReady) hints.push(["", t.notReady]);
    if (hashes.length > 1 && rank > 0) hints.push(["warning", "It enforces another policy than " + (hashes.length === 2 ? "the other nodes" : "most nodes") + "."]);
    for (const d of t.policy.errors || []) hints.push(["", `${d.object || d.file || ""}: ${d.path || ""} ${d.message}`, d.hint]);
    if (t.source.problem) hints.push(["warning", t.source.problem]);
    if (t.source.snapshot) hints.push(["warning", "The API server has not been reached since the daemon started: the policy is the one of this node's disk."]);
    for (const p of t.dataplane.probes || []) if (!p.running) hints.push(["note", `${p.backend} does not run: ${p.why || "unknown"}`]);
    for (const k of t.source.notUnderstood || []) if (k.matters) hints.push(["warning", k.message, k.hint]);
    if (t.traffic.overflow) hints.push(["warning", plural(t.traffic.overflow, "packet") + " dropped because a queue was full."]);
    if (t.audit && t.audit.lost) hints.push(["warning", plural(t.audit.lost, "audit record") + " lost; the log says when."]);
    const row = (k, ...v) => [h("dt", {}, k), h("dd", {}, ...v)];
    const traffic = t.traffic;
    return h("section", { class: "card pad", "aria-label": n.node }, title,
      h("dl", {},
        row("Policy", h("code", { title: t.policy.hash }, (t.policy.hash || "none").slice(0, 12)), ` table ${t.policy.generation}`, hashes.length > 1 && rank >= 0 ? ` (version ${String.fromCharCode(65 + rank)})` : ""),
        row("Has", `${plural(t.policy.objects, "object")}, ${plural(t.policy.rules, "rule")}, ${plural(t.policy.pods, "pod")}`, t.policy.staged ? `, ${t.policy.staged} staged` : ""),
        t.policy.lastSuccess && row("Last change", `in force ${ago(t.policy.lastSuccess)} ago`),
        row("Dataplane", t.dataplane.backends || "none", h("span", { class: "dim small" }, " " + t.dataplane.why)),
        row("Without daemon", `failMode ${t.dataplane.failMode}`),
        row("Connections", plural(traffic.connections, "connection")),
        row("Packets", `${traffic.userspace.toLocaleString("en")} judged, ${traffic.kernel.toLocaleString("en")} passed in the kernel`),
        row("Losses", `${traffic.overflow.toLocaleString("en")} packets, ${(t.audit ? t.audit.lost : 0).toLocaleString("en")} records`),
        row("Source", `${t.source.kind}, ${t.source.where}`),
        row("Version", `${t.version}, up ${ago(t.started)}`)),
      hints.map(([kind, text, hint]) => h("div", { class: "finding " + kind }, text, hint && h("div", { class: "dim" }, hint))));
  }

  await load();
  return { leave() { alive = false; clearTimeout(timer); removeEventListener("themechange", redraw); } };
}
