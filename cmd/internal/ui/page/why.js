// Why: one connection, and the way to its verdict.
import { h, ask, clear, plural, verdict, tone, sign, because, policyLink, path, link, problem, copy, staged } from "./dom.js";
import { combo } from "./combo.js";

const fewest = 4; // rules that did not match are shown in full

export default async function mount(el, params, app) {
  const get = (k) => params.get(k) || "";
  const from = combo({ kind: "from", value: get("from"), placeholder: "pod, deploy/NAME, address", label: "From" });
  const to = combo({ kind: "to", value: get("to"), placeholder: "pod, svc/NAME, address, DNS name", label: "To" });
  const port = combo({ kind: "port", value: get("port"), placeholder: "5432/TCP", label: "Port" });
  const out = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "card pad ask" }, h("label", { class: "field" }, "From", from.el), h("label", { class: "field" }, "To", to.el),
    h("label", { class: "field" }, "Port", port.el), h("div", { class: "row" }, h("button", { class: "main", type: "submit" }, "Why?"), h("button", { type: "button", title: "Swap the two ends", "aria-label": "Swap the two ends", onclick: swap }, "⇄")));
  el.append(h("div", { class: "head" }, h("div", { class: "grow" }, h("h1", {}, "Why is a connection decided as it is?"), h("p", {}, "The first packet goes down the bands on both sides. It passes only if both allow it."))), form, out);
  let asking;

  function swap() {
    [from.value, to.value] = [to.value, from.value];
    submit();
  }
  function submit() {
    app.go(path("why", { from: from.value, to: to.value, port: port.value, icmp: get("icmp"), family: get("family"), change: get("change") }));
  }
  form.addEventListener("submit", (e) => { e.preventDefault(); submit(); });

  async function load() {
    asking && asking.abort();
    asking = new AbortController();
    from.value = get("from"); to.value = get("to"); port.value = get("port");
    if (!get("from") || !get("to") || !get("port")) {
      await app.ready;
      clear(out, await examples(app));
      if (!get("from")) from.input.focus({ preventScroll: true });
      return;
    }
    let e;
    try {
      e = await ask("explain", Object.fromEntries(params), asking.signal);
    } catch (err) {
      if (err.name !== "AbortError") clear(out, problem(err));
      return;
    }
    clear(out, get("change") && h("div", { class: "note warn" }, h("b", {}, "After your change. "), "Nothing of it is in force. ", link("why", { from: get("from"), to: get("to"), port: get("port") }, "Show it as it is now")),
      e.cases ? group(e) : e.backends ? service(e) : [headline(e, share()), story(e)]);
  }

  // group is the answer about ends that are several pods: cases that are decided alike.
  function group(e) {
    const names = (list) => list.slice(0, 3).join(", ") + (list.length > 3 ? ", …" : "");
    const all = { verdict: e.agree ? e.verdict : "", from: e.from, to: e.to, port: e.port, notes: [`${plural(e.connections, "connection")}, ${e.agree ? "all with this verdict" : "not all with one verdict"}, decided in ${plural(e.cases.length, "way")}`] };
    return [headline(all, share()), e.cases.map((c, i) => {
      const one = c.example || c.service;
      return h("details", { class: "card case", open: i === 0 }, h("summary", { class: "pad" }, verdict(one.verdict || "mixed"), " ", h("b", {}, names(c.from)), " → ", h("b", {}, names(c.to)), h("span", { class: "dim num" }, `  ${plural(c.connections, "connection")}, such as ${one.from} → ${one.to}`)),
        h("div", { class: "pad" }, c.example ? [uncertain(one), story(one, `, way ${i + 1}`)] : backends(one, `, way ${i + 1}`)));
    })];
  }

  // uncertain says which DNS names make another answer of an address.
  const uncertain = (e) => e.dependsOnName && h("div", { class: "note warn" }, h("b", {}, "It depends on the name. "), "Rules name DNS names, and this is an address:",
    h("ul", {}, e.dependsOnName.slice(1).map((a) => h("li", {}, verdict(a.verdict), " if ", a.names.map((n, i) => [i ? " and " : "", h("code", {}, n)]), " resolves to it: ", because(a.egress)))),
    verdict(e.verdict), " if none of these names does, as below. Ask about a name to be certain.");

  function share() {
    const flags = (app.world && app.world.flags) || "", words = ["tierwall explain", flags, "--from", quote(get("from")), "--to", quote(get("to")), "--port", quote(get("port")), get("icmp") && "--icmp " + get("icmp")];
    const command = words.filter(Boolean).join(" ");
    const button = (text, what) => { const b = h("button", { type: "button", onclick: () => copy(what, b) }, text); return b; };
    return h("div", { class: "row" }, button("Copy link", location.href), button("Copy command", command),
      app.world && app.world.records && h("a", { class: "button", href: path("stream", { from: get("from").replace(/^svc\/.*/, ""), to: get("to").replace(/^svc\/.*/, "") }), "data-view": "" }, "Records"));
  }

  function headline(e, extra) {
    const v = e.dependsOnName ? "mixed" : e.verdict || "mixed";
    return [h("div", { class: "verdict " + (tone(v) || "mixed") }, h("div", { class: "big" }, h("span", { "aria-hidden": "true" }, sign(v)), e.dependsOnName ? "Depends on the name" : v === "mixed" ? "Mixed" : v),
      h("div", { class: "grow" }, h("b", {}, e.from), e.fromIP && e.fromIP !== e.from ? h("span", { class: "dim" }, ` (${e.fromMadeUp ? "made-up address " : ""}${e.fromIP})`) : "", " → ", h("b", {}, e.to), e.toIP && e.toIP !== e.to ? h("span", { class: "dim" }, ` (${e.toMadeUp ? "made-up address " : ""}${e.toIP})`) : "",
        ", port ", h("b", {}, e.port), e.resolvedPort ? ` = ${e.resolvedPort}` : "", e.family ? h("span", { class: "dim" }, `, IPv${e.family}`) : "", e.via ? `, opened to ${e.via}` : "", (e.notes || []).map((n) => h("div", { class: "small" }, n))), extra), uncertain(e)];
  }

  function service(e) {
    return [headline(e, share()), backends(e)];
  }

  function backends(e, which = "") {
    return e.backends.map((b, i) => h("details", { class: "card case", open: i === 0 },
      h("summary", { class: "pad" }, verdict(b.verdict), " backend ", h("b", {}, b.to), h("span", { class: "dim" }, ` ${b.toIP}, port ${b.port}`)), h("div", { class: "pad" }, story(b, `${which}, backend ${i + 1}`))));
  }

  // which tells the sides of several stories apart for readers of landmarks.
  const story = (e, which = "") => h("div", { class: "sides" }, side("Leaving " + e.from, which, "egress", e.egress, e.trace.egress, e.trace.egressOthers), side("Entering " + e.to, which, "ingress", e.ingress, e.trace.ingress, e.trace.ingressOthers));

  function side(title, which, dir, d, bands, others) {
    const steps = bands.map((b, i) => step(b, i, d));
    if (!steps.some((s) => s.won)) {
      steps.push({ el: h("li", { class: "hit " + tone(d.verdict), style: { "--i": bands.length } }, h("span", { class: "dot", "aria-hidden": "true" }, sign(d.verdict)), h("span", { class: "bandname" }, d.verdict), h("div", { class: "small" }, because(d))) });
    }
    return h("section", { class: "card side", "aria-label": title + which },
      h("header", {}, h("div", { class: "row" }, verdict(d.verdict), h("h2", {}, title), h("span", { class: "dim small" }, dir)), h("div", { class: "small" }, because(d)),
        d.staged && h("div", { class: "small" }, staged(), " would be ", verdict(d.staged.verdict), " ", because(d.staged))),
      h("ol", { class: "steps" }, steps.map((s) => s.el)), others > 0 && h("p", { class: "dim small", style: { margin: "0", padding: "0 16px 12px" } }, `${others} other ${others === 1 ? "rule does" : "rules do"} not apply to this pod`));
  }

  function step(b, i, d) {
    const won = (b.result === "matched" || b.result === "isolated") && b.band === d.band;
    const text = { matched: won ? "decides" : "matched", isolated: "isolates", skipped: "skipped", "no-match": "no rule matched", "not-reached": "not reached" }[b.result] || b.result;
    const near = { "": 0, "unknown-peer": 1, port: 2, peer: 3, skipped: 4 };
    const rules = [...b.rules].sort((x, y) => (near[x.why || ""] ?? 5) - (near[y.why || ""] ?? 5));
    const shown = h("div", {}, rules.slice(0, fewest).map((r) => rule(r, d, won)));
    const rest = rules.slice(fewest);
    return {
      won, el: h("li", { class: (won ? "hit " + tone(d.verdict) : "") + (b.result === "not-reached" || b.result === "skipped" ? " off" : ""), style: { "--i": i } },
        h("span", { class: "dot", "aria-hidden": "true" }, won ? sign(d.verdict) : b.result === "skipped" ? "↷" : "↓"),
        h("span", { class: "bandname" }, b.band), h("span", { class: "dim small" }, "  " + text), shown,
        rest.length > 0 && h("button", { type: "button", class: "link small", onclick: (e) => { shown.append(...rest.map((r) => rule(r, d, won))); e.currentTarget.remove(); } }, `${rest.length} more did not match`),
        b.isolations.map((ref) => {
          const only = (b.stagedIsolations || []).includes(ref);
          return h("div", { class: "rule " + (won && !only ? "won " + tone(d.verdict) : "") }, h("span", {}, only ? "would isolate: " : "isolates: ", policyLink(ref), " ", only && staged()));
        })),
    };
  }

  function rule(r, d, here) {
    const won = r.matched && here && r.policy === d.policy && r.rule === d.rule;
    return h("div", { class: "rule " + (won ? "won " + tone(d.verdict) : "") }, h("span", {}, r.matched ? h("b", {}, r.action + ": ") : "", policyLink(r.policy), " ", h("code", {}, r.rule), " ", r.stage === "audit" && staged(),
      !r.matched && h("span", { class: "dim" }, " " + (r.why === "skipped" || r.why === "not-reached" ? r.detail || r.why : "not matched: " + (r.detail || r.why)))));
  }

  app.onworld = load;
  await load();
  return { update(p) { params = p; load(); }, leave() { asking && asking.abort(); } };
}

const quote = (s) => (/^[\w./:@,+=-]+$/.test(s) ? s : "'" + s.replaceAll("'", "'\\''") + "'");

// examples are questions about pods that are there.
async function examples(app) {
  if (!app.world || !app.world.answers) return [];
  try {
    const [pods, ports] = await Promise.all([ask("complete", { kind: "from" }), ask("complete", { kind: "port" })]);
    const n = pods.names.slice(0, 4), p = ports.names[0] || "80/TCP";
    if (n.length < 2) return [];
    return h("div", { class: "empty" }, "For example: ", n.slice(1).map((to, i) => [i ? " · " : "", link("why", { from: n[0], to, port: p }, `${n[0]} → ${to}, ${p}`)]));
  } catch { return []; }
}
