// The nodes: a byte for the state of each, in typed arrays, so that 100,000 of them are a few megabytes.

/** The states, by the number that the feed uses; a higher one is worse. */
export const READY = 0,
  NEW = 1,
  CORDONED = 2,
  DRAINING = 3,
  LATE = 4,
  NOT_READY = 5,
  UNKNOWN = 6,
  EVICTING = 7;
export const STATES = 8;
export const WORDS = ['Ready', 'New', 'Cordoned', 'Draining', 'Late', 'Not ready', 'Unknown', 'Evicting'];
/** The names of the colours of the states in the style sheet, and of their patterns in bars. */
export const COLOURS = ['ready', 'new', 'cordoned', 'draining', 'late', 'notready', 'unknown', 'evicting'];
/** The order in which states are counted and listed: the worst last, as on a scale. */
export const SHOWN = [READY, LATE, NOT_READY, UNKNOWN, EVICTING, CORDONED, DRAINING, NEW];

/** A frame of the feed names at most 256 renewals, and each node renews a few times a minute. */
const HEARD = 250;

export const isTrouble = (state) => state >= LATE;

/** Orders names so that a number inside of a name counts as a number: n2 comes before n10. */
export function natural(a, b) {
  if (a === b) return 0;
  const left = a.match(/\d+|\D+/g) ?? [],
    right = b.match(/\d+|\D+/g) ?? [];
  for (let k = 0; k < left.length && k < right.length; k++) {
    const x = left[k],
      y = right[k];
    if (x === y) continue;
    const areNumbers = x.charCodeAt(0) < 58 && y.charCodeAt(0) < 58 && x[0] >= '0' && y[0] >= '0';
    if (areNumbers) {
      const p = x.replace(/^0+/, ''),
        q = y.replace(/^0+/, '');
      if (p.length !== q.length) return p.length - q.length;
      if (p !== q) return p < q ? -1 : 1;
    } else return x < y ? -1 : 1;
  }
  return left.length - right.length || (a < b ? -1 : 1);
}

class Zone {
  constructor(name) {
    this.name = name;
    /** Numbers of its nodes, in the order of their names. */
    this.ids = [];
    this.counts = new Uint32Array(STATES);
  }

  get failed() {
    return this.counts[NOT_READY] + this.counts[UNKNOWN] + this.counts[EVICTING];
  }
}

export class Fleet {
  constructor() {
    this.clear();
    /** Grows when nodes come, go or move: the map has to be laid out again. */
    this.shape = 0;
    /** Grows with every change of a state. */
    this.version = 0;
    /** Nodes whose state has changed since `takeChanged`. */
    this.changed = [];
    /** Nodes that have renewed since `takeRenewed`, for signs of life. */
    this.renewed = [];
    this.loading = null;
  }

  clear() {
    this.names = [];
    this.byName = new Map();
    this.zones = [];
    this.zoneByName = new Map();
    this.zoneOf = [];
    this.state = new Uint8Array(1024);
    /** The place of a node within its zone. */
    this.place = new Uint32Array(1024);
    /** When a node was last heard, by this page's clock; 0 if that is unknown. */
    this.heard = new Float64Array(1024);
    this.counts = new Uint32Array(STATES);
    this.size = 0;
  }

  get failed() {
    return this.counts[NOT_READY] + this.counts[UNKNOWN] + this.counts[EVICTING];
  }

  /** Whether this page hears of every renewal. Of a large fleet the feed names some only. */
  get hearsAll() {
    return this.size <= HEARD;
  }

  /** A snapshot begins. What is shown stays until it is complete, except before the first one. */
  start({ nodes }) {
    this.loading = { total: nodes, read: 0, next: this.size > 0 ? new Fleet() : this };
    if (this.loading.next === this) this.clear();
  }

  nodes(piece) {
    if (!this.loading) return;
    this.loading.next.add(piece, false);
    this.loading.read += piece.ids.length;
    if (this.loading.next === this) this.shape++;
  }

  complete() {
    const next = this.loading?.next;
    if (next && next !== this) {
      for (const part of [
        'names',
        'byName',
        'zones',
        'zoneByName',
        'zoneOf',
        'state',
        'place',
        'heard',
        'counts',
        'size',
      ])
        this[part] = next[part];
    }
    this.loading = null;
    this.changed = [];
    this.shape++;
    this.version++;
  }

  change({ added, states, removed, renewed, silent }) {
    // Nodes that move are removed and added with the same number.
    if (removed.length) this.remove(removed);
    for (const piece of added) this.add(piece, true);
    if (removed.length || added.length) this.shape++;
    for (let k = 0; k < states.length; k += 2) this.set(states[k], states[k + 1]);
    const now = performance.now();
    for (const id of renewed) this.heard[id] = now;
    for (let k = 0; k < silent.length; k += 2) this.heard[silent[k]] = now - 1000 * silent[k + 1];
    this.renewed = renewed;
    if (removed.length || added.length || states.length) this.version++;
  }

  set(id, state) {
    const zone = this.zoneOf[id],
      before = this.state[id];
    if (!zone || before === state) return;
    zone.counts[before]--;
    zone.counts[state]++;
    this.counts[before]--;
    this.counts[state]++;
    this.state[id] = state;
    this.changed.push(id);
  }

  add({ zone: name, ids, names, states, silent }, sort) {
    const now = performance.now(),
      zone = this.zone(name);
    this.grow(Math.max(...chunkMax(ids)));
    for (let k = 0; k < ids.length; k++) {
      const id = ids[k],
        state = states[k];
      this.names[id] = names[k];
      this.byName.set(names[k], id);
      this.zoneOf[id] = zone;
      this.state[id] = state;
      this.heard[id] = silent[k] < 0 ? 0 : now - 1000 * silent[k];
      this.place[id] = zone.ids.length;
      zone.ids.push(id);
      zone.counts[state]++;
      this.counts[state]++;
    }
    this.size += ids.length;
    if (sort) {
      zone.ids.sort((a, b) => natural(this.names[a], this.names[b]));
      zone.ids.forEach((id, place) => (this.place[id] = place));
    }
  }

  remove(ids) {
    const gone = new Set(ids),
      zones = new Set();
    for (const id of ids) {
      const zone = this.zoneOf[id];
      if (!zone) continue;
      zones.add(zone);
      zone.counts[this.state[id]]--;
      this.counts[this.state[id]]--;
      this.size--;
      this.byName.delete(this.names[id]);
      this.names[id] = undefined;
      this.zoneOf[id] = undefined;
    }
    for (const zone of zones) {
      zone.ids = zone.ids.filter((id) => !gone.has(id));
      zone.ids.forEach((id, place) => (this.place[id] = place));
      if (!zone.ids.length) {
        this.zones.splice(this.zones.indexOf(zone), 1);
        this.zoneByName.delete(zone.name);
      }
    }
  }

  zone(name) {
    let zone = this.zoneByName.get(name);
    if (!zone) {
      zone = new Zone(name);
      this.zoneByName.set(name, zone);
      this.zones.push(zone);
      this.zones.sort((a, b) => natural(a.name, b.name));
    }
    return zone;
  }

  grow(highest) {
    if (highest < this.state.length) return;
    const size = Math.max(highest + 1, 2 * this.state.length);
    for (const part of ['state', 'place', 'heard']) {
      const larger = new this[part].constructor(size);
      larger.set(this[part]);
      this[part] = larger;
    }
  }

  takeChanged() {
    const changed = this.changed;
    this.changed = [];
    return changed;
  }

  takeRenewed() {
    const renewed = this.renewed;
    this.renewed = [];
    return renewed;
  }
}

/** The largest numbers of pieces of a list, because a call has a limited number of arguments. */
function chunkMax(ids) {
  const largest = [0];
  for (let k = 0; k < ids.length; k += 8192) largest.push(Math.max(...ids.slice(k, k + 8192)));
  return largest;
}
