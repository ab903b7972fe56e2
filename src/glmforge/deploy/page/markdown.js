// Markdown to elements. Raw HTML is shown as text, pictures as links (nothing is loaded), and what marked makes of the
// rest passes DOMPurify with a short list of tags. While a text grows, blocks that have not changed are left alone.

import "./vendor/purify.min.js";
import { Marked } from "./vendor/marked.esm.js";
import hljs from "./vendor/highlight.min.js";
import { copyButton, h } from "./dom.js";

const MAX_HIGHLIGHTED = 50_000; // characters; longer code stays plain
const PURIFY = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "input", "li",
    "ol", "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["href", "title", "class", "start", "align", "type", "checked", "disabled"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const escape = (text) => text.replace(/[&<>"']/g, (mark) => `&#${mark.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => (/^<br\s*\/?>$/i.test(text.trim()) ? "<br>" : escape(text)),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    code: ({ text, lang }) => {
      const name = /^[\w+#.-]{1,30}/.exec(lang ?? "")?.[0] ?? "";
      return `<pre><code class="language-${escape(name)}">${escape(text)}</code></pre>`;
    },
  },
});

export const sanitize = (html) => globalThis.DOMPurify.sanitize(html, PURIFY);

/** Spans of code, as a fragment. */
export function highlight(code, language) {
  if (!hljs.getLanguage(language) || code.length > MAX_HIGHLIGHTED) return document.createTextNode(code);
  return sanitize(hljs.highlight(code, { language, ignoreIllegals: true }).value);
}

/** A block of code with its language, and a button that copies it. */
export function codeBlock(code, language, label = language) {
  const head = h("div", { class: "code-head" }, h("span", {}, label), copyButton(() => code, "Copy code"));
  const pre = h("pre", { tabindex: "0", "aria-label": `${language || "plain"} code` }, h("code", {}, highlight(code, language)));
  return h("div", { class: "code" }, head, pre);
}

function elements(token, links) {
  const tokens = Object.assign([token], { links });
  const fragment = sanitize(marked.parser(tokens));
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    pre.replaceWith(codeBlock(code?.textContent ?? pre.textContent, code?.className.replace("language-", "") ?? ""));
  }
  for (const input of fragment.querySelectorAll("input")) {
    if (input.type !== "checkbox") input.remove();
    else input.disabled = true;
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const link of fragment.querySelectorAll("a")) {
    if (!link.hasAttribute("href")) link.replaceWith(...link.childNodes);
    else Object.assign(link, { target: "_blank", rel: "noopener noreferrer nofollow" });
  }
  return h("div", { class: "block" }, fragment);
}

/** Make `target` show the text; blocks equal to those it shows already are kept. */
export function showMarkdown(target, text) {
  try {
    showBlocks(target, marked.lexer(text));
  } catch {
    target.replaceChildren(text); // quotes in quotes, thousands deep: the plain text
    target.raws = [];
  }
}

function showBlocks(target, tokens) {
  const blocks = tokens.filter((token) => token.type !== "space" && token.type !== "def");
  const before = target.raws ?? [];
  let same = 0;
  while (same < before.length && same < blocks.length && before[same] === blocks[same].raw) same += 1;
  while (target.childNodes.length > same) target.lastChild.remove();
  for (const token of blocks.slice(same)) target.append(elements(token, tokens.links));
  target.raws = blocks.map((token) => token.raw);
}
