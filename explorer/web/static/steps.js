// The list of a long run's steps continues where it is scrolled to. Every page works without it: its ends are links.
// @ts-check

/** The number of the step in a row; 0 for a link to other steps. @param {Element} row */
function numberOf(row) {
  return Number(row.querySelector(".number")?.textContent ?? 0);
}

/** Put the steps that a link leads to in its place. @param {HTMLAnchorElement} link @param {Element} list @param {IntersectionObserver} seen */
async function extend(link, list, seen) {
  const address = new URL(link.href);
  address.searchParams.set("part", "steps");
  const answer = await fetch(address);
  const row = link.closest("li");
  if (!answer.ok || !row || !row.isConnected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const isBefore = link.dataset.more === "before";
  const known = [...list.querySelectorAll("li")].map(numberOf).filter((each) => each > 0);
  const edge = isBefore ? Math.min(...known) : Math.max(...known);
  const rows = [...page.querySelectorAll("li")].filter((each) => {
    const more = each.querySelector("[data-more]");
    if (more) return more.getAttribute("data-more") === link.dataset.more;
    return isBefore ? numberOf(each) < edge : numberOf(each) > edge;
  });
  const height = list.scrollHeight;
  row.replaceWith(...rows.map((each) => document.adoptNode(each)));
  if (isBefore) list.scrollTop += list.scrollHeight - height;
  observe(list, seen);
}

/** @param {Element} list @param {IntersectionObserver} seen */
function observe(list, seen) {
  for (const link of list.querySelectorAll("[data-more]")) seen.observe(link);
}

/** Continue the list of steps, if the page has one that is longer than what it shows. */
export function continueSteps() {
  const list = document.querySelector(".steps");
  if (!list || !document.querySelector(".part")) return;
  const seen = new IntersectionObserver((entries) => {
    for (const each of entries) {
      if (!each.isIntersecting || !(each.target instanceof HTMLAnchorElement)) continue;
      seen.unobserve(each.target);
      extend(each.target, list, seen).catch(() => {}); // The server is away; the link still works.
    }
  }, { root: list, rootMargin: "400px" });
  observe(list, seen);
}
