// Change: what another policy would do, before anybody applies it.
import { h, ask, post, clear, plural, short, path, link, verdict, problem, debounce } from "./dom.js";
import { combo } from "./combo.js";
import { draft, compile } from "./session.js";

const small = 2000; // pods up to which a change is compared as it is typed

const sample = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: my-change
  namespace: default
spec:
  podSelector: {}
  policyTypes: [Ingress]
`;
const sampleTests = `apiVersion: tierwall.io/v1
kind: Intent
tests:
# - {from: shop/frontend, to: shop/db, port: 5432/TCP, expect: deny}
`;

export default async function mount(el, params, app) {
  await app.ready;
  const d = draft();
  const yaml = h("textarea", { class: "code", spellcheck: "false", autocapitalize: "off", "aria-label": "Policies as YAML", placeholder: sample, value: d.yaml });
  const tests = h("textarea", { class: "code short", spellcheck: "false", "aria-label": "Tests as YAML", value: d.tests ?? ((app.world && app.world.tests) || sampleTests) });
  const pick = combo({ kind: "policy", placeholder: "choose a policy to edit", label: "Policy to edit", onpick: edit });
  const says = h("div", { "aria-live": "polite" }), out = h("div", {}), removed = h("div", { class: "row" }), tested = h("div", {}), replayed = h("div", {});
  const compare = h("button", { class: "main", type: "button", onclick: () => run() }, "Compare");
  const since = h("select", { "aria-label": "How much of the log" }, [["15m", "last 15 minutes"], ["1h", "last hour"], ["24h", "last day"], ["7d", "last week"]].map(([v, t]) => h("option", { value: v, selected: v === "1h" }, t)));
  el.append(
    h("div", { class: "head" }, h("div", { class: "grow" }, h("h1", {}, "What would a change do?"), h("p", {}, "Compiled in memory by your own tierwall, compared connection by connection, and written nowhere.")), h("label", { class: "field" }, "Begin with", pick.el)),
    h("div", { class: "two" },
      h("div", {}, h("div", { class: "card pad" }, yaml, removed, h("div", { class: "row", style: { "margin-top": "8px" } }, compare, h("button", { type: "button", onclick: () => { yaml.value = ""; removals = []; changed(); } }, "Start over"), link("matrix", { after: "1" }, "Show in the matrix"))), says,
        h("details", { class: "card pad", open: !!(app.world && app.world.tests) || !!d.tests, style: { "margin-top": "12px" } }, h("summary", {}, h("b", {}, "Tests"), h("span", { class: "dim small" }, "  what has to stay true")), h("div", { style: { "margin-top": "8px" } }, tests), h("button", { type: "button", onclick: () => runTests() }, "Run tests"), tested)),
      h("div", {}, out, app.world && app.world.records && h("section", { class: "card pad", style: { "margin-top": "12px" } }, h("div", { class: "row" }, h("h2", {}, "Replay"), h("span", { class: "dim small" }, "connections of the log, judged again"), since, h("button", { type: "button", onclick: () => runReplay() }, "Replay")), replayed))));

  let removals = d.remove, change = null, asking = new AbortController(), alive = true;
  const remember = () => draft({ yaml: yaml.value, remove: removals, tests: tests.value });

  async function edit(ref) {
    if (!ref) return;
    try {
      const p = await ask("policy", { ref });
      yaml.value = (yaml.value.trim() ? yaml.value.replace(/\s*$/, "\n---\n") : "") + p.yaml;
      pick.value = "";
      changed();
      yaml.focus();
    } catch (err) { clear(says, problem(err)); }
  }
  function drawRemoved() {
    const names = change ? change.objects.filter((o) => o.does === "replaces").map((o) => o.ref) : [];
    clear(removed, removals.map((r) => h("span", { class: "tag drop" }, "removes " + short(r), " ", h("button", { class: "link", type: "button", "aria-label": "Keep " + short(r), onclick: () => { removals = removals.filter((x) => x !== r); changed(); } }, "keep"))),
      names.map((r) => h("button", { class: "link small", type: "button", onclick: () => { removals = [...removals, r]; yaml.value = yaml.value.split(/^---\s*$/m).length > 1 ? yaml.value : ""; changed(); } }, "Remove " + short(r) + " instead")));
  }

  async function check() {
    asking.abort();
    asking = new AbortController();
    change = null;
    if (!yaml.value.trim() && !removals.length) { clear(says); clear(out, start()); clear(removed); return; }
    try {
      change = await compile(asking.signal);
    } catch (err) { if (err.name !== "AbortError") clear(says, problem(err)); return; }
    if (!alive) return;
    const list = [["error", change.errors], ["warning", change.warnings], ["note", change.notes || []]].flatMap(([kind, l]) => l.map((x) => [kind, x]));
    const here = ([kind, x]) => kind === "error" || mine(x), others = list.filter((f) => !here(f));
    const show = ([kind, x]) => h("div", { class: "finding " + (kind === "error" ? "" : kind) }, h("b", {}, kind + ": "), x.object ? x.object + ": " : "", x.path && h("code", {}, x.path + " "), x.message, x.hint && h("div", { class: "dim" }, x.hint), lineOf(x));
    clear(says, list.filter(here).map(show), others.length > 0 && h("details", { class: "small others" }, h("summary", {}, plural(others.length, "finding"), " about other policies"), others.slice(0, 50).map(show)),
      change.ignored > 0 && h("div", { class: "finding note" }, `${plural(change.ignored, "object")} of the YAML are no policies (pods, namespaces, …): they are left out.`),
      !change.errors.length && h("p", { class: "small dim" }, "✓ ", change.objects.map((o, i) => [i ? ", " : "", o.does, " ", short(o.ref)])));
    drawRemoved();
    if (change.fit && app.world && app.world.pods <= small) run();
    else clear(out, h("div", { class: "card empty" }, change.fit ? [`Among ${plural(app.world.pods, "pod")} a comparison takes a while: `, h("button", { class: "main", type: "button", onclick: () => run() }, "Compare")] : "There is nothing to compare until the errors are corrected."));
  }
  const mine = (x) => (x.file || "").startsWith("the change");
  function lineOf(x) {
    const m = mine(x) && /:(\d+)$/.exec(x.file);
    return m && h("button", { class: "link small", type: "button", onclick: () => jump(Number(m[1])) }, "line " + m[1]);
  }
  function jump(n) {
    const lines = yaml.value.split("\n"), at = lines.slice(0, n - 1).join("\n").length + (n > 1 ? 1 : 0);
    yaml.focus();
    yaml.setSelectionRange(at, at + (lines[n - 1] || "").length);
    yaml.scrollTop = (n - 4) * 21;
  }
  const later = debounce(check, 350);
  function changed() { remember(); later(); }
  yaml.addEventListener("input", changed);
  tests.addEventListener("input", remember);
  const start = () => h("div", { class: "card empty" }, "Paste a policy, or begin with one that is there.", h("p", { class: "small" }, "Errors show as you type. Then: every connection that opens, closes or is decided by another rule."));

  async function run() {
    if (!change || !change.fit) return;
    const asked = change;
    const since = h("span", { class: "num" }), began = Date.now();
    clear(out, h("p", { class: "dim wait" }, h("span", { role: "status" }, "Comparing all connections… "), since));
    const clock = setInterval(() => { since.textContent = Math.round((Date.now() - began) / 1000) + " s"; }, 1000);
    let a;
    try {
      a = await ask("diff", { change: asked.change });
    } catch (err) { if (asked === change) clear(out, problem(err)); return; } finally { clearInterval(clock); }
    if (asked !== change || !alive) return;
    const s = a.summary, titles = { opened: ["+ Opened", "refused before, allowed then", "allow"], closed: ["− Closed", "allowed before, refused then", "drop"], rule: ["= Same answer", "by another rule", ""] };
    const none = !s.opened && !s.closed && !s.rule;
    clear(out, h("section", { class: "card" }, h("div", { class: "pad", role: "status" }, h("h2", {}, none ? "No connection is decided in another way." : `${s.opened.toLocaleString("en")} opened, ${s.closed.toLocaleString("en")} closed, ${s.rule.toLocaleString("en")} decided by another rule`),
      h("div", { class: "small dim" }, "Over all pods, protocols, ports and outside addresses: nothing is sampled.")),
      ["opened", "closed", "rule"].map((kind) => {
        const l = a.groups.filter((g) => g.kind === kind);
        if (!l.length) return null;
        return h("details", { open: kind !== "rule" || l.length < 6 }, h("summary", { class: "pad" }, h("span", { class: "tag " + titles[kind][2] }, titles[kind][0]), h("span", { class: "dim small" }, "  " + titles[kind][1])), l.map(delta));
      }),
      a.groupsTotal > a.groups.length && h("p", { class: "pad dim small" }, `and ${a.groupsTotal - a.groups.length} more lines: tierwall diff lists all`),
      [["Only after the change", a.added], ["Only before it", a.removed]].map(([t, l]) => l.length > 0 && h("p", { class: "pad small" }, h("b", {}, t + ": "), l.join(", ")))));
  }
  const delta = (g) => h("div", { class: "delta" }, h("b", {}, g.from), " → ", h("b", {}, g.to), "  ", h("span", { class: "mono small" }, g.ports), g.some && h("span", { class: "dim small" }, " (some of the pods)"), h("p", {}, "before: ", g.before), h("p", {}, "then: ", g.after));

  async function runTests() {
    clear(tested, h("p", { class: "dim small" }, "Testing…"));
    try {
      if (!change && (yaml.value.trim() || removals.length)) await check();
      const r = await post("test", { tests: tests.value, change: change && change.fit ? change.change : "" });
      clear(tested, h("p", { role: "status" }, h("b", {}, `${r.passed} passed, ${r.failed} failed`), h("span", { class: "dim small" }, change && change.fit ? " after the change" : " as things are")),
        r.tests.map((t) => h("div", { class: "finding " + (t.ok ? "note" : "") }, h("span", { class: "tag " + (t.ok ? "allow" : "drop") }, t.ok ? "✓ ok" : "✕ fails"), " ", t.name || `${t.from} → ${t.to}, ${t.port}: ${t.expect}`, !t.ok && h("div", {}, t.why, ": ", t.connection, t.policy && [" by ", short(t.policy)]))));
    } catch (err) { clear(tested, problem(err)); }
  }

  async function runReplay() {
    if (!change || !change.fit) { clear(replayed, h("p", { class: "dim small" }, "Write a change first.")); return; }
    clear(replayed, h("p", { class: "dim small" }, "Reading the log…"));
    try {
      const r = await ask("replay", { change: change.change, since: since.value });
      clear(replayed, h("p", { role: "status" }, h("b", {}, `${r.verdictDiff.toLocaleString("en")} of ${plural(r.judged, "decision")} would get another verdict`), h("span", { class: "dim small" }, `, ${r.ruleDiff} another reason, ${r.same} stay; ${r.events - r.judged} cannot be judged${r.lost ? `; ${r.lost} records are missing` : ""}`)),
        r.changes.map((c) => h("div", { class: "delta" }, verdict(c.before.verdict), " → ", verdict(c.after.verdict), "  ", h("b", {}, c.from), " → ", h("b", {}, c.to), `  ${c.port}`, h("span", { class: "dim small num" }, `  ${plural(c.count, "packet")}`), h("p", {}, "before: ", c.before.by || "not recorded"), h("p", {}, "then: ", c.after.by || "no policy"))));
    } catch (err) { clear(replayed, problem(err)); }
  }

  const begin = async (p) => { const ref = p.get("edit"); if (ref) { app.replace(path("change", {})); yaml.value = ""; removals = []; await edit(ref); } };
  app.onworld = () => check();
  params.get("edit") ? await begin(params) : check();
  return { update(p) { begin(p); }, leave() { alive = false; asking.abort(); } };
}
