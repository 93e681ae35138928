// Times the page's views in Chromium: `node page_times.mjs LINK MODULES`. Prints one JSON object:
// for each view the milliseconds from its address to the painted view, first and median of the others.
import { createRequire } from "node:module";

setTimeout(() => process.exit(3), 500_000);
const [link, modules] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");
const ROUNDS = 6;
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
await page.goto(link);
await page.locator(".facts-line").waitFor({ timeout: 120_000 });
// the name of a found object, for its own view
await page.evaluate(() => { location.hash = "#/objects"; });
const object = await page.locator("a.object").first().getAttribute("href", { timeout: 120_000 });
const VIEWS = { overview: "#/", "ask, by meaning": "#/ask?q=what+keeps+the+clock+right%3F", "ask, common words": "#/ask?q=server+in+the+office", "ask, a condition": "#/ask?q=active_state%3Dfailed",
  drift: "#/drift", changes: "#/changes", objects: "#/objects", "objects, a condition": "#/objects?where=active_state%3Dfailed", "the last page of objects": "#/objects?offset=99900", object, map: "#/map", serving: "#/serving", observers: "#/observers" };

const time = (hash) => page.evaluate((to) => new Promise((done) => {
  const main = document.querySelector("main"), began = performance.now();
  const seen = new MutationObserver(() => {
    seen.disconnect();
    // after the frame that has it; the map draws in a frame of its own
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(performance.now() - began))));
  });
  seen.observe(main, { childList: true });
  location.hash = to;
}), hash);

const found = {};
for (const [name, hash] of Object.entries(VIEWS)) {
  const times = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    // another view before; the overview draws itself again with each change
    await page.evaluate(() => { location.hash = "#/no-such-view"; });
    await page.locator("main h1", { hasText: "Not answered" }).waitFor({ timeout: 120_000 });
    await page.waitForTimeout(300);
    times.push(Math.round(await time(hash)));
  }
  const others = times.slice(1).sort((a, b) => a - b), title = await page.title();
  if (title.startsWith("Not answered")) throw new Error(`${name}: ${await page.innerText("main")}`);
  found[name] = { "first ms": times[0], "median ms": others[Math.floor(others.length / 2)], "max ms": others.at(-1) };
}
console.log(JSON.stringify(found));
await browser.close();
process.exit(0);
