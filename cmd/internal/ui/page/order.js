// Order: every policy of every API, in the one order they are evaluated in.
import { h, ask, clear, plural, refOf, short, path, link, staged, problem, ago, debounce, sign, shown } from "./dom.js";
import { combo } from "./combo.js";

const bands = [
  ["antrea-upper", "Antrea tiers below 220, by tier and priority"],
  ["admin", "AdminNetworkPolicies, by priority: administrators speak first"],
  ["cluster-empower", "KEP ClusterNetworkPolicy: what namespaces may decide themselves"],
  ["cluster-deny", "KEP ClusterNetworkPolicy: denials"],
  ["cluster-allow", "KEP ClusterNetworkPolicy: allowances"],
  ["antrea-lower", "Antrea tiers 221 to 252"],
  ["networkpolicy", "NetworkPolicies and Cilium's: allowances add up; a pod that one selects is isolated from the rest"],
  ["antrea-baseline", "Antrea's baseline tier"],
  ["baseline", "Baseline policies: what holds where namespaces say nothing"],
  ["cluster-default", "KEP ClusterDefaultNetworkPolicy"],
  ["default", "Nothing decided: allowed"],
];
const firstRows = 60;

// plain makes a selector's text form easier to read: {} is every pod, and of
// {namespace="shop" pods("app"=["db"])} the names stay.
export const plain = (s) => (s === "{}" ? "every pod" : s.replace(/^\{|\}$/g, "").replace(/"([^"]*)"=\[([^\]]*)\]/g, (_, k, v) => k + "=" + v.slice(1, -1).split('" "').join(" or ")).replace(/namespace="([^"]*)"/g, "namespace $1,").replace(/,\s*$/, ", every pod"));

export default async function mount(el, params, app) {
  const text = h("input", { type: "search", placeholder: "name, namespace, label…", value: params.get("q") || "" });
  const pod = combo({ kind: "from", value: params.get("pod") || "", placeholder: "any pod", label: "Only policies about this pod", onpick: () => refresh() });
  const count = h("div", { class: "dim small", role: "status", style: { margin: "0 2px 12px" } });
  const list = h("div", {});
  let policies = [], findings = new Map(), loose = [], hits = null, alive = true, checked = false;

  el.append(
    h("div", { class: "head" },
      h("div", { class: "grow" }, h("h1", {}, "The order that counts"), h("p", {}, "Every policy, strongest first. A connection goes from top to bottom; the first band that decides ends the way.")),
      h("label", { class: "field" }, "Filter", text), h("label", { class: "field" }, "About pod", pod.el)),
    count, list);

  const wanted = () => params.get("policy");

  function tags(p) {
    const out = [], ref = refOf(p);
    if (p.stage !== "enforce") out.push(staged());
    const f = findings.get(ref);
    for (const kind of ["error", "overridden", "warning"]) {
      const n = f ? f.filter((x) => x.kind === kind).length : 0;
      if (n) out.push(h("span", { class: "tag " + (kind === "error" ? "drop" : "warn") }, kind === "error" ? "✕ error" : kind === "overridden" ? "↥ overridden" : "⚠ " + plural(n, "warning")));
    }
    const hit = hits && hits.get(ref);
    if (hit) {
      const all = hit.allow + hit.deny;
      out.push(h("span", { class: "row small num dim", title: `in the last hour: ${hit.allow} allowed, ${hit.deny} refused` },
        h("span", { class: "bars", "aria-hidden": "true" }, h("i", { class: "a", style: { width: (100 * hit.allow / all) + "%" } }), h("i", { class: "d", style: { width: (100 * hit.deny / all) + "%" } })),
        all.toLocaleString("en") + " hits"));
    }
    return out;
  }

  function details(p) {
    const ref = refOf(p), f = findings.get(ref) || [], hit = hits && hits.get(ref);
    return h("div", { class: "more" },
      h("dl", {},
        h("dt", {}, "About"), h("dd", { class: "mono" }, p.subjects.join(", ") || "nothing: it has no effective rule"),
        h("dt", {}, "Written as"), h("dd", {}, p.source),
        p.tierPriority !== null && [h("dt", {}, "Tier"), h("dd", {}, p.tierPriority)],
        p.priority !== null && [h("dt", {}, "Priority"), h("dd", {}, p.priority)],
        h("dt", {}, "Rules"), h("dd", {}, p.rules),
        hit && [h("dt", {}, "Last hour"), h("dd", {}, `${hit.allow.toLocaleString("en")} allowed, ${hit.deny.toLocaleString("en")} refused, last ${ago(hit.last)} ago`)]),
      f.map((x) => h("div", { class: "finding " + (x.kind === "error" ? "" : "warning") }, h("b", {}, x.path ? x.path + ": " : ""), x.message, x.hint && h("div", { class: "dim" }, x.hint),
        x.override && x.override.from && h("div", {}, link("why", { from: x.override.from, to: x.override.to, port: x.override.port, icmp: x.override.icmp }, "Show such a connection")))),
      h("div", { class: "row" },
        h("a", { class: "button", href: path("change", { edit: ref }), "data-view": "" }, "Try a change"),
        app.world && app.world.records && h("a", { class: "button", href: path("stream", { policy: ref }), "data-view": "" }, "Its records")));
  }

  function rung(p, i) {
    const open = wanted() === refOf(p);
    const d = h("details", { class: "policy" + (p.stage !== "enforce" ? " staged" : ""), open, id: "p" + i },
      h("summary", {}, h("span", { class: "pos num" }, i + 1), h("span", { class: "name" }, p.namespace && h("span", {}, p.namespace + "/"), p.name),
        h("span", { class: "kind dim small" }, short(refOf(p)).split(" ").slice(0, -1).join(" "), p.priority !== null ? ` · priority ${p.priority}` : ""),
        h("span", { class: "subj mono", title: p.subjects.join("\n") }, p.subjects.map(plain).join("; ")),
        h("span", { class: "tags" }, tags(p))));
    const fill = () => { if (d.open && d.childElementCount === 1) d.append(details(p)); };
    d.addEventListener("toggle", fill);
    fill();
    return d;
  }

  // The first rows are there at once, the others when the page has time.
  function draw() {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matching = policies.map((p, i) => [p, i]).filter(([p]) => words.every((w) => [p.name, p.namespace, p.kind, p.band, p.dialect, p.stage, ...p.subjects].join(" ").toLowerCase().includes(w)) && (!wanted() || words.length || refOf(p) === wanted() || !params.has("only")));
    count.textContent = matching.length === policies.length ? plural(policies.length, "policy") : `${matching.length.toLocaleString("en")} of ${plural(policies.length, "policy")}`;
    const by = new Map(bands.map(([b]) => [b, []]));
    by.set("", []);
    for (const one of matching) (by.get(one[0].band) || by.get("")).push(one);
    clear(list);
    loose.length && list.append(h("div", {}, loose.map((x) => h("div", { class: "finding " + (x.kind === "error" ? "" : "warning") }, h("b", {}, (x.object || x.file || "") + ": "), x.path && h("code", {}, x.path + " "), x.message, x.hint && h("div", { class: "dim" }, x.hint)))));
    const later = [];
    let n = 0, rest = firstRows;
    for (const [band, says] of [...bands, ["", "These lower to nothing: they have no effective rule, and no place"]]) {
      const here = by.get(band);
      if (band) n++;
      if (!here.length) {
        if (band && !words.length) list.append(h("div", { class: "rung" }, h("span", { class: "n" }, n), h("b", {}, band), h("span", {}, band === "default" ? says : "no policy")));
        continue;
      }
      const box = h("section", { class: "card band", "aria-label": "band " + (band || "none") },
        h("header", {}, h("span", { class: "n" }, band ? n : "–"), h("h2", {}, band || "no place"), h("p", {}, says), h("span", { class: "count dim small" }, plural(here.length, "policy"))));
      const now = here.slice(0, Math.max(rest, 0));
      rest -= now.length;
      box.append(...now.map(([p, i]) => rung(p, i)));
      if (now.length < here.length) later.push([box, here.slice(now.length)]);
      list.append(box);
    }
    const mine = (draw.turn = (draw.turn || 0) + 1);
    const more = () => {
      if (mine !== draw.turn || !alive || !later.length) { reveal(); return; }
      const [box, rows] = later[0];
      box.append(...rows.splice(0, 150).map(([p, i]) => rung(p, i)));
      if (!rows.length) later.shift();
      setTimeout(more, 0);
    };
    setTimeout(more, 30);
  }
  function reveal() {
    const d = wanted() && list.querySelector("details[open]");
    if (d && !reveal.done) { reveal.done = true; d.scrollIntoView({ block: "center" }); d.querySelector("summary").focus({ preventScroll: true }); }
  }

  async function load() {
    try {
      policies = (await ask("policies", { pod: pod.value })).policies;
    } catch (err) { clear(list, problem(err)); return; }
    if (!policies.length) { clear(list, h("div", { class: "card empty" }, "No policy here: everything is allowed.")); count.textContent = ""; }
    else draw();
    shown("order-shown");
    if (!checked) { checked = true; extra(); }
  }

  // What takes longer, and is not waited for.
  async function extra() {
    await app.ready;
    const jobs = [ask("check").then((f) => {
      findings = new Map(); loose = [];
      const names = new Map(policies.map((p) => [`${p.kind} ${p.namespace ? p.namespace + "/" : ""}${p.name} ${p.group}`, refOf(p)]));
      for (const [kind, l] of [["error", f.errors], ["warning", f.warnings], ["overridden", f.notes || []]]) {
        for (const x of l) {
          const ref = names.get(`${x.object} ${x.group || ""}`), one = { ...x, kind: x.override ? "overridden" : kind };
          if (!ref || kind === "error") loose.push(one);
          if (ref) findings.set(ref, [...(findings.get(ref) || []), one]);
        }
      }
    })];
    if (app.world && app.world.records) jobs.push(countHits());
    await Promise.allSettled(jobs);
    if (alive && policies.length) draw();
  }

  async function countHits() {
    const m = new Map();
    for (const x of (await ask("hits")).policies) {
      const c = m.get(x.policy) || { allow: 0, deny: 0, last: x.last };
      if (x.verdict === "Allow" || x.verdict === "would-allow" || x.verdict === "Pass") c.allow += x.packets; else c.deny += x.packets;
      if (x.last > c.last) c.last = x.last;
      m.set(x.policy, c);
    }
    hits = m;
  }

  const refresh = () => { remember(); load(); };
  function remember() {
    const q = { q: text.value, pod: pod.value };
    app.replace(path("order", q));
    params = new URLSearchParams(location.search);
  }
  text.addEventListener("input", debounce(() => { remember(); draw(); }, 120));
  pod.input.addEventListener("change", refresh);
  pod.input.addEventListener("keydown", (e) => { if (e.key === "Enter") refresh(); });
  app.onworld = () => { checked = false; load(); };
  await load();
  return {
    leave() { alive = false; },
    update(p) { params = p; reveal.done = false; text.value = p.get("q") || ""; pod.value = p.get("pod") || ""; load(); },
  };
}
