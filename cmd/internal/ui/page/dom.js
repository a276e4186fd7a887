// What all views share. Text from the cluster only ever becomes text nodes and
// attributes: no function here, or anywhere in the page, parses markup.

// h makes an element: h("a", {href}, "text", child, [children]).
export function h(tag, props, ...children) {
  const el = document.createElement(tag);
  for (const [k, v] of Object.entries(props || {})) {
    if (v === undefined || v === null || v === false) continue;
    if (k.startsWith("on")) el.addEventListener(k.slice(2), v);
    else if (k === "class") el.className = v;
    else if (k === "style") for (const [name, value] of Object.entries(v)) el.style.setProperty(name, value);
    else if (k === "value") el.value = v;
    else el.setAttribute(k, v === true ? "" : v);
  }
  append(el, children);
  return el;
}

function append(el, children) {
  for (const c of children) {
    if (Array.isArray(c)) append(el, c);
    else if (c !== undefined && c !== null && c !== false) el.append(c);
  }
}

export const clear = (el, ...children) => { el.replaceChildren(); append(el, children); return el; };

// ask reads the JSON interface; an answer that is none is an Error with its text.
export async function ask(path, params, signal) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(params || {})) {
    for (const one of Array.isArray(v) ? v : [v]) if (one !== "" && one !== undefined && one !== null) q.append(k, one);
  }
  const s = q.toString();
  return answer(await fetch("/api/v1/" + path + (s ? "?" + s : ""), { signal }));
}

export async function post(path, body, signal) {
  return answer(await fetch("/api/v1/" + path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal }));
}

async function answer(r) {
  const v = await r.json().catch((err) => { if (err.name === "AbortError") throw err; return { error: "the answer cannot be read" }; });
  if (!r.ok) throw Object.assign(new Error(v.error || r.statusText), { status: r.status });
  return v;
}

export const plural = (n, word) => `${n.toLocaleString("en")} ${n === 1 ? word : word.replace(/([^aeo])y$/, "$1ie") + "s"}`;

// A verdict has a sign, a word and a colour: any one of them is enough.
const signs = { Allow: "✓", Drop: "✕", Reject: "⊘", Pass: "↷", Lost: "!", mixed: "±", "?": "?" };
const base = (v) => ({ "would-allow": "Allow", "would-drop": "Drop", "would-reject": "Reject", "would-pass": "Pass" }[v] || v);
export const sign = (v) => signs[base(v)] || "•";
export const tone = (v) => ({ Allow: "allow", Drop: "drop", Reject: "reject", Lost: "warn" }[base(v)] || "");
export const verdict = (v) => h("span", { class: "tag " + tone(v) }, h("span", { "aria-hidden": "true" }, sign(v)), v);
export const staged = () => h("span", { class: "tag staged", title: "recorded, not enforced" }, "staged");

const kinds = {
  networkpolicy: "NetworkPolicy", adminnetworkpolicy: "AdminNetworkPolicy", baselineadminnetworkpolicy: "BaselineAdminNetworkPolicy",
  clusternetworkpolicy: "ClusterNetworkPolicy", clusterdefaultnetworkpolicy: "ClusterDefaultNetworkPolicy",
  ciliumnetworkpolicy: "CiliumNetworkPolicy", ciliumclusterwidenetworkpolicy: "CiliumClusterwideNetworkPolicy",
};
const vendors = { "crd.antrea.io": "Antrea", "netpol.networking.k8s.io": "KEP" };

// short is "NetworkPolicy shop/db" of "networkpolicy.networking.k8s.io/shop/db".
export function short(ref) {
  const [kind, ns, ...name] = ref.split("/");
  const dot = kind.indexOf(".");
  const k = kinds[kind.slice(0, dot)] || kind.slice(0, dot), v = vendors[kind.slice(dot + 1)];
  return `${v ? v + " " : ""}${k} ${ns ? ns + "/" : ""}${name.join("/")}`;
}

export const refOf = (p) => `${p.kind.toLowerCase()}.${p.group || ""}/${p.namespace || ""}/${p.name}`;

export const link = (view, params, ...children) => h("a", { href: path(view, params), "data-view": "" }, ...children);
export function path(view, params) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(params || {})) if (v) q.append(k, v);
  const s = q.toString();
  return "/" + view + (s ? "?" + s : "");
}
export const policyLink = (ref) => link("order", { policy: ref }, short(ref));

// because says in words what decided a side, with links to the policies.
export function because(s) {
  const rule = () => [policyLink(s.policy), ", ", h("code", {}, s.rule)];
  switch (s.reason) {
    case "rule": return ["by ", rule()];
    case "auth-required": return ["by ", rule(), ", which asks for authentication that nothing here can give"];
    case "isolation": return ["isolated by ", (s.isolations || []).map((r, i) => [i ? ", " : "", policyLink(r)]), "; nothing allows it"];
    case "default": return ["no policy applies"];
    case "node-local": return ["the node may always reach its own pods"];
    case "self": return ["a pod may always reach itself"];
    case "not-local": return ["no pod whose policy is enforced here"];
    case "unknown-peer": return ["the other end is inside a pod network, but no known pod"];
  }
  return [s.reason];
}

export const debounce = (fn, ms) => { let t; return (...a) => { clearTimeout(t); t = setTimeout(() => fn(...a), ms); }; };
export const field = (text, control) => h("label", { class: "field" }, text, control);
export const problem = (err) => h("div", { class: "note error", role: "alert" }, h("b", {}, "No answer. "), err.message || String(err));

export function ago(time) {
  const s = Math.max(0, (Date.now() - new Date(time)) / 1000);
  return s < 90 ? Math.round(s) + " s" : s < 5400 ? Math.round(s / 60) + " min" : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
}

export async function copy(text, button) {
  const was = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Copying is not allowed here"; }
  setTimeout(() => { button.textContent = was; }, 1500);
}

// css is a colour of the style sheet as it is now, for canvases.
let probe;
export function css(name) {
  if (!probe) { probe = h("span", { hidden: true }); document.body.append(probe); }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

// shown notes when what was just put on the page has been painted.
export const shown = (name) => requestAnimationFrame(() => setTimeout(() => performance.mark(name)));
