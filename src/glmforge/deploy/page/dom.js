// Elements made without HTML text: whatever a model or a server says becomes text, never markup.

export const $ = (id) => document.getElementById(id);

/** An element. Properties that are functions listen (`onclick`), the rest are attributes; false and null leave one out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const use = document.createElementNS(space, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A button that shows an icon and says `label`. */
export function iconButton(name, label, onclick, more = {}) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...more }, icon(name));
}

/** Say it to screen readers. */
export function announce(text) {
  $("announcer").textContent = text;
}

/** A short message at the bottom, with one action at most. */
export function toast(text, action, act) {
  clearTimeout(toast.timer);
  const close = () => $("toast").replaceChildren();
  const button = action && h("button", { type: "button", class: "link", onclick: () => (close(), act()) }, action);
  $("toast").replaceChildren(h("div", { class: "toast-card" }, text, button));
  toast.timer = setTimeout(close, 6000);
}

/** Copy to the clipboard, which pages over plain HTTP reach in the old way only. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "visually-hidden" });
    const before = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    before?.focus();
  }
  announce("Copied");
}

export function copyButton(read, label = "Copy") {
  const button = iconButton("copy", label, async () => {
    await copy(read());
    button.replaceChildren(icon("check"));
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

/** Let a text field be as high as its text. */
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export const seconds = (ms) => (ms < 95 ? "<0.1 s" : ms < 9950 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 1000)} s`);
