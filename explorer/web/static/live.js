// Live pages: the server says when the log has grown, and the page is taken anew. Every page works without it.
// @ts-check

const WANTED = "refold-live"; // "0": not wanted
const FOLLOWED = "refold-followed"; // the cut that a live page was taken at last
const SHORTEST_MS = 2_000;
const LOAD_SHARE = 10; // a page that took long is taken anew less often

/** @type {EventSource | null} */
let source = null;
let latest = "";
let waits = false;
let isLive = false;

/** The cut that the page shows; "" for a page of now. */
function shown() {
  return document.body.dataset.cut ?? "";
}

function isWanted() {
  return sessionStorage.getItem(WANTED) !== "0";
}

/** Whether the page was asked for as of now, or goes on from one that was. */
function beganLive() {
  const [entry] = performance.getEntriesByType("navigation");
  const isNow = entry instanceof PerformanceNavigationTiming && entry.redirectCount > 0;
  return isNow || shown() === "" || shown() === sessionStorage.getItem(FOLLOWED);
}

function showState() {
  const button = document.querySelector("[data-live]");
  if (!(button instanceof HTMLElement)) return;
  const isOpen = source?.readyState === EventSource.OPEN;
  button.setAttribute("aria-pressed", String(isLive));
  button.textContent = isLive && isOpen ? "● live" : isLive ? "◌ live" : "○ live";
  button.title = !isLive ? "Take the page anew when the log grows (l)"
    : isOpen ? "The page is taken anew when the log grows (l)" : "The server does not answer; the page waits for it";
  const isOld = !isLive && latest !== "" && shown() !== "" && latest !== shown();
  document.querySelector("[data-key=n]")?.classList.toggle("newer", isOld);
}

/** What is at this place in the page that stands, and in the one that comes. @param {string} selector @param {Document} page */
function replace(selector, page) {
  const [here, there] = [document.querySelector(selector), page.querySelector(selector)];
  if (here && there) here.replaceWith(document.adoptNode(there));
}

/** A link without the cut in it, to find it again in the page as of another one. @param {Element} link */
function bare(link) {
  const address = new URL(link.getAttribute("href") ?? "", location.href);
  for (const name of ["at", "to"]) address.searchParams.delete(name);
  return address.href;
}

/** The page as of now, in place of the one that stands: at the same height, with the same parts open. @param {() => void} bind */
async function takeAnew(bind) {
  const here = new URL(location.href);
  for (const name of ["at", "to"]) here.searchParams.delete(name);
  const answer = await fetch(here);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = document.querySelector("main");
  if (!page.querySelector("main") || !main || !isLive) return;
  const open = [...main.querySelectorAll("details[open] > summary")].map((each) => each.textContent);
  const focused = document.activeElement?.matches("main a") ? bare(document.activeElement) : "";
  for (const selector of ["main", "footer.commands", ".where .cut"]) replace(selector, page);
  document.body.dataset.cut = page.body.dataset.cut ?? "";
  history.replaceState(null, "", answer.url);
  for (const each of document.querySelectorAll("main details > summary")) {
    if (open.includes(each.textContent)) each.parentElement?.setAttribute("open", "");
  }
  if (focused) {
    const found = [...document.querySelectorAll("main a")].find((each) => bare(each) === focused);
    if (found instanceof HTMLElement) found.focus({ preventScroll: true });
  }
  bind();
}

/** Take the page anew soon; once for all that came meanwhile. @param {() => void} bind */
async function refresh(bind) {
  if (waits || !isLive || latest === shown()) return;
  waits = true;
  const began = performance.now();
  try {
    // Who writes into a form, or has a text selected, is not disturbed.
    const isBusy = document.activeElement?.matches("main :is(input, select)") || String(getSelection()) !== "";
    if (!isBusy) {
      await takeAnew(bind);
      sessionStorage.setItem(FOLLOWED, shown());
    }
  } catch {
    // The server is away; its next event brings the next try.
  }
  setTimeout(() => {
    waits = false;
    if (shown() !== "" && latest !== shown()) refresh(bind);
  }, Math.max(SHORTEST_MS, LOAD_SHARE * (performance.now() - began)));
  showState();
}

/** A page that is seen listens; one that is not seen leaves the server alone. @param {() => void} bind */
function listen(bind) {
  source?.close();
  source = null;
  if (document.hidden) return;
  source = new EventSource("/live");
  source.addEventListener("open", showState);
  source.addEventListener("error", showState);
  source.addEventListener("message", (event) => {
    const isFirst = latest === "";
    latest = JSON.parse(event.data).cut;
    if (isFirst && isWanted() && (latest === shown() || beganLive())) isLive = true;
    showState();
    if (shown() !== "" || !isFirst) refresh(bind);
  });
}

/** @param {() => void} bind */
function turn(bind) {
  isLive = !isLive;
  sessionStorage.setItem(WANTED, isLive ? "1" : "0");
  showState();
  refresh(bind);
}

/** Follow the log, if the page is one that can. bind: what a script does to a page when it is there. @param {() => void} bind */
export function follow(bind) {
  const button = document.querySelector("[data-live]");
  if (!button) return;
  button.addEventListener("click", () => turn(bind));
  document.addEventListener("visibilitychange", () => listen(bind));
  listen(bind);
}
