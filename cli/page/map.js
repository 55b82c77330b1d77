// The map: one canvas, and for each zone one bitmap with a texel per node. A change writes one texel, and the map is drawn
// only when something has changed.

import { COLOURS, READY, STATES } from './fleet.js';
import { layOut, TILE } from './layout.js';
import { DIMMED, LIFE_MILLIS, MapPainter } from './paint.js';
import { colours, onTheme, rgb } from './theme.js';

/** Signs of life that begin at once. */
const LIVES = 24;

export class FleetMap extends MapPainter {
  constructor(canvas, fleet, page) {
    super();
    Object.assign(this, { canvas, fleet, page });
    this.context = canvas.getContext('2d', { alpha: false });
    this.blocks = [];
    this.blockOf = new Map();
    this.layout = { kind: TILE, tile: 1, aspect: 1 };
    this.view = { k: 1, x: 0, y: 0 };
    this.hover = -1;
    this.lives = [];
    this.shape = -1;
    this.isDirty = true;
    this.isCalm = matchMedia('(prefers-reduced-motion: reduce)').matches;
    onTheme(() => this.recolour());
    this.recolour();
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
    this.resize();
  }

  recolour() {
    const panel = rgb(colours.panel);
    const texel = (colour, share) => {
      const [r, g, b] = rgb(colour).map((value, k) => Math.round(value + (panel[k] - value) * share));
      return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    };
    this.texels = [0, 0.78].flatMap((share) => COLOURS.map((name) => texel(colours[name], share)));
    this.patterns = new Map();
    this.rewrite();
  }

  resize() {
    const box = this.canvas.parentElement.getBoundingClientRect(),
      ratio = window.devicePixelRatio || 1;
    this.width = box.width;
    this.height = box.height;
    this.ratio = ratio;
    this.canvas.width = Math.max(1, Math.round(box.width * ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * ratio));
    this.view = { k: 1, x: 0, y: 0 };
    this.shape = -1;
    this.isDirty = true;
  }

  /** Finds the places of all tiles again. */
  relayout() {
    this.shape = this.fleet.shape;
    const zones = this.fleet.zones,
      sizes = zones.map((zone) => zone.ids.length);
    const { boxes, ...layout } = layOut(sizes, this.width, this.height);
    this.layout = layout;
    this.patterns = new Map();
    this.blockOf = new Map();
    this.blocks = boxes.map((box, k) => {
      const image = document.createElement('canvas');
      image.width = box.columns;
      image.height = box.rows;
      const context = image.getContext('2d'),
        data = context.createImageData(box.columns, box.rows);
      const block = {
        ...box,
        zone: zones[k],
        image,
        context,
        data,
        pixels: new Uint32Array(data.data.buffer),
        codes: new Uint8Array(box.size),
      };
      this.blockOf.set(zones[k], block);
      return block;
    });
    this.clampView();
    this.rewrite();
  }

  /** Writes the texel of every node again. */
  rewrite() {
    this.fleet.takeChanged();
    for (const block of this.blocks) {
      const { ids } = block.zone;
      for (let place = 0; place < block.size; place++) this.write(block, place, ids[place]);
      block.isChanged = true;
    }
    this.isDirty = true;
  }

  write(block, place, id) {
    const code = this.fleet.state[id] | (this.page.found && !this.page.found.has(id) ? DIMMED : 0);
    if (block.codes[place] === code && block.pixels[place]) return;
    block.codes[place] = code;
    block.pixels[place] = this.texels[(code & 7) | (code & DIMMED ? STATES : 0)];
    block.isChanged = true;
  }

  /** Takes in what has changed, and draws if anything has. */
  frame(now) {
    if (!this.width || !this.height) return;
    if (this.shape !== this.fleet.shape) this.relayout();
    for (const id of this.fleet.takeChanged()) {
      const block = this.blockOf.get(this.fleet.zoneOf[id]);
      if (block) this.write(block, this.fleet.place[id], id);
    }
    this.live(now);
    for (const block of this.blocks) {
      if (!block.isChanged) continue;
      block.isChanged = false;
      block.context.putImageData(block.data, 0, 0);
      this.isDirty = true;
    }
    if (this.isDirty) {
      this.isDirty = false;
      this.paint(now);
    }
  }

  /** Signs of life: nodes that have just renewed, where tiles are large enough for it. */
  live(now) {
    const renewed = this.fleet.takeRenewed();
    if (this.isCalm || this.layout.kind !== TILE || this.layout.tile * this.view.k < 4) return;
    for (const id of renewed.slice(0, LIVES)) if (this.fleet.state[id] === READY) this.lives.push({ id, now });
    this.lives = this.lives.filter((life) => now - life.now < LIFE_MILLIS);
    if (this.lives.length) this.isDirty = true;
  }
}
