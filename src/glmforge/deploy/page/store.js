// Conversations in IndexedDB, settings in localStorage. Where the browser keeps nothing (private windows, a full disk),
// the page goes on in memory, and says so.

const SETTINGS = "glmforge.settings";
export const DEFAULTS = { system: "", model: "", temperature: "", topP: "", maxTokens: "", seed: "", thinking: true, tools: "" };

let database = null;

function promise(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function transaction(mode, act) {
  const opened = database.transaction("conversations", mode);
  const result = act(opened.objectStore("conversations"));
  return new Promise((resolve, reject) => {
    opened.oncomplete = () => resolve(result.result);
    opened.onabort = () => reject(opened.error ?? new DOMException("aborted", "AbortError"));
  });
}

/** All conversations that the browser has, latest first. Throws where it keeps none. */
export async function openStore() {
  const opening = indexedDB.open("glmforge", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("conversations", { keyPath: "id" });
  database = await promise(opening);
  database.onversionchange = () => database.close();
  const all = await transaction("readonly", (store) => store.getAll());
  const sound = all.filter((one) => one?.nodes?.root && one.settings);
  for (const one of sound) one.settings = { ...DEFAULTS, ...one.settings };
  return sound.sort((a, b) => b.updated - a.updated);
}

/** Throws if the browser keeps it not: a DOMException, QuotaExceededError when its storage is full. */
export async function keep(conversation) {
  if (database) await transaction("readwrite", (store) => store.put(conversation));
}

export async function forget(id) {
  if (database) await transaction("readwrite", (store) => store.delete(id));
}

export function readSettings() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(SETTINGS) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export function writeSettings(settings) {
  remember(SETTINGS, JSON.stringify(settings));
}

/** Keep a small text; without storage it is for this visit only. */
export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // full or blocked: conversations' own failures are shown, and these matter less
  }
}

export function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}
