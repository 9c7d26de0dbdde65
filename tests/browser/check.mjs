// Opens a report in a real browser, wide, narrow, dark and in print, and says what is wrong with it.
//
// Arguments: the page, its JSON, and a folder for screenshots and the PDF. It prints one line for
// each view; problems go to stderr, and the exit code is 1 if there are any.

import { readFileSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { cache, find } from './chromium.mjs';
import { contrasts, layout, sameFigures, semantics, stickyColumn, visibleInPrint } from './probes.mjs';

const VIEWS = [
  { name: 'desktop', width: 1280, height: 900, scale: 1, colorScheme: 'light' },
  { name: 'dark', width: 1280, height: 900, scale: 1, colorScheme: 'dark' },
  { name: 'phone', width: 360, height: 740, scale: 2, colorScheme: 'light' },
];
const ARGS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-sync',
  '--disable-background-networking', '--disable-component-update',
];
/** For a step of the browser on a busy machine; it is only spent if something is wrong. */
const PATIENCE_MS = 120_000;
/** Charts whose pixels are counted in each view. */
const LOOKED_AT = 12;
/** How long to wait before a picture is tried again. */
const PAUSES_MS = [250, 500, 1_000, 2_000, 4_000];

const [page, json, folder] = process.argv.slice(2);
const report = JSON.parse(readFileSync(json, 'utf8'));
const problems = [];

const browser = await launch();
try {
  for (const view of VIEWS) await check(view);
  await checkPrint();
} catch (error) {
  problems.push(error.message);
} finally {
  await browser.close();
}
for (const problem of problems) console.error(problem);
process.exit(problems.length ? 1 : 0);

async function launch() {
  const found = find();
  if (!found) fail('there is no Chromium: set CHROMIUM, or let `make browser` fetch one');
  let playwright;
  try {
    playwright = createRequire(join(cache, 'package.json'))('playwright-core');
  } catch {
    fail('playwright-core is missing: `make browser` fetches it');
  }
  try {
    return await playwright.chromium.launch({ ...found, args: ARGS, timeout: PATIENCE_MS });
  } catch (error) {
    return fail(`${found.executablePath} does not start: ${error.message.split('\n')[0]}`);
  }
}

function fail(why) {
  console.error(why);
  process.exit(1);
}

/** The page in a tab of its own; whatever it says or asks for is a problem. */
async function open(view) {
  const tab = await browser.newPage({
    viewport: { width: view.width, height: view.height },
    deviceScaleFactor: view.scale,
    colorScheme: view.colorScheme,
  });
  tab.setDefaultTimeout(PATIENCE_MS);
  const tell = (what) => problems.push(`${view.name}: ${what}`);
  const url = pathToFileURL(page).href;
  tab.on('console', (message) => tell(`console: ${message.text()}`));
  tab.on('pageerror', (error) => tell(`error: ${error.message}`));
  tab.on('dialog', (dialog) => tell(`dialog: ${dialog.message()}`) && dialog.dismiss());
  tab.on('requestfailed', (request) => tell(`failed request: ${request.url()}`));
  tab.on('request', (request) => {
    if (request.url() !== url && !request.url().startsWith('data:')) tell(`request: ${request.url()}`);
  });
  await tab.goto(url, { waitUntil: 'load' });
  return { tab, tell };
}

async function check(view) {
  const { tab, tell } = await open(view);
  await picture(tab, { path: join(folder, `${view.name}.png`) });
  await tab.evaluate(() => document.querySelectorAll('details').forEach((details) => { details.open = true; }));
  const sizes = await tab.evaluate(layout);
  sizes.problems.forEach(tell);
  for (const probe of [semantics, contrasts, stickyColumn]) (await tab.evaluate(probe)).forEach(tell);
  (await tab.evaluate(sameFigures, report)).forEach(tell);

  const expected = expectedCharts();
  if (sizes.charts < expected) tell(`${sizes.charts} charts instead of ${expected}`);
  const looked = await lookAt(tab, tell);
  console.log(`${view.name}: ${sizes.charts} charts, ${looked} looked at, ${sizes.height} px high`);
  await tab.close();
}

/** Bars, three distributions or more, and two charts over time for each row. */
function expectedCharts() {
  return 4 + 3 + 2 * report.comparison.length;
}

/** Takes pictures of the charts that have data, and counts what is in them. */
async function lookAt(tab, tell) {
  const charts = await tab.locator('svg.chart:has(polyline[stroke^="var(--s"]), svg.chart:has(rect[fill^="var(--s"])').all();
  const every = Math.max(1, Math.floor(charts.length / LOOKED_AT));
  const chosen = charts.filter((_, index) => index % every === 0);
  if (!chosen.length) tell('no chart has any data');
  for (const chart of chosen) {
    const png = (await picture(chart)).toString('base64');
    const seen = await tab.evaluate(pixels, `data:image/png;base64,${png}`);
    const label = await chart.getAttribute('aria-label');
    if (seen.colours < 16 || seen.coloured < 0.002) {
      tell(`the chart "${label}" looks empty: ${seen.colours} colours, ${seen.coloured} of it not grey`);
    }
  }
  return chosen.length;
}

/** A picture of what is on the screen. A busy machine may not have drawn it yet. */
async function picture(target, options) {
  for (const pause_ms of [...PAUSES_MS, null]) {
    try {
      return await target.screenshot(options);
    } catch (error) {
      if (pause_ms === null || !error.message.includes('Unable to capture screenshot')) throw error;
      await setTimeout(pause_ms);
    }
  }
}

/** Colours of a picture, and the share of its pixels that are not grey. */
async function pixels(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  const colours = new Set();
  let coloured = 0;
  for (let at = 0; at < data.length; at += 4) {
    const [red, green, blue] = data.subarray(at, at + 3);
    colours.add((red << 16) | (green << 8) | blue);
    if (Math.max(red, green, blue) - Math.min(red, green, blue) > 40) coloured += 1;
  }
  return { colours: colours.size, coloured: coloured / (data.length / 4) };
}

/** Asked for by someone whose screen is dark; the paper is white all the same. */
async function checkPrint() {
  const { tab, tell } = await open({ name: 'print', width: 1040, height: 720, scale: 1, colorScheme: 'dark' });
  await tab.emulateMedia({ media: 'print', colorScheme: 'dark' });
  (await tab.evaluate(visibleInPrint)).forEach(tell);
  const path = join(folder, 'print.pdf');
  const pdf = await tab.pdf({ preferCSSPageSize: true, printBackground: true });
  writeFileSync(path, pdf);
  const pages = pdf.toString('latin1').match(/\/Type\s*\/Page\b/g)?.length ?? 0;
  if (pages < 2) tell(`the PDF has ${pages} pages`);
  console.log(`print: ${pages} pages, ${statSync(path).size} bytes`);
  await tab.close();
}
