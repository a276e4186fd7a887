// A text field with names to choose from (the ARIA pattern "combobox" with a list).
import { h, ask, debounce } from "./dom.js";

let count = 0;

export function combo({ kind, value, placeholder, label, onpick }) {
  const id = "list" + ++count;
  const input = h("input", { type: "text", role: "combobox", "aria-expanded": "false", "aria-controls": id, "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", placeholder, value: value || "", "aria-label": label });
  // Without a tabindex the list is a stop of its own when it scrolls.
  const list = h("ul", { id, tabindex: "-1", role: "listbox", "aria-label": label || "names" });
  list.hidden = true;
  const el = h("div", { class: "combo" }, input, list);
  let at = -1, names = [], asking;

  const show = (on) => { list.hidden = !on; input.setAttribute("aria-expanded", String(on)); if (!on) { at = -1; input.removeAttribute("aria-activedescendant"); } };
  const mark = () => {
    [...list.children].forEach((li, i) => li.setAttribute("aria-selected", String(i === at)));
    if (at >= 0) { input.setAttribute("aria-activedescendant", id + "-" + at); list.children[at].scrollIntoView({ block: "nearest" }); }
  };
  const pick = (name) => { input.value = name; show(false); onpick && onpick(name); };
  const look = async () => {
    asking && asking.abort();
    asking = new AbortController();
    try {
      names = (await ask("complete", { kind, text: input.value }, asking.signal)).names;
    } catch { return; }
    list.replaceChildren(...names.map((n, i) => h("li", { id: id + "-" + i, role: "option", "aria-selected": "false", onmousedown: (e) => { e.preventDefault(); pick(n); } }, n)));
    at = -1;
    show(names.length > 0 && document.activeElement === input && !(names.length === 1 && names[0] === input.value));
  };
  const later = debounce(look, 80);
  input.addEventListener("input", later);
  input.addEventListener("focus", look);
  input.addEventListener("blur", () => show(false));
  input.addEventListener("keydown", (e) => {
    if (e.key === "Escape" && !list.hidden) { show(false); e.preventDefault(); return; }
    if (e.key === "Enter" && at >= 0 && !list.hidden) { e.preventDefault(); pick(names[at]); return; }
    if (e.key === "Enter") { show(false); return; }
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (!step) return;
    e.preventDefault();
    if (list.hidden) { look(); return; }
    at = (at + step + names.length) % names.length;
    mark();
  });
  return { el, input, get value() { return input.value.trim(); }, set value(v) { input.value = v; } };
}
