"use strict";
// Words, units and elements. Names come from clients: they reach the page as text only.
const byId = (id) => document.getElementById(id);
const share = (ratio) => ratio === null ? "\u2013" : (100 * ratio).toFixed(1) + " %";
const count = (number) => Math.round(number).toLocaleString("en");
const rate = (number) => number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 }) + "/s";

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let step = 0;
  while (bytes >= 1024 && step < units.length - 1) { bytes /= 1024; step += 1; }
  return bytes.toFixed(step ? 1 : 0) + " " + units[step];
}

function time(seconds) {
  if (seconds === null) return "\u2013";
  if (seconds < 0.001) return (1e6 * seconds).toFixed(0) + " \u00b5s";
  if (seconds < 1) return (1e3 * seconds).toFixed(seconds < 0.01 ? 1 : 0) + " ms";
  if (seconds < 120) return seconds.toFixed(1) + " s";
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (hours < 1) return minutes + " min";
  return days < 1 ? `${hours} h ${minutes % 60} min` : `${days} d ${hours % 24} h`;
}

function element(name, content = "", kind = "") {
  const node = document.createElement(name);
  if (content instanceof Node) node.append(content); else node.textContent = content;
  if (kind) node.className = kind;
  return node;
}

// Rows of cells; a cell is text, an element, or {words: text} for text that may wrap. Heads likewise.
function table(id, title, heads, rows, empty) {
  const body = document.createElement("tbody"), head = document.createElement("thead");
  const line = document.createElement("tr");
  const cell = (name, content) =>
    content.words === undefined ? element(name, content) : element(name, content.words, "words");
  line.append(...heads.map((text) => Object.assign(cell("th", text), { scope: "col" })));
  head.append(line);
  body.append(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((content) => cell("td", content)));
    return row;
  }));
  if (!rows.length) {
    const row = document.createElement("tr");
    row.append(Object.assign(element("td", empty), { colSpan: heads.length }));
    body.append(row);
  }
  byId(id).setAttribute("aria-label", title);
  byId(id).replaceChildren(head, body);
}

// Terms and values; a value is text, an element, or [text, class].
function terms(node, pairs) {
  node.replaceChildren(...pairs.map(([term, value]) => {
    const pair = document.createElement("div"), [text, kind] = Array.isArray(value) ? value : [value, ""];
    pair.append(element("dt", term), element("dd", text, kind));
    return pair;
  }));
}

function list(node, pairs) {
  node.replaceChildren(...pairs.flatMap(([term, value]) => [element("dt", term), element("dd", value)]));
}

function bar(kind, label, value, most) {
  const node = document.createElement(kind);
  node.max = most || 1;
  node.value = Math.min(value, node.max);
  node.setAttribute("aria-label", label);
  return node;
}

const largest = (counts) => Object.entries(counts).filter(([, number]) => number).sort((a, b) => b[1] - a[1]);
const listed = (counts) => largest(counts).map(([name, number]) => `${name} ${count(number)}`).join(", ") || "none";
