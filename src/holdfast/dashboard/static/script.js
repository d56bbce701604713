// The script of the dashboard. Every page works without it; it adds live updates, keys and the theme.
"use strict";

const base = document.body.dataset.base;
const page = document.body.dataset.page;
const $ = (selector) => document.querySelector(selector);
const REFRESH_MS = 5000;
// On a phone the navigation is wider than the screen.
const here = $("nav.main [aria-current]");
if (here) here.parentNode.scrollLeft = here.offsetLeft - here.parentNode.clientWidth / 2;

// --- live parts: the page is read again, and parts that differ are replaced ---------------------------------------

let refreshing = false;

const isUsed = (part) =>
  part.contains(document.activeElement) && document.activeElement !== document.body
  || part.querySelector("details[open]") !== null
  || (String(getSelection()) !== "" && part.contains(getSelection().anchorNode));

const refresh = async () => {
  if (refreshing || document.hidden || !$("[data-live]")) return;
  refreshing = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected) return location.reload();
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (other && !isUsed(part) && other.outerHTML !== part.outerHTML) part.replaceWith(other);
    }
    document.title = fresh.title;
    const icon = fresh.getElementById("icon").getAttribute("href");
    if ($("#icon").getAttribute("href") !== icon) $("#icon").setAttribute("href", icon);
  } catch {
    // The server restarts or the network is gone: the next refresh tries again.
  } finally {
    refreshing = false;
  }
};

let planned = null;
const refreshSoon = () => {
  planned ??= setTimeout(() => { planned = null; refresh(); }, 1000);
};

// --- one stream of events per browser: the tab that holds the lock has it, and tells the others -------------------

const channel = typeof BroadcastChannel === "function" ? new BroadcastChannel("holdfast" + base) : null;

const received = (event) => {
  refreshSoon();
  showEvent(event);
};

if (channel) channel.onmessage = (message) => { if (!document.hidden) received(message.data); };

let release = null; // ends the stream of this tab
let wanted = false;

const lead = () => new Promise((resolve) => {
  if (!wanted) return resolve();
  const stream = new EventSource(base + "/live");
  const say = (text) => { if ($("#live")) $("#live").textContent = text; };
  stream.onopen = () => say("live");
  stream.onerror = () => say("");
  stream.onmessage = (message) => {
    const event = JSON.parse(message.data);
    received(event);
    if (channel) channel.postMessage(event);
  };
  release = () => { release = null; say(""); stream.close(); resolve(); };
});

const follow = () => {
  wanted = !document.hidden && page !== undefined;
  if (!wanted && release) release();
  // Without locks, which need TLS or this machine, the pages are read again every few seconds.
  if (wanted && !release && navigator.locks && channel) navigator.locks.request("holdfast" + base, lead);
};

if (page !== undefined) {
  document.addEventListener("visibilitychange", () => { follow(); refreshSoon(); });
  addEventListener("pagehide", () => { wanted = false; if (release) release(); });
  addEventListener("pageshow", follow);
  follow();
  setInterval(refresh, REFRESH_MS);
}

// --- events on the page System ------------------------------------------------------------------------------------

const showEvent = (event) => {
  const body = $("#events");
  if (!body) return;
  $("#no-events").hidden = true;
  const row = body.insertRow(0);
  const at = new Date(event.at_ms).toISOString();
  for (const [text, kind] of [[event.name, ""], [event.job_id, "name"], [event.kind, "name"], [event.lane, "wide name"], [at.slice(11, 19), "number"]]) {
    const cell = row.insertCell();
    cell.className = kind;
    if (text === event.job_id) {
      const link = document.createElement("a");
      link.href = base + "/jobs/find?q=" + encodeURIComponent(text);
      link.textContent = text;
      cell.append(link);
    } else cell.textContent = text;
  }
  while (body.rows.length > 50) body.deleteRow(-1);
};

// --- newer jobs are announced, not inserted: nothing moves under the reader's eyes --------------------------------

const newer = $("#newer");
if (newer && !new URLSearchParams(location.search).has("after")) {
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const found = await (await fetch(newer.dataset.url)).json();
      newer.hidden = !found.newer;
      newer.textContent = found.newer + (found.more ? "+" : "") + " newer";
    } catch {
      // As above.
    }
  }, REFRESH_MS);
}

// --- output of a running job --------------------------------------------------------------------------------------

const output = $("#output[data-follow]");
if (output) {
  const read = async () => {
    let pause = 1000;
    try {
      if (!document.hidden) {
        const found = await (await fetch(output.dataset.follow + "?after=" + output.dataset.after)).json();
        const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
        output.dataset.after = found.last;
        if (found.text) output.append(found.text);
        if (atEnd) output.scrollTop = output.scrollHeight;
        if (found.ended) return refreshSoon();
        if (found.text) pause = 250;
      }
    } catch {
      pause = 5000;
    }
    setTimeout(read, pause);
  };
  output.scrollTop = output.scrollHeight;
  read();
}

// --- a bulk action goes on by itself; leaving the page stops it ---------------------------------------------------

const going = $("form[data-continue]");
if (going) setTimeout(() => going.submit(), 300);

// --- theme --------------------------------------------------------------------------------------------------------

const toggleTheme = () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  document.cookie = "holdfast_theme=" + next + "; path=" + (base || "/") + "; max-age=31536000; samesite=lax";
};
if ($("#theme")) {
  $("#theme").hidden = false;
  $("#theme").addEventListener("click", toggleTheme);
}

// --- commands can be copied; without TLS there is no clipboard, and the text is selected instead ------------------

for (const code of document.querySelectorAll(".cmd code")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "plain small";
  button.textContent = "Copy";
  code.after(button);
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest(".cmd button");
  if (button) {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
    }
  }
  // A click elsewhere closes open actions.
  for (const open of document.querySelectorAll("details.do[open]")) {
    if (!open.contains(event.target)) open.open = false;
  }
});

// --- keys ---------------------------------------------------------------------------------------------------------

const rows = () => [...document.querySelectorAll("a.row")].filter((row) => row.offsetParent);
const move = (step) => {
  const all = rows();
  const at = all.indexOf(document.activeElement);
  const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : at + step];
  if (next) next.focus();
};
const open = (selector, scope = document) => {
  const found = scope.querySelector(selector);
  if (found) { found.open = true; found.querySelector("summary").focus(); }
};
const KEYS = {
  "?": () => $("#help") && $("#help").showModal(),
  "/": () => ($("#filter") ? $("#filter").focus() : location.assign(base + "/jobs#filter")),
  j: () => move(1),
  k: () => move(-1),
  w: () => $("#why") && $("#why").focus(),
  p: () => open("details[data-key=p]", (document.activeElement && document.activeElement.closest("tr")) || document),
  t: toggleTheme,
  Escape: () => { for (const one of document.querySelectorAll("details.do[open]")) one.open = false; },
};
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  if (typing && event.key !== "Escape") return;
  if (event.key !== "Escape") event.preventDefault();
  KEYS[event.key]();
});
if ($("#keys")) $("#keys").hidden = false;
if (location.hash === "#filter" && $("#filter")) $("#filter").focus();
