// Building DOM nodes. Text only ever becomes text nodes: nothing in this page parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `on…` attributes are listeners, absent ones and absent children (undefined, null, false) are left out, lists are gone into. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  appendAll(node, children);
  return node;
}

// One by one: a call takes fewer arguments than a long answer has nodes.
export function appendAll(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false) node.append(child);
  }
}

export const byId = (id) => document.getElementById(id);

/** Whether there is a keyboard on the glass rather than on the desk. */
export const isTouch = matchMedia("(pointer: coarse)").matches;

// Drawn on a grid of 24, as strokes.
const ICONS = {
  alert: "M12 8v5M12 16.5v.5M12 3 2.5 20h19z",
  check: "m5 12.5 4.5 4.5L19 7.5",
  chevron: "m9 6 6 6-6 6",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  down: "M12 5v14m-6-6 6 6 6-6",
  list: "M4 6h16M4 12h16M4 18h10",
  info: "M12 11v6M12 7.5v.5M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  pen: "m4 20 1-4L16.5 4.5l3 3L8 19z",
  plus: "M12 5v14M5 12h14",
  retry: "M19.5 12a7.5 7.5 0 1 1-2.4-5.5M19 3v4.5h-4.5",
  send: "M12 19V5m-6 6 6-6 6 6",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
  stop: "M7 7h10v10H7z",
  theme: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  tool: "M14.5 6.5a4 4 0 0 1 5-1.5l-3 3 1.5 1.5 3-3a4 4 0 0 1-5.5 5l-7.5 7.5-2-2 7.5-7.5a4 4 0 0 1 1-3z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
};

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("icon", `icon-${name}`);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows only an icon; its label is its name and its tooltip. */
export function iconButton(name, label, onclick, attributes = {}) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...attributes }, icon(name));
}

/** A button that copies what `text()` gives, and says so for a moment. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const copied = await copy(text());
    button.replaceChildren(icon(copied ? "check" : "alert"));
    announce(copied ? "Copied" : "This browser does not let the page copy");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

// Over plain HTTP from another machine there is no navigator.clipboard; the old command still works there.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "hidden", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/** Tells screen readers. */
export function announce(text) {
  byId("announcer").textContent = text;
}

const numbers = new Intl.NumberFormat("en", { useGrouping: true });

/** 8192 → "8,192" */
export const count = (value) => numbers.format(value);

/** "1 token", "2 tokens" */
export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Milliseconds as a person says them: "0.42 s", "3.4 s", "2 min 5 s". */
export function duration(ms) {
  const seconds = ms / 1000;
  if (seconds < 1) return `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

export function bytes(value) {
  const step = Math.min(Math.floor(Math.log2(Math.max(value, 1)) / 10), 4);
  const digits = step && value / 1024 ** step < 100 ? 1 : 0;
  return `${(value / 1024 ** step).toFixed(digits)} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
}
