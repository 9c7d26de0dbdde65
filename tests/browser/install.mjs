// Fetches what check.mjs needs into the cache: playwright-core and, if the machine has no Chromium,
// one. Arguments: the version of playwright-core, and that of the package @sparticuz/chromium.

import { spawnSync } from 'node:child_process';
import { chmodSync, createReadStream, createWriteStream, existsSync, mkdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createBrotliDecompress } from 'node:zlib';
import { cache, installed, ofSystem, unpacked } from './chromium.mjs';

const [playwright, chromium] = process.argv.slice(2);

try {
  fetch('playwright-core', playwright);
  if (!ofSystem()) await fetchChromium(chromium);
} catch (error) {
  console.error(error.message);
  process.exit(1);
}

function fetch(name, version) {
  if (installed(name) === version) return;
  console.log(`installing the npm package ${name} ${version}`);
  mkdirSync(cache, { recursive: true });
  // The scripts of the packages are not needed: nothing but files is taken from them.
  const options = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error', '--save-exact'];
  run('npm', ['install', '--prefix', cache, ...options, `${name}@${version}`], `npm cannot install ${name} ${version}`);
}

async function fetchChromium(version) {
  const folder = unpacked(version);
  if (installed('@sparticuz/chromium') === version && existsSync(folder)) return;
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new Error('there is no Chromium to fetch for this machine: install one, or set CHROMIUM to its path');
  }
  fetch('@sparticuz/chromium', version);
  const packed = join(cache, 'node_modules', '@sparticuz', 'chromium', 'bin');
  const half = `${folder}.${process.pid}`;
  try {
    mkdirSync(half, { recursive: true });
    await unpack(join(packed, 'chromium.br'), join(half, 'chromium'));
    chmodSync(join(half, 'chromium'), 0o755);
    for (const name of ['al2023.tar', 'fonts.tar', 'swiftshader.tar']) {
      await unpack(join(packed, `${name}.br`), join(half, name));
      run('tar', ['-xf', join(half, name), '-C', half], `tar cannot unpack ${name}`);
      rmSync(join(half, name));
    }
    rmSync(folder, { recursive: true, force: true });
    renameSync(half, folder);
  } finally {
    rmSync(half, { recursive: true, force: true });
  }
}

async function unpack(from, to) {
  await pipeline(createReadStream(from), createBrotliDecompress(), createWriteStream(to));
}

function run(program, args, otherwise) {
  const { status, stderr, error } = spawnSync(program, args, { encoding: 'utf8' });
  if (status === 0) return;
  const said = (error?.message ?? stderr).split('\n').filter((line) => line.trim());
  throw new Error(`${otherwise}: ${said[0] ?? `it ended with ${status}`}`);
}
