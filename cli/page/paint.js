// How the map is drawn: what is in view, in runs of equal tiles.

import { COLOURS, isTrouble, NEW, READY, STATES, WORDS } from './fleet.js';
import { CARD, LABEL, TILE } from './layout.js';
import { drawMark, drawPin, drawTile, drawZoneMark } from './marks.js';
import { colours } from './theme.js';
import { MapView, MARKED } from './view.js';
import { number, span, zoneName } from './words.js';

const FONT = 'Inter, system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
/** The bit of a tile that is not found by the search. */
export const DIMMED = STATES;
/** The least size of a tile that is apart from its neighbours. */
const APART = 3.5;
/** Zones with no more nodes in trouble than this show each of them where tiles are too small. */
const PINNED = 40;
/** How long a sign of life is seen. */
export const LIFE_MILLIS = 700;

export class MapPainter extends MapView {
  paint(now) {
    const c = this.context;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = colours.panel;
    c.fillRect(0, 0, this.width, this.height);
    c.imageSmoothingEnabled = false;
    const k = this.scale,
      { x, y } = this.view;
    const shown = this.blocks.filter(
      (block) =>
        block.x * k + x < this.width &&
        (block.x + block.w) * k + x > 0 &&
        block.y * k + y < this.height &&
        (block.y + block.h) * k + y > 0,
    );
    for (const block of shown) {
      this.paintFrame(block, k);
      this.paintNodes(block);
    }
    this.paintLives(now);
    for (const block of shown) this.paintName(block, k);
    if (this.hover >= 0) this.paintRing(this.hover, colours.ink);
    if (this.page.selected >= 0) this.paintRing(this.page.selected, colours.accent);
  }

  paintFrame(block, k) {
    const state = this.page.zoneState(block.zone.name),
      isChosen = this.page.zone === block.zone.name;
    if (state < 2 && !isChosen) return;
    const c = this.context;
    c.strokeStyle = isChosen ? colours.accent : state === 3 ? colours.bad : colours.warn;
    c.lineWidth = isChosen ? 2 : 1.5;
    c.setLineDash(state === 2 && !isChosen ? [6, 4] : []);
    c.beginPath();
    c.roundRect(block.x * k + this.view.x + 2, block.y * k + this.view.y + 2, block.w * k - 4, block.h * k - 4, 8);
    c.stroke();
    c.setLineDash([]);
  }

  paintNodes(block) {
    const tiles = this.tilesOf(block),
      size = Math.min(tiles.w, tiles.h);
    const top = Math.max(0, Math.floor(-tiles.y / tiles.h)),
      bottom = Math.min(block.rows, Math.ceil((this.height - tiles.y) / tiles.h));
    const left = Math.max(0, Math.floor(-tiles.x / tiles.w)),
      right = Math.min(block.columns, Math.ceil((this.width - tiles.x) / tiles.w));
    if (bottom <= top || right <= left) return;
    const range = { top, bottom, left, right };
    if (this.layout.kind !== TILE) this.paintWords(block, tiles, range);
    else if (size >= MARKED) this.paintRuns(block, tiles, range);
    else this.paintTexels(block, tiles, range, size);
  }

  /** Cards and chips, of which there are few. */
  paintWords(block, tiles, { top, bottom, left, right }) {
    const draw = this.layout.kind === CARD && tiles.w >= 110 && tiles.h >= 52 ? this.paintCard : this.paintChip;
    for (let row = top; row < bottom; row++)
      for (let column = left; column < right; column++) {
        const place = row * block.columns + column;
        if (place >= block.size) break;
        const code = block.codes[place];
        this.context.globalAlpha = code & DIMMED ? 0.28 : 1;
        draw.call(
          this,
          block.zone.ids[place],
          code & 7,
          tiles.x + column * tiles.w,
          tiles.y + row * tiles.h,
          tiles.w,
          tiles.h,
        );
      }
    this.context.globalAlpha = 1;
  }

  /** Neighbours in the same state are one fill with the pattern of that state. */
  paintRuns(block, tiles, { top, bottom, left, right }) {
    const c = this.context;
    for (let row = top; row < bottom; row++)
      for (let column = left; column < right;) {
        const first = row * block.columns + column;
        if (first >= block.size) break;
        const code = block.codes[first],
          end = Math.min(block.size, row * block.columns + right);
        let place = first + 1;
        while (place < end && block.codes[place] === code) place++;
        const pattern = this.pattern(code, tiles.w, tiles.h);
        pattern.setTransform(new DOMMatrix([1 / this.ratio, 0, 0, 1 / this.ratio, tiles.x, tiles.y]));
        c.fillStyle = pattern;
        c.fillRect(tiles.x + column * tiles.w, tiles.y + row * tiles.h, (place - first) * tiles.w, tiles.h);
        column += place - first;
      }
    if (tiles.w >= 34) this.paintNumbers(block, tiles, { top, bottom, left, right });
  }

  /** The end of each name, when tiles are close. */
  paintNumbers(block, tiles, { top, bottom, left, right }) {
    const c = this.context;
    c.font = `600 ${tiles.w >= 46 ? 11 : 10}px ${FONT}`;
    c.textAlign = 'center';
    c.textBaseline = 'alphabetic';
    for (let row = top; row < bottom; row++)
      for (let column = left; column < right; column++) {
        const place = row * block.columns + column;
        if (place >= block.size) break;
        const state = block.codes[place] & 7;
        c.fillStyle =
          block.codes[place] & DIMMED || state === NEW
            ? colours.ink2
            : state === READY
              ? '#ffffff'
              : state === 7
                ? '#ffffff'
                : colours.mark;
        c.fillText(
          shortName(this.fleet.names[block.zone.ids[place]]),
          tiles.x + (column + 0.5) * tiles.w - 1,
          tiles.y + (row + 1) * tiles.h - 6,
          tiles.w - 6,
        );
      }
    c.textAlign = 'left';
  }

  pattern(code, width, height) {
    const key = `${code} ${width} ${height}`;
    let pattern = this.patterns.get(key);
    if (!pattern) {
      if (this.patterns.size > 64) this.patterns.clear();
      const image = document.createElement('canvas');
      image.width = Math.max(1, Math.round(width * this.ratio));
      image.height = Math.max(1, Math.round(height * this.ratio));
      const c = image.getContext('2d'),
        gap = width >= 20 ? 2 : 1,
        up = width >= 34 ? 0.32 : 0;
      c.scale(this.ratio, this.ratio);
      c.globalAlpha = code & DIMMED ? 0.22 : 1;
      const [w, h, state] = [width - gap, height - gap, code & 7];
      if (up && state !== READY && state !== NEW) {
        c.beginPath();
        c.roundRect(0, 0, w, h, 4);
        c.fillStyle = colours[COLOURS[state]];
        c.fill();
        drawMark(c, state, (w * up) / 2, (h * up) / 6, w * (1 - up), h * (1 - up));
      } else drawTile(c, state, 0, 0, w, h);
      pattern = this.context.createPattern(image, 'repeat');
      this.patterns.set(key, pattern);
    }
    return pattern;
  }

  paintTexels(block, tiles, { top, bottom, left, right }, size) {
    const c = this.context;
    c.drawImage(
      block.image,
      left,
      top,
      right - left,
      bottom - top,
      tiles.x + left * tiles.w,
      tiles.y + top * tiles.h,
      (right - left) * tiles.w,
      (bottom - top) * tiles.h,
    );
    if (size >= APART) {
      c.fillStyle = colours.panel;
      for (let x = left + 1; x <= right; x++)
        c.fillRect(tiles.x + x * tiles.w - 0.75, tiles.y + top * tiles.h, 0.75, (bottom - top) * tiles.h);
      for (let y = top + 1; y <= bottom; y++)
        c.fillRect(tiles.x + left * tiles.w, tiles.y + y * tiles.h - 0.75, (right - left) * tiles.w, 0.75);
    }
    // One lost node among 100,000 must be seen.
    const { counts } = block.zone,
      trouble = counts[4] + counts[5] + counts[6] + counts[7];
    if (!trouble || trouble > PINNED) return;
    for (let place = 0, left = trouble; place < block.size && left > 0; place++) {
      const code = block.codes[place];
      if (!isTrouble(code & 7)) continue;
      left--;
      if (code & DIMMED) continue;
      const x = tiles.x + ((place % block.columns) + 0.5) * tiles.w,
        y = tiles.y + (Math.floor(place / block.columns) + 0.5) * tiles.h;
      if (x > 0 && y > 0 && x < this.width && y < this.height) drawPin(c, code & 7, x, y);
    }
  }

  paintChip(id, state, x, y, width, height) {
    const c = this.context,
      w = width - 4,
      h = height - 4,
      mark = Math.min(14, h - 8);
    this.paintPlate(state, x, y, w, h, 6);
    drawTile(c, state, x + 7, y + (h - mark) / 2, mark, mark);
    c.fillStyle = colours.ink;
    c.font = `500 ${w < 80 ? 11 : 12}px ${FONT}`;
    c.textBaseline = 'middle';
    c.fillText(fitted(c, this.fleet.names[id], w - mark - 18), x + mark + 13, y + h / 2 + 0.5);
    c.textBaseline = 'alphabetic';
  }

  paintCard(id, state, x, y, width, height) {
    const c = this.context,
      w = width - 8,
      h = height - 8,
      heard = this.fleet.heard[id];
    this.paintPlate(state, x, y, w, h, 10);
    drawTile(c, state, x + 12, y + 11, 18, 18);
    c.textBaseline = 'alphabetic';
    c.fillStyle = colours.ink;
    c.font = `620 14px ${FONT}`;
    c.fillText(fitted(c, this.fleet.names[id], w - 52), x + 39, y + 25);
    const silent = heard ? (performance.now() - heard) / 1000 : NaN,
      lease = this.page.leaseSeconds,
      tall = h >= 84;
    const words = Number.isNaN(silent)
      ? 'not heard yet'
      : isTrouble(state)
        ? `silent ${span(silent)}`
        : `heard ${span(silent)} ago`;
    c.font = `400 12px ${FONT}`;
    c.fillStyle = colours.ink2;
    const base = tall ? y + 47 : y + h - 12;
    c.fillText(WORDS[state], x + 12, base);
    if (!tall) {
      const space = w - 34 - c.measureText(WORDS[state]).width,
        text = [words, span(silent)].find((it) => c.measureText(it).width <= space);
      return text && !Number.isNaN(silent) ? this.rightText(text, x + w - 12, base) : undefined;
    }
    c.fillText(fitted(c, words, w - 24), x + 12, y + h - 12);
    // How much of its lease has passed since it was heard.
    const bar = y + h - 33;
    c.fillStyle = colours.line;
    c.beginPath();
    c.roundRect(x + 12, bar, w - 24, 5, 2.5);
    c.fill();
    if (lease && silent >= 0) {
      c.fillStyle = colours[COLOURS[state]];
      c.beginPath();
      c.roundRect(x + 12, bar, Math.max(5, (w - 24) * Math.min(1, silent / lease)), 5, 2.5);
      c.fill();
    }
  }

  rightText(text, x, y) {
    const c = this.context;
    c.textAlign = 'right';
    c.fillText(text, x, y);
    c.textAlign = 'left';
  }

  paintPlate(state, x, y, w, h, radius) {
    const c = this.context;
    c.fillStyle = colours.sunk;
    c.strokeStyle = state === READY ? colours.line2 : colours[COLOURS[state]];
    c.lineWidth = state === READY ? 1 : 1.8;
    c.beginPath();
    c.roundRect(x + 1, y + 1, w - 2, h - 2, radius);
    c.fill();
    c.stroke();
  }

  paintLives(now) {
    const c = this.context;
    c.fillStyle = colours.life;
    for (const life of this.lives) {
      const box = this.boxOf(life.id);
      if (!box) continue;
      c.globalAlpha = 0.45 * (1 - (now - life.now) / LIFE_MILLIS);
      c.beginPath();
      c.roundRect(box.x, box.y, box.w, box.h, Math.min(4, box.w / 4));
      c.fill();
    }
    c.globalAlpha = 1;
  }

  paintRing(id, colour) {
    const box = this.boxOf(id);
    if (!box) return;
    const c = this.context,
      grow = Math.max(0, (9 - box.w) / 2);
    c.beginPath();
    c.roundRect(
      box.x - 1.5 - grow,
      box.y - 1.5 - grow,
      box.w + 3 + 2 * grow,
      box.h + 3 + 2 * grow,
      this.layout.kind === CARD ? 11 : 5,
    );
    c.strokeStyle = colours.panel;
    c.lineWidth = 5;
    c.stroke();
    c.strokeStyle = colour;
    c.lineWidth = 2.2;
    c.stroke();
    if (id === this.page.selected && this.layout.kind === TILE) this.paintFlag(box, grow, this.fleet.names[id]);
  }

  /** The name of the chosen node beside its tile. */
  paintFlag(box, grow, name) {
    const c = this.context;
    c.font = `600 12px ${FONT}`;
    const width = c.measureText(name).width + 14,
      above = box.y - 30 - grow > 24;
    const x = Math.min(this.width - width - 6, Math.max(6, box.x + box.w / 2 - width / 2)),
      y = above ? box.y - grow - 30 : box.y + box.h + grow + 8;
    c.fillStyle = colours.accent;
    c.beginPath();
    c.roundRect(x, y, width, 22, 6);
    c.fill();
    c.fillStyle = colours.panel;
    c.textBaseline = 'alphabetic';
    c.fillText(name, x + 7, y + 15);
  }

  /** A zone's name and the longest wording of its state that fits; when close, it stays in view. */
  paintName(block, k) {
    const c = this.context,
      zone = block.zone,
      state = this.page.zoneState(zone.name),
      isNear = k > 1;
    const left = block.x * k + this.view.x,
      top = block.y * k + this.view.y,
      tiles = this.tilesOf(block);
    if (top + block.h * k < LABEL) return;
    const x = Math.max(left + 8, 8),
      y = isNear ? Math.max(tiles.y - 7, 17) : top + 15;
    const space = Math.min(left + block.w * k - x - 6, this.width - x - 4);
    if (space < 40) return;
    const bold = `600 12px ${FONT}`,
      plain = `400 12px ${FONT}`,
      start = x + (state > 1 ? 15 : 0);
    c.textBaseline = 'alphabetic';
    c.font = bold;
    const name = fitted(c, zoneName(zone.name), space - (start - x)),
      width = c.measureText(name).width;
    c.font = plain;
    const words =
      zoneWords(zone, state).find((text) => start - x + width + 8 + c.measureText(text).width < space) ?? '';
    if (isNear) {
      const end = words ? width + 8 + c.measureText(words).width : width;
      c.fillStyle = colours.panel;
      c.strokeStyle = colours.line2;
      c.lineWidth = 1;
      c.beginPath();
      c.roundRect(x - 6, y - 14, start - x + end + 13, 20, 6);
      c.fill();
      c.stroke();
    }
    if (state > 1) drawZoneMark(c, state === 3, x + 5, y - 4);
    c.fillStyle = state === 3 ? colours.bad : state === 2 ? colours.warn : colours.ink;
    c.font = bold;
    c.fillText(name, start, y);
    c.fillStyle = colours.ink2;
    c.font = plain;
    c.fillText(words, start + width + 8, y);
  }
}

function zoneWords(zone, state) {
  const all = number(zone.ids.length),
    failed = number(zone.failed);
  if (state === 3) return [`all ${all} failed`, 'all failed'];
  if (zone.failed) return [`${failed} of ${all} failed`, `${failed}/${all}`, failed];
  return [all];
}

/** The last part of a name, in which it differs from its neighbours. */
const shortName = (name) => name.match(/[^-._]*$/)?.[0].slice(-6) || name.slice(-6);

/** The text, cut off where it would be wider than this. */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let low = 0,
    high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}…` : '';
}
