// Where the browser is: $CHROMIUM, else one on PATH, else the one that install.mjs put in the cache.

import { accessSync, constants, existsSync, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { delimiter, join } from 'node:path';

const NAMES = ['chromium', 'chromium-browser', 'chromium-headless-shell', 'google-chrome', 'google-chrome-stable'];

/** Everything that was fetched for the browser tests. */
export const cache = join(process.env.WARMROUTE_CACHE || join(homedir(), '.cache', 'warmroute'), 'browser');

/** The version of a package in the cache; null if it is not there. */
export function installed(name) {
  const manifest = join(cache, 'node_modules', name, 'package.json');
  return existsSync(manifest) ? JSON.parse(readFileSync(manifest, 'utf8')).version : null;
}

/** A browser that was there before; null if there is none. */
export function ofSystem() {
  if (process.env.CHROMIUM) return process.env.CHROMIUM;
  const folders = (process.env.PATH || '').split(delimiter).filter(Boolean);
  return folders.flatMap((folder) => NAMES.map((name) => join(folder, name))).find(isExecutable) ?? null;
}

/** Where the fetched browser of a version is unpacked. */
export function unpacked(version) {
  return join(cache, `chromium-${version}`);
}

/** The browser to start and its environment; null if there is none. */
export function find() {
  const system = ofSystem();
  if (system) return { executablePath: system, env: process.env };
  const folder = unpacked(installed('@sparticuz/chromium'));
  const executablePath = join(folder, 'chromium');
  if (!isExecutable(executablePath)) return null;
  // Its libraries are next to it, and so are letters for machines that have none.
  const env = { ...process.env, LD_LIBRARY_PATH: join(folder, 'lib'), XDG_DATA_HOME: folder };
  return { executablePath, env };
}

function isExecutable(path) {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
