// The change somebody is trying, kept in this tab so that other views can show what
// it would do.
import { post } from "./dom.js";

const store = (k, v) => { try { v === undefined ? 0 : sessionStorage.setItem(k, v); return sessionStorage.getItem(k); } catch { return null; } };

export function draft(v) { return JSON.parse(store("draft", v && JSON.stringify(v)) || "null") || { yaml: "", remove: [], tests: null }; }
export const hasDraft = () => { const d = draft(); return !!(d.yaml.trim() || d.remove.length); };

// compile sends the change; the answer names it for other questions.
export const compile = (signal) => { const { yaml, remove } = draft(); return post("change", { yaml, remove }, signal); };
