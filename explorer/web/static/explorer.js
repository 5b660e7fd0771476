// Keys, times in the reader's zone, and copying. Every page works without it.
// @ts-check

import { follow } from "./live.js";
import { continueSteps } from "./steps.js";

const UTC_WANTED = "refold-utc";
const PLACE = "refold-place";

/** Show each time in the reader's zone, or in UTC. The text keeps its width, so nothing moves. */
function showTimes() {
  const inUtc = localStorage.getItem(UTC_WANTED) === "1";
  document.querySelector("[data-utc]")?.setAttribute("aria-pressed", String(inUtc));
  for (const tag of document.querySelectorAll("time")) {
    const moment = new Date(tag.dateTime);
    tag.title = `${tag.dateTime} (UTC)`;
    tag.replaceChildren(inUtc ? utc(moment) : local(moment), zone(inUtc ? "UTC" : zoneOf(moment)));
  }
}

/** @param {Date} moment */
function utc(moment) {
  return moment.toISOString().replace("T", " ").replace("Z", "");
}

/** @param {Date} moment */
function local(moment) {
  return utc(new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000));
}

/** @param {Date} moment */
function zoneOf(moment) {
  const minutes = -moment.getTimezoneOffset();
  if (minutes === 0) return "UTC";
  const sign = minutes < 0 ? "-" : "+";
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `${sign}${String(hours).padStart(2, "0")}:${String(rest).padStart(2, "0")}`;
}

/** @param {string} text */
function zone(text) {
  const found = document.createElement("span");
  found.className = "zone";
  found.textContent = ` ${text}`;
  return found;
}

/** The link or button of a key. @param {string} key */
function ofKey(key) {
  for (const each of document.querySelectorAll("[data-key]")) {
    if (each instanceof HTMLElement && (each.dataset.key ?? "").split(" ").includes(key)) return each;
  }
  return null;
}

/** Go to the next row of a table, or the one before. @param {number} by */
function moveRow(by) {
  const rows = [...document.querySelectorAll("[data-row]")].filter((each) => each instanceof HTMLElement);
  if (rows.length === 0) return false;
  const at = rows.findIndex((each) => each === document.activeElement);
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1)];
  if (next instanceof HTMLElement) next.focus();
  return true;
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  return target instanceof HTMLElement && target.matches("input, select, textarea");
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape" && event.target instanceof HTMLElement) event.target.blur();
    return;
  }
  const found = ofKey(event.key);
  if (found) found.click();
  else if (event.key === "j" && moveRow(1)) event.preventDefault();
  else if (event.key === "k" && moveRow(-1)) event.preventDefault();
  else if (event.key === "u") turnZone();
  else if (event.key === "g") location.assign("/");
  else if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search instanceof HTMLElement) search.focus();
    else return;
  } else if (event.key === "?") showKeys();
  else return;
  event.preventDefault();
}

function turnZone() {
  localStorage.setItem(UTC_WANTED, localStorage.getItem(UTC_WANTED) === "1" ? "0" : "1");
  showTimes();
}

function showKeys() {
  const dialog = document.querySelector("#keys");
  if (dialog instanceof HTMLDialogElement && !dialog.open) dialog.showModal();
}

/** A slider whose stops are addresses: moving names the stop, letting go opens it. */
function bindSliders() {
  for (const slider of document.querySelectorAll("input[data-stops]")) {
    if (!(slider instanceof HTMLInputElement)) continue;
    const links = [...document.querySelectorAll(`[data-stop-of="${slider.id}"]`)];
    const label = document.querySelector(`output[for="${slider.id}"]`);
    slider.addEventListener("input", () => {
      if (label) label.textContent = links[Number(slider.value)]?.getAttribute("data-label") ?? "";
    });
    slider.addEventListener("change", () => {
      const link = links[Number(slider.value)];
      if (link instanceof HTMLAnchorElement || link instanceof SVGAElement) {
        location.assign(link.getAttribute("href") ?? "");
      }
    });
  }
}

function bindCopying() {
  for (const button of document.querySelectorAll("[data-copy]")) {
    if (!(button instanceof HTMLElement)) continue;
    if (!navigator.clipboard) {
      button.hidden = true; // Browsers give it to pages on loopback and over TLS alone.
      continue;
    }
    button.addEventListener("click", async () => {
      const text = button.parentElement?.querySelector("code")?.textContent ?? "";
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    });
  }
}

/** Show the chosen step of a long list, without moving the page. */
function showChosen() {
  const chosen = document.querySelector(".steps [aria-current]");
  const list = document.querySelector(".steps");
  if (chosen instanceof HTMLElement && list instanceof HTMLElement) {
    list.scrollTop = chosen.offsetTop - list.offsetTop - list.clientHeight / 3;
  }
}

/** Show the value in the graph of its causes, which may be higher than its box. */
function showValue() {
  const value = document.querySelector(".graph .value");
  const graph = value?.closest(".graph");
  if (!value || !graph) return;
  graph.scrollTop += value.getBoundingClientRect().top - graph.getBoundingClientRect().top - graph.clientHeight / 2;
}

/** Another step of the same page is shown at the same height. */
function keepPlace() {
  const kept = sessionStorage.getItem(PLACE);
  sessionStorage.removeItem(PLACE);
  if (kept !== null && !location.hash) {
    const [path, top] = kept.split(" ");
    if (path === location.pathname) scrollTo(0, Number(top));
  }
}

/** Say that a page is on its way, and remember the place in this one. */
function onLeave() {
  sessionStorage.setItem(PLACE, `${location.pathname} ${scrollY}`);
  document.documentElement.dataset.loading = "";
}

keepPlace();
/** What can be scrolled can be reached by keyboard. */
function reachScrolling() {
  for (const each of document.querySelectorAll("code[data-command], pre.value, .said, .scroll, .steps")) {
    const scrolls = each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight;
    if (scrolls && each instanceof HTMLElement) each.tabIndex = 0;
  }
}

/** What is done to a page when it is there. */
function bind() {
  showTimes();
  reachScrolling();
  bindSliders();
  bindCopying();
  showChosen();
  showValue();
  continueSteps();
}

bind();
document.querySelector("[data-help]")?.addEventListener("click", showKeys);
document.querySelector("[data-utc]")?.addEventListener("click", turnZone);
follow(bind);
document.addEventListener("keydown", onKey);
addEventListener("beforeunload", onLeave);
// A page that is shown again as it was is not on its way.
addEventListener("pageshow", () => delete document.documentElement.dataset.loading);
// From here on keys are heard.
document.documentElement.dataset.ready = "";
