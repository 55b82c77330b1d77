// What part of the map is in view, and where each node is on the screen.

import { CARD, CHIP } from './layout.js';

/** The least size of a tile that has its mark. */
export const MARKED = 6;
/** The size of a tile when the map is as close as it gets. */
const CLOSEST = 56;

/** The base of the map: `layout`, `blocks` and `view` are set by it. */
export class MapView {
  /** The scale: when closer, tiles have a whole number of device pixels. */
  get scale() {
    const { k } = this.view,
      pixels = this.layout.tile * k * this.ratio;
    return k > 1 && pixels >= 3 ? Math.round(pixels) / (this.layout.tile * this.ratio) : k;
  }

  clampView() {
    const view = this.view;
    view.k = Math.max(1, Math.min(Math.max(1, CLOSEST / this.layout.tile), view.k));
    view.x = Math.min(0, Math.max(this.width * (1 - view.k), view.x));
    view.y = Math.min(0, Math.max(this.height * (1 - view.k), view.y));
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const { view } = this,
      before = view.k;
    view.k *= factor;
    view.k = Math.max(1, Math.min(Math.max(1, CLOSEST / this.layout.tile), view.k));
    view.x = x - ((x - view.x) * view.k) / before;
    view.y = y - ((y - view.y) * view.k) / before;
    this.clampView();
    this.isDirty = true;
  }

  fit() {
    this.view = { k: 1, x: 0, y: 0 };
    this.isDirty = true;
  }

  pan(x, y) {
    Object.assign(this.view, { x, y });
    this.clampView();
    this.isDirty = true;
  }

  /** Brings a node into view, close enough to see its mark. */
  reveal(id) {
    if (this.shape !== this.fleet.shape) this.relayout();
    const block = this.blockOf.get(this.fleet.zoneOf[id]);
    if (!block) return;
    if (this.layout.tile * this.view.k < MARKED) this.view.k = Math.max(this.view.k, 12 / this.layout.tile);
    const box = this.boxOf(id),
      isIn = box.x >= 20 && box.y >= 40 && box.x + box.w <= this.width - 20 && box.y + box.h <= this.height - 20;
    if (this.view.k > 1 && !isIn) {
      const place = this.fleet.place[id],
        k = this.scale;
      this.view.x = this.width / 2 - (block.left + ((place % block.columns) + 0.5) * this.layout.tile) * k;
      this.view.y =
        this.height / 2 -
        (block.top + (Math.floor(place / block.columns) + 0.5) * this.layout.tile * this.layout.aspect) * k;
      this.clampView();
    }
    this.isDirty = true;
  }

  /** Where the tiles of a block are on the screen. */
  tilesOf(block) {
    const k = this.scale,
      { x, y } = this.view,
      snap = (value) => Math.round(value * this.ratio) / this.ratio;
    return {
      x: snap(block.left * k + x),
      y: snap(block.top * k + y),
      w: this.layout.tile * k,
      h: this.layout.tile * this.layout.aspect * k,
    };
  }

  /** Where a node is on the screen. */
  boxOf(id) {
    const block = this.blockOf.get(this.fleet.zoneOf[id]);
    if (!block) return null;
    const tiles = this.tilesOf(block),
      place = this.fleet.place[id];
    const gap =
      this.layout.kind === CARD ? 8 : this.layout.kind === CHIP ? 4 : tiles.w >= 20 ? 2 : tiles.w >= MARKED ? 1 : 0;
    return {
      x: tiles.x + (place % block.columns) * tiles.w,
      y: tiles.y + Math.floor(place / block.columns) * tiles.h,
      w: tiles.w - gap,
      h: tiles.h - gap,
    };
  }

  /** The zone and node at a point of the screen. */
  at(x, y) {
    const k = this.scale,
      px = (x - this.view.x) / k,
      py = (y - this.view.y) / k;
    const block = this.blocks.find((it) => px >= it.x && py >= it.y && px < it.x + it.w && py < it.y + it.h);
    if (!block) return { zone: null, id: -1 };
    const tiles = this.tilesOf(block),
      column = Math.floor((x - tiles.x) / tiles.w),
      row = Math.floor((y - tiles.y) / tiles.h);
    const place = row * block.columns + column;
    const isTile = column >= 0 && column < block.columns && row >= 0 && place < block.size;
    return { zone: block.zone, id: isTile ? block.zone.ids[place] : -1 };
  }

  /** The first node of the map. */
  first() {
    return this.blocks[0]?.zone.ids[0] ?? -1;
  }

  /** The node in that direction of a node, in its zone or in the next one. */
  neighbour(id, dx, dy) {
    const block = this.blockOf.get(this.fleet.zoneOf[id]);
    if (!block) return this.first();
    const place = this.fleet.place[id] + dx + dy * block.columns;
    if (place >= 0 && place < block.size) return block.zone.ids[place];
    const next = this.blocks[this.blocks.indexOf(block) + (place < 0 ? -1 : 1)];
    return next ? next.zone.ids[place < 0 ? next.size - 1 : 0] : id;
  }
}
