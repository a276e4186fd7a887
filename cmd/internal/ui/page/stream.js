// Stream: what is decided now, refusals first.
import { h, clear, verdict, sign, tone, plural, policyLink, path, problem, debounce, staged } from "./dom.js";
import { Series, plot, format } from "./plot.js";

const most = 400; // rows in the page
const fields = [["policy", "Policy", "shop/db"], ["from", "From", "shop/frontend, 10.0.0.0/8"], ["to", "To", "shop/"], ["port", "Port", "5432/TCP"], ["namespace", "Namespace", "shop"], ["rule", "Rule", "ingress[0]"], ["node", "Node", "node-1"], ["band", "Band", "admin"], ["reason", "Reason", "isolation"], ["direction", "Direction", "ingress"], ["pod", "Pod, either end", "shop/db"], ["cidr", "Address, either end", "10.0.0.0/8"], ["protocol", "Protocol", "UDP"], ["stage", "Stage", "audit"], ["kind", "Kind", "lost"], ["label", "Log label", ""]];

const s = { deny: new Series(), allow: new Series(), all: new Series() }; // outlives the view

export default async function mount(el, params, app) {
  const inputs = Object.fromEntries(fields.map(([n, , hold]) => [n, h("input", { type: "search", value: params.getAll(n).join(","), placeholder: hold, spellcheck: "false" })]));
  const chips = ["Drop", "Reject", "Allow", "would-drop"].map((v) => h("button", { type: "button", "aria-pressed": String(params.getAll("verdict").includes(v)), onclick: (e) => { const b = e.currentTarget; b.setAttribute("aria-pressed", String(b.getAttribute("aria-pressed") !== "true")); apply(); } }, `${sign(v)} ${v}`));
  const names = ["Drop", "Reject", "Allow", "would-drop"];
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause"), counts = h("span", { class: "num" }), state = h("div", { role: "status", class: "small dim" });
  const body = h("tbody", {}), say = h("div", {}), notes = h("div", {});
  for (const one of Object.values(s)) one.gap();
  const plots = [plot("Refused", "records/s", "--drop", s.deny, true), plot("Allowed", "records/s", "--allow", s.allow), plot("All records", "/s", "--focus", s.all)];
  el.append(
    h("div", { class: "head" }, h("div", { class: "grow" }, h("h1", {}, "What is decided now"), h("p", {}, "Refusals first, and the policy that refuses. What is too much to show is counted.")), pause),
    say, h("div", { class: "plots" }, plots.map((p) => p.el)),
    h("div", { class: "card pad", style: { "margin-bottom": "12px" } }, h("div", { class: "row", role: "group", "aria-label": "Verdicts", style: { "margin-bottom": "10px" } }, chips, h("span", { class: "dim small" }, "none chosen: all")),
      h("details", { open: fields.some(([n]) => params.has(n)) }, h("summary", {}, "More filters"), h("div", { class: "filters", style: { "margin-top": "8px" } }, fields.map(([n, text]) => h("label", { class: "field" }, text, inputs[n]))))),
    h("div", { class: "row", style: { "justify-content": "space-between", margin: "0 2px 6px" } }, counts, state), notes,
    h("div", { class: "card tall", tabindex: "0", role: "region", "aria-label": "Records" }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, ["Policy", "Verdict", "From", "To", "What", "When"].map((t) => h("th", { scope: "col" }, t)))), body)));

  let source, paused = false, queue = [], total = { seen: 0, shown: 0, hidden: 0, lost: 0 }, sec = { seen: 0, deny: 0, allow: 0, shown: 0 }, alive = true;

  const words = () => {
    const q = new URLSearchParams();
    names.forEach((v, i) => { if (chips[i].getAttribute("aria-pressed") === "true") q.append("verdict", v); });
    for (const [n] of fields) for (const v of inputs[n].value.split(",").map((x) => x.trim()).filter(Boolean)) q.append(n, v);
    return q;
  };
  const apply = () => { const q = words().toString(); app.replace("/stream" + (q ? "?" + q : "")); start(); };
  for (const i of Object.values(inputs)) i.addEventListener("input", debounce(apply, 400));

  async function start() {
    source && source.close();
    clear(body); clear(notes); clear(say); queue = [];
    total = { seen: 0, shown: 0, hidden: 0, lost: 0 }; sec = { seen: 0, deny: 0, allow: 0, shown: 0 };
    await app.ready;
    if (!alive) return;
    if (app.world && !app.world.records) { clear(say, h("div", { class: "card empty" }, app.world.noRecords)); counts.textContent = ""; return; }
    state.textContent = "connecting…";
    const q = words().toString();
    // An EventSource cannot tell why it was refused: ask first. A log that is not there
    // yet is waited for.
    const probe = await fetch("/api/v1/audit?lines=0" + (q ? "&" + q : ""));
    if (!alive) return;
    if (probe.status === 400) { const v = await probe.json().catch(() => ({})); clear(say, problem(new Error(v.error || probe.statusText))); state.textContent = ""; return; }
    const mine = (source = new EventSource("/api/v1/stream" + (q ? "?" + q : "")));
    mine.addEventListener("tick", (e) => { if (mine === source) tick(JSON.parse(e.data)); });
    mine.addEventListener("end", (e) => { mine.close(); state.textContent = ""; clear(say, problem(new Error(JSON.parse(e.data).error))); });
    mine.addEventListener("open", () => { state.textContent = "live"; });
    mine.addEventListener("error", () => { state.textContent = "interrupted: trying again"; });
  }

  function tick(t) {
    total.seen += t.seen; total.shown += t.shown; total.hidden += t.hidden; total.lost += t.lost;
    if (!t.past) {
      sec.seen += t.seen; sec.shown += t.shown;
      for (const [v, n] of Object.entries(t.verdicts)) if (/drop|reject/i.test(v)) sec.deny += n; else if (/allow/i.test(v)) sec.allow += n;
    }
    for (const n of t.notes || []) notes.append(h("div", { class: "finding warning" }, n));
    while (notes.childElementCount > 5) notes.firstChild.remove();
    if (paused) { queue.push(...t.records); if (queue.length > most) queue = queue.slice(-most); count(); return; }
    add(t.records);
    count();
  }
  // Once a second the numbers move: faster nobody reads them.
  const timer = setInterval(() => {
    s.deny.add(sec.deny); s.allow.add(sec.allow); s.all.add(sec.seen);
    for (const p of plots) p.draw();
    sec = { seen: 0, deny: 0, allow: 0, shown: 0 };
  }, 1000);

  function count() {
    clear(counts, "shown ", h("b", {}, total.shown.toLocaleString("en")), " of ", h("b", { id: "seen" }, total.seen.toLocaleString("en")), total.hidden ? ` (${total.hidden.toLocaleString("en")} more are in the log)` : "", `, ${format(s.all.last)}/s`,
      paused && ` · ${plural(queue.length, "new row")} waiting`, total.lost > 0 && h("span", { class: "tag warn", style: { "margin-left": "8px" } }, `! ${total.lost.toLocaleString("en")} lost`));
    counts.dataset.seen = total.seen; counts.dataset.shown = total.shown; counts.dataset.hidden = total.hidden;
  }

  function add(records) {
    if (!records.length) return;
    const rows = document.createDocumentFragment();
    for (const r of records) rows.append(row(r));
    body.prepend(rows);
    while (body.childElementCount > most) body.lastChild.remove();
  }

  const end = (e) => (!e ? "" : e.pod ? `${e.namespace}/${e.pod}` : e.ip);
  const ref = (p) => `${p.kind.toLowerCase()}.${p.group || ""}/${p.namespace || ""}/${p.name}`;

  function row(r) {
    const time = r.time ? new Date(r.time).toLocaleTimeString("en-GB") + "." + String(new Date(r.time).getMilliseconds()).padStart(3, "0") : "";
    if (r.raw !== undefined) return h("tr", { class: "lost" }, h("td", { colspan: "6" }, "? a line that is no record: ", h("code", {}, r.raw)));
    if (r.kind === "lost") return h("tr", { class: "lost" }, h("td", { colspan: "5" }, h("b", {}, `! ${plural(r.count, "record")} missing here`), ": ", r.reason, r.node ? ` (${r.node})` : ""), h("td", { class: "t" }, time));
    if (r.kind === "file") return h("tr", {}, h("td", { colspan: "5", class: "dim" }, "a file of a hash-chained log begins"), h("td", { class: "t" }, time));
    const by = r.isolations && r.isolations.length ? r.isolations : r.policy ? [r.policy] : [], d = r.destination || {};
    const port = d.port ? `${d.port}/${r.protocol}` : /^ICMP/.test(r.protocol || "") ? "0/ICMP" : "";
    const what = `${r.protocol || ""}${d.port ? " " + d.port : ""}${r.icmpType !== undefined ? ` type ${r.icmpType}` : ""}${r.ports ? ` ${r.ports.first}-${r.ports.last}` : ""}`;
    const why = r.source && r.destination && port ? h("a", { href: path("why", { from: end(r.source), to: end(d), port, icmp: r.icmpType !== undefined ? `${r.icmpType}/${r.icmpCode || 0}` : "", family: String(d.ip).includes(":") ? "6" : "" }), "data-view": "", title: "Why?" }, what) : what;
    return h("tr", {}, h("td", {}, by.length ? by.slice(0, 3).map((p, i) => [i ? ", " : "", policyLink(ref(p))]) : h("span", { class: "dim" }, r.reason || "no policy"), by.length > 3 && ` and ${by.length - 3} more`,
      h("div", { class: "dim small" }, [r.direction, r.rule && (r.rule.name || `${r.direction}[${r.rule.index}]`), r.reason !== "rule" && r.reason, r.label && "label " + r.label].filter(Boolean).join(" · "))),
      h("td", {}, verdict(r.verdict || r.kind), r.count > 1 && h("span", { class: "dim small num" }, ` ×${r.count.toLocaleString("en")}`), " ", r.stage === "audit" && staged()),
      h("td", {}, end(r.source)), h("td", {}, end(d), r.service && h("div", { class: "dim small" }, "via " + r.service)), h("td", {}, why), h("td", { class: "t" }, time, r.node && h("div", {}, r.node)));
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    if (!paused) { add(queue); queue = []; }
    count();
  });
  const redraw = () => plots.forEach((p) => p.draw());
  addEventListener("themechange", redraw);
  start();
  return {
    leave() { alive = false; clearInterval(timer); source && source.close(); removeEventListener("themechange", redraw); },
    update(p) { params = p; for (const [n] of fields) inputs[n].value = p.getAll(n).join(","); names.forEach((v, i) => chips[i].setAttribute("aria-pressed", String(p.getAll("verdict").includes(v)))); start(); },
  };
}
