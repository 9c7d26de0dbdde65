// What check.mjs runs inside the page. Each function stands alone, since the browser gets its text
// only; each returns what is wrong, a line for each problem.

/** Nothing sticks out, all charts have a size, and their letters can be read and do not collide. */
export function layout() {
  const problems = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) problems.push(`the page is ${root.scrollWidth} px wide on a screen of ${root.clientWidth}`);
  for (const element of document.querySelectorAll('body *')) {
    if (element.closest('.scroll > *, svg')) continue;
    const box = element.getBoundingClientRect();
    if (box.right > root.clientWidth + 1 || box.left < -1) problems.push(`<${element.localName} class="${element.className}"> sticks out: ${box.left}..${box.right}`);
  }
  const charts = [...document.querySelectorAll('svg.chart')];
  for (const chart of charts) {
    const label = chart.getAttribute('aria-label');
    const box = chart.getBoundingClientRect();
    if (box.width < 280 || box.height < 30) problems.push(`the chart "${label}" is ${box.width} × ${box.height} px`);
    const figure = chart.closest('figure').getBoundingClientRect();
    const letters = [...chart.querySelectorAll('text')].map((text) => ({ text: text.textContent.trim(), box: text.getBoundingClientRect() }));
    for (const { text, box } of letters) {
      if (box.left < figure.left - 1 || box.right > figure.right + 1) problems.push(`"${text}" leaves the chart "${label}"`);
      if (box.height < 9) problems.push(`"${text}" is ${box.height} px high in the chart "${label}"`);
    }
    for (const [index, one] of letters.entries()) {
      for (const other of letters.slice(index + 1)) {
        const sameLine = Math.abs(one.box.top - other.box.top) < 2;
        const apart = one.box.right <= other.box.left || other.box.right <= one.box.left;
        if (sameLine && !apart) problems.push(`"${one.text}" and "${other.text}" collide in the chart "${label}"`);
      }
    }
  }
  return { problems, charts: charts.length, height: root.scrollHeight };
}

/** What readers without a mouse, a screen or this language need; and no markup from outside. */
export function semantics() {
  const problems = [];
  const every = (selector, fits, what) => {
    const wrong = [...document.querySelectorAll(selector)].filter((element) => !fits(element));
    if (wrong.length) problems.push(`${wrong.length} × ${what}`);
  };
  if (document.documentElement.lang !== 'en') problems.push('no language');
  if (!document.querySelector('meta[name=viewport]')) problems.push('no viewport');
  if (document.querySelectorAll('h1').length !== 1) problems.push('not one h1');
  if (!document.querySelector('pre code')?.textContent) problems.push('no command');
  every('table', (table) => table.caption?.textContent.trim(), 'table without a caption');
  every('th', (th) => th.scope, 'th without a scope');
  every('svg.chart', (svg) => svg.getAttribute('role') === 'img' && svg.getAttribute('aria-label'), 'chart without a label');
  every('.scroll', (box) => box.tabIndex === 0, 'scrolling box that keys cannot reach');
  every('[aria-labelledby]', (element) => document.getElementById(element.getAttribute('aria-labelledby')), 'label that is not there');
  every('script, img, iframe, object, embed, form, body b:not(.star), [onerror]', () => false, 'markup from outside');
  const ids = [...document.querySelectorAll('[id]')].map((element) => element.id);
  if (new Set(ids).size !== ids.length) problems.push('an id comes twice');
  return problems;
}

/** Letters have a contrast of 4.5 to what is behind them, lines of charts one of 3. */
export function contrasts() {
  const problems = [];
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (color) => {
    const [red, green, blue] = rgb(color).map((part) => (part <= 10 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (rgb(color)[3] === 255) return color;
    }
    return 'white';
  };
  for (const selector of ['p', 'dt', 'td', 'th', 'td.best', 'td.best .ratio', 'td.bad', '.ratio', '.spread', '.unit', 'small', 'small.bad', 'li', '.star', 'code', 'footer']) {
    const element = document.querySelector(selector);
    const ratio = element ? contrast(getComputedStyle(element).color, behind(element)) : 21;
    if (ratio < 4.5) problems.push(`letters of ${selector} have a contrast of ${ratio.toFixed(1)}`);
  }
  const root = getComputedStyle(document.documentElement);
  for (const name of ['--base', ...Array.from({ length: 8 }, (_, index) => `--s${index}`)]) {
    const ratio = contrast(root.getPropertyValue(name), behind(document.body));
    if (!(ratio >= 3)) problems.push(`lines of ${name} have a contrast of ${ratio.toFixed(1)}`);
  }
  return problems;
}

/** The names stay where they are while a wide table is scrolled. */
export function stickyColumn() {
  const problems = [];
  for (const box of document.querySelectorAll('.scroll')) {
    box.scrollLeft = 150;
    const moved = box.scrollLeft;
    const name = box.querySelector('tbody th');
    const left = name ? name.getBoundingClientRect().left - box.getBoundingClientRect().left : 0;
    box.scrollLeft = 0;
    if (moved > 0 && Math.abs(left) > 2) problems.push(`a name moves by ${left} px when its table is scrolled`);
    if (innerWidth < 400 && moved === 0) problems.push('a table of many columns does not scroll on a phone');
  }
  return problems;
}

/** The tables say what the JSON says. */
export function sameFigures(report) {
  const problems = [];
  const scales = { hit_rate: 100, router_peak_rss_bytes: 1 / 1048576 };
  const rows = [...document.querySelectorAll('tr[data-row]')];
  for (const row of report.comparison) {
    const cells = rows.filter((tr) => tr.dataset.row === row.name);
    if (cells.length !== 2) problems.push(`${row.name} is in ${cells.length} tables`);
    const cell = (selector) => cells.map((tr) => tr.querySelector(selector)).find(Boolean);
    for (const count of ['requests', 'errors', 'unsent']) {
      const shown = Number(cell(`[data-count=${count}]`)?.textContent.replace(/[^0-9]/g, ''));
      if (shown !== row[count]) problems.push(`${row.name}: ${shown} ${count} instead of ${row[count]}`);
    }
    for (const [key, figure] of Object.entries(row.figures)) {
      const td = cell(`[data-key=${key}]`);
      const what = `${row.name}, ${key}`;
      if (!figure) {
        const measured = report.comparison.some((other) => other.figures[key]);
        if (measured && td?.textContent !== 'no data') problems.push(`${what}: "${td?.textContent}" instead of no data`);
        continue;
      }
      if (!td) {
        problems.push(`${what} is not in a table`);
        continue;
      }
      const data = td.querySelector('data');
      const shown = Number(data?.textContent.replaceAll(',', ''));
      const value = figure.value.mean * (scales[key] ?? 1);
      if (Number(data?.value) !== figure.value.mean) problems.push(`${what}: ${data?.value} instead of ${figure.value.mean}`);
      if (!(Math.abs(shown - value) <= Math.abs(value) * 0.006)) problems.push(`${what}: "${shown}" for ${value}`);
      if (td.classList.contains('best') !== figure.best) problems.push(`${what}: the best is marked otherwise`);
      const ratio = row.is_baseline || !figure.ratio_to_baseline ? undefined : `×${figure.ratio_to_baseline.mean.toFixed(2)}`;
      const told = td.querySelector('.ratio')?.textContent;
      if (told !== ratio) problems.push(`${what}: ratio ${told} instead of ${ratio}`);
    }
  }
  const text = document.body.textContent;
  for (const line of [report.title, report.command, report.workload, report.fleet, ...report.losses, ...report.notes]) {
    if (!text.includes(line)) problems.push(`not on the page: ${line}`);
  }
  return problems;
}

/** Everything is on paper, dark on white, and no chart is cut in two. */
export function visibleInPrint() {
  const problems = [];
  const hidden = (element) => !element.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true });
  for (const element of document.querySelectorAll('svg.chart, table, dl')) {
    if (hidden(element) || element.getBoundingClientRect().height < 20) problems.push(`<${element.localName}> is not printed`);
  }
  const background = getComputedStyle(document.body).backgroundColor;
  if (background !== 'rgb(255, 255, 255)') problems.push(`printed on ${background}`);
  const figures = [...document.querySelectorAll('figure')];
  if (figures.some((figure) => getComputedStyle(figure).breakInside !== 'avoid')) problems.push('a chart may be cut in two');
  const wide = [...document.querySelectorAll('table')].filter((table) => table.getBoundingClientRect().right > innerWidth + 1);
  for (const table of wide) problems.push(`the table "${table.caption.textContent}" is wider than the paper`);
  return problems;
}
