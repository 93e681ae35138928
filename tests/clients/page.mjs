// Drives the page in Chromium: `node page.mjs LINK MODULES`, where MODULES/node_modules has
// playwright-core and axe-core. Reads a line when something was done, and writes one JSON line a step.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// nothing waits for ever
setTimeout(() => process.exit(3), 150_000);
const [link, modules] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core");
const VIEWS = ["/", "/ask?q=what+sends+mail%3F", "/drift", "/changes", "/objects", "/map", "/serving", "/observers",
  "/object/systemd/unit/postfix.service"];

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (step, value) => console.log(JSON.stringify({ step, value }));
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, bypassCSP: true });
const page = await context.newPage();
const faults = [];
page.on("pageerror", (error) => faults.push(error.message));
await page.goto(link);
await page.waitForSelector("#box");
const base = page.url().split("#")[0];
say("link", base);

// the views by the words of their headings
const HEADINGS = { drift: "Drift", changes: "Changes", objects: "Objects", map: "Map", serving: "serves", observers: "Observers" };
const show = async (on, view) => {
  await on.goto(`${base}#${view}`);
  const heading = HEADINGS[view.slice(1)] ?? "";
  await on.waitForFunction((wanted) => {
    const main = document.querySelector("main");
    return !main.innerText.includes("Loading.") && (!wanted || main.querySelector("h1")?.textContent.includes(wanted));
  }, heading, { timeout: 30000 });
  await on.waitForTimeout(1000);
};
const hasText = (text) => page.waitForFunction((wanted) => document.querySelector("main").innerText.includes(wanted), text, { timeout: 30000 });

const before = Date.now();
await page.fill("#box", "what sends mail?");
await hasText("postfix.service");
say("ask", Date.now() - before);
await show(page, "/object/systemd/unit/postfix.service");
await hasText("postfix");
say("object", true);
await show(page, "/drift");
say("drift", await page.innerText("main"));
await show(page, "/map");
say("map", await page.locator("main svg circle, main svg path, main canvas").count());
await show(page, "/changes");
say("wait for change", true);
await lines.next();
await hasText("live-change");
say("live change", true);
await lines.next();
await page.waitForSelector("#notice:not([hidden])", { timeout: 60000 });
say("gone", await page.innerText("#notice"));
await lines.next();
await page.waitForSelector("#notice", { state: "hidden", timeout: 60000 });
say("back", true);

const state = await context.storageState();
for (const colorScheme of ["light", "dark"]) {
  const other = await browser.newContext({ colorScheme, storageState: state, bypassCSP: true });
  const own = await other.newPage();
  for (const view of VIEWS) {
    await show(own, view);
    await own.addScriptTag({ path: axe });
    const found = await own.evaluate(() => window.axe.run());
    say("axe", { colorScheme, view, violations: found.violations.map((each) => [each.id, each.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? ""))]) });
  }
  await other.close();
}
say("faults", faults);
await browser.close();
process.exit(0);
